//! The `tqkv` command: results, exit codes, one-line errors, and no file left behind.

use std::fs;

use serde_json::Value;

use crate::arrays::{DIM, elements, files, folder, npy, raw, values};
use crate::support::{error, json, tqkv, tqkv_with};

fn relative_mse(x: &[f32], y: &[f32]) -> f64 {
    assert_eq!(x.len(), y.len());
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = x.iter().zip(y).map(|(a, b)| square(a - b)).sum();
    error / x.iter().map(|a| square(*a)).sum::<f64>()
}

#[test]
fn encode_inspect_and_decode_agree() {
    let folder = folder();
    let at = folder.path();
    for (extra, bound) in
        [(&["--codec", "i8"][..], 1e-4), (&["--codec", "s4", "--centre", "--seed", "7"], 0.012)]
    {
        let encoded = json(at, &[&["encode", "--force"], extra, &["in.npy", "x.tqk"]].concat());
        assert_eq!((&encoded["count"], &encoded["dim"]), (&50.into(), &DIM.into()));
        assert_eq!(encoded["file_bytes"], fs::metadata(at.join("x.tqk")).unwrap().len());
        let inspected = json(at, &["inspect", "x.tqk"]);
        for field in ["codec", "scale_mode", "dim", "count", "seed", "bytes_per_vector"] {
            assert_eq!(inspected[field], encoded[field], "{field}");
        }
        assert_eq!((&inspected["crc"], &inspected["chunks"]), (&"ok".into(), &1.into()));
        assert_eq!(inspected["mean"].is_array(), extra.contains(&"--centre"));
        json(at, &["decode", "--force", "x.tqk", "out.npy"]);
        let mse = relative_mse(&values(50), &elements(&at.join("out.npy")));
        assert!(mse > 0.0 && mse < bound, "{extra:?}: {mse}");
    }
    assert_eq!(files(at).len(), 3, "only the files named");
}

#[test]
fn half_precision_and_safetensors_inputs_give_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // Values that f16 and bf16 hold exactly.
    let values: Vec<f32> = (0..6 * DIM).map(|i| (i % 61) as f32 - 30.0).collect();
    let f16: Vec<u8> = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let bf16: Vec<u8> = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    npy(&at.join("a.npy"), "<f4", &format!("(6, {DIM})"), &raw(&values));
    npy(&at.join("b.npy"), "<f2", &format!("(2, 3, {DIM})"), &f16);
    let tensor = |dtype, data| safetensors::tensor::TensorView::new(dtype, vec![3, 2, DIM], data).unwrap();
    let tensors =
        [("k", tensor(safetensors::Dtype::F16, &f16)), ("v", tensor(safetensors::Dtype::BF16, &bf16))];
    fs::write(at.join("t.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    let encode = |input: &str| {
        json(at, &["encode", "--force", "--codec", "s3", input, "x.tqk"]);
        fs::read(at.join("x.tqk")).unwrap()
    };
    let expected = encode("a.npy");
    for input in ["b.npy", "t.safetensors:k", "t.safetensors:v"] {
        assert_eq!(encode(input), expected, "{input}");
    }
    let message = error(at, &["encode", "--codec", "s3", "t.safetensors:q", "y.tqk"], 2);
    assert!(message.contains("'q'") && message.contains("k, v"), "{message}");
    let message = error(at, &["encode", "--codec", "s3", "t.safetensors", "y.tqk"], 2);
    assert!(message.contains("k, v"), "{message}");
}

#[test]
fn nan_is_reported_with_its_row_and_nothing_stays() {
    let folder = folder();
    let at = folder.path();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut values = values(50);
        values[17 * DIM + 5] = bad;
        values[40 * DIM] = bad;
        npy(&at.join("bad.npy"), "<f4", &format!("(50, {DIM})"), &raw(&values));
        let before = files(at);
        for args in [
            &["encode", "--codec", "s4", "bad.npy", "x.tqk"][..],
            &["encode", "--codec", "s4", "--centre", "bad.npy", "x.tqk"],
        ] {
            let message = error(at, args, 2);
            assert!(message.contains("row 17 ") && message.contains("bad.npy"), "{message}");
            assert_eq!(files(at), before, "{args:?}");
        }
    }
}

#[test]
fn a_vector_too_large_for_its_scale_names_its_row() {
    let folder = folder();
    let at = folder.path();
    let mut values = values(50);
    values[33 * DIM] = 1e30;
    npy(&at.join("in.npy"), "<f4", &format!("(50, {DIM})"), &raw(&values));
    let message = error(at, &["encode", "--codec", "s4", "in.npy", "x.tqk"], 2);
    assert!(message.contains("row 33 ") && message.contains("65504"), "{message}");
    assert_eq!(files(at).len(), 1);
}

#[test]
fn bad_input_is_one_line_with_code_2_and_leaves_no_file() {
    let folder = folder();
    let at = folder.path();
    json(at, &["encode", "--codec", "s4", "in.npy", "good.tqk"]);
    let good = fs::read(at.join("good.tqk")).unwrap();
    fs::write(at.join("short.tqk"), &good[..good.len() - 9]).unwrap();
    fs::write(at.join("foreign.tqk"), b"not one of ours").unwrap();
    npy(&at.join("i8.npy"), "<i8", "(2, 32)", &[0; 512]);
    npy(&at.join("big.npy"), ">f8", "(2, 32)", &[0; 512]);
    npy(&at.join("short.npy"), "<f4", "(2, 32)", &[0; 255]);
    npy(&at.join("flat.npy"), "<f4", "(64,)", &[0; 256]);
    npy(&at.join("d100.npy"), "<f4", "(2, 100)", &[0; 800]);
    npy(&at.join("d16.npy"), "<f4", "(2, 16)", &[0; 128]);
    npy(&at.join("none.npy"), "<f4", "(0, 32)", &[]);
    fs::write(at.join("config.json"), "{}").unwrap();
    let before = files(at);
    let encode = |input, output| vec!["encode", "--codec", "s4", input, output];
    for (args, expected) in [
        (vec!["enc0de"], "enc0de"),
        (vec!["encode", "in.npy", "x.tqk"], "--codec"),
        (vec!["encode", "--codec", "t9", "in.npy", "x.tqk"], "expected f16, i8"),
        (vec!["encode", "--codec", "s4", "--scale-mode", "best", "in.npy", "x.tqk"], "raw, preserving"),
        (vec!["encode", "--codec", "s4", "--effort", "raw", "in.npy", "x.tqk"], "fast, default, best"),
        (encode("missing.npy", "x.tqk"), "missing.npy"),
        (encode(".", "x.tqk"), ".: "),
        (encode("good.tqk", "x.tqk"), "expected a .npy"),
        (encode("i8.npy", "x.tqk"), "<i8"),
        (encode("big.npy", "x.tqk"), "'>f8' is big-endian"),
        (encode("good.tqk", "good.tqk"), "expected a .npy"),
        (encode("short.npy", "x.tqk"), "needs 256 bytes of elements, found 255"),
        (encode("flat.npy", "x.tqk"), "two or more dimensions"),
        (encode("d100.npy", "x.tqk"), "head dim 100"),
        (vec!["encode", "--codec", "q4_0", "d16.npy", "x.tqk"], "multiple of 32"),
        (encode("in.npy", "no/such/x.tqk"), "not an existing folder"),
        (encode("in.npy", "."), "not a regular file"),
        (vec!["decode", "short.tqk", "x.npy"], "truncated"),
        (vec!["decode", "foreign.tqk", "x.npy"], "not a .tqk file"),
        (vec!["decode", "good.tqk", "no/such/x.npy"], "not an existing folder"),
        (vec!["inspect", "short.tqk"], "truncated"),
        (vec!["inspect", "missing.tqk"], "missing.tqk"),
        (
            vec!["encode", "--codec", "p3", "in.npy", "x.tqk"],
            "it is a reference, for stats, eval and generate",
        ),
        (vec!["plan"], "expected --model PATH, or a shape: --layers N --kv-heads N --head-dim D"),
        (vec!["plan", "--layers", "0", "--kv-heads", "8", "--head-dim", "128"], "--layers"),
        (vec!["plan", "--layers", "8", "--kv-heads", "0", "--head-dim", "128"], "--kv-heads"),
        (vec!["plan", "--ram", "64KiB", "--head-dim", "0"], "--head-dim"),
        (vec!["plan", "--config", "config.json"], "num_hidden_layers is missing"),
        (vec!["plan", "--config", "in.npy"], "in.npy"),
        (vec!["plan", "--layers", "80"], "--kv-heads"),
        (
            vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--bandwidth", "2TB/s"],
            "--tokens",
        ),
        (vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--other", "tq3"], "tq3=52"),
        (vec!["plan", "--ram", "64KiB"], "--head-dim"),
        (
            vec!["plan", "--ram", "3x", "--head-dim", "64"],
            "--ram <SIZE>: '3x' is not valid: expected a number",
        ),
        (vec!["plan", "--head-dim", "64"], "--layers"),
        (vec!["plan", "--kv-heads", "2", "--head-dim", "64"], "--layers"),
        (vec!["plan", "--ram", "64KiB", "--head-dim", "60"], "head dim 60"),
        (vec!["plan", "--ram", "64KiB", "--head-dim", "64", "--kv", "f16"], "codec f16 has no integer form"),
        (vec!["plan", "--ram", "64KiB", "--head-dim", "64", "--memory", "1GiB"], "--memory"),
        (
            vec!["plan", "--ram", "64KiB", "--head-dim", "64", "--kv", "s4 hot=8"],
            "plan --ram takes codecs without settings: expected --kv K,V, not \"s4 hot=8\"",
        ),
        (vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--memory", "34XB"], "GiB"),
        (vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--kv", "s9"], "safe-lowbit"),
        (
            vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--kv", "p4 tier=9:s4"],
            "'tier=9:s4' is not valid for the yardstick 'p4', which no cache stores",
        ),
        (
            vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "100", "--kv", "tq3"],
            "format tq3 has no blocks of head dim 100",
        ),
        (vec!["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "100", "--kv", "s4"], "head dim 100"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.starts_with("tqkv: ") && message.contains(expected), "{args:?}: {message}");
        assert_eq!(files(at), before, "{args:?}");
    }
}

#[test]
fn damage_is_shown_by_inspect_and_stops_decode() {
    let folder = folder();
    let at = folder.path();
    json(at, &["encode", "--codec", "s4", "in.npy", "x.tqk"]);
    let mut bytes = fs::read(at.join("x.tqk")).unwrap();
    bytes[200] ^= 4;
    fs::write(at.join("x.tqk"), bytes).unwrap();
    let message = error(at, &["decode", "x.tqk", "out.npy"], 2);
    assert!(message.contains("chunk 0"), "{message}");
    assert!(!at.join("out.npy").exists());
    let output = tqkv(at, &["inspect", "x.tqk", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(inspected["crc"], "damaged");
    assert_eq!(inspected["damaged_chunks"], serde_json::json!([0]));
}

#[test]
fn a_failed_run_keeps_the_output_that_was_there() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("x.tqk"), b"precious").unwrap();
    let mut values = values(50);
    values[49 * DIM] = f32::NAN;
    npy(&at.join("in.npy"), "<f4", &format!("(50, {DIM})"), &raw(&values));
    error(at, &["encode", "--force", "--codec", "s4", "in.npy", "x.tqk"], 2);
    assert_eq!(fs::read(at.join("x.tqk")).unwrap(), b"precious");
    assert_eq!(files(at).len(), 2);
}

#[test]
fn plan_shows_the_figures_of_a_70b_class_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let config = r#"{"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "max_position_embeddings": 1048576}"#;
    fs::write(at.join("config.json"), config).unwrap();
    let args = ["plan", "--config", "config.json", "--memory", "34GB"];
    let kv = ["f16", "s4", "s3", "s2"].map(|codec| format!("{codec} hot=128"));
    let rows = kv.iter().flat_map(|kv| ["--kv", kv.as_str()]);
    let args: Vec<_> = args.into_iter().chain(rows).collect();
    let plan = json(at, &args);
    let row = |codec: &str| {
        let rows = plan["rows"].as_array().unwrap();
        rows.iter().find(|row| row["codec_k"] == codec && row["codec_v"] == codec).unwrap().clone()
    };
    for (codec, bytes, tokens) in [
        ("f16", 327_680u64, 103_608u64),
        ("s4", 84_480, 399_811),
        ("s3", 64_000, 526_756),
        ("s2", 43_520, 771_876),
    ] {
        assert_eq!(row(codec)["bytes_per_token"], bytes, "{codec}");
        // Tokens older than the window lie in pages, whose headers take 480 bytes per token in all heads.
        let used = |tokens: u64| 132 * 327_680 + (tokens - 132) * (bytes + 480);
        assert!(used(tokens) <= 34_000_000_000 && used(tokens + 1) > 34_000_000_000, "{codec}");
        // Means and the room in last pages take the rest.
        let planned = row(codec)["max_tokens"].as_u64().unwrap();
        assert!((tokens - tokens / 200..=tokens).contains(&planned), "{codec}: {planned}");
    }
    let shape = ["plan", "--layers", "80", "--kv-heads", "8", "--head-dim", "128"];
    let pair = json(at, &[&shape[..], &["--cache-type-k", "i8", "--cache-type-v", "s4"]].concat());
    let preset = json(at, &[&shape[..], &["--kv", "safe-lowbit"]].concat());
    assert_eq!(pair["rows"], preset["rows"]);
    assert_eq!(pair["rows"][0]["bytes_per_token"], 640 * (130 + 66));
    assert_eq!(pair["rows"][0]["max_tokens"], Value::Null);
}

#[test]
fn plan_says_how_long_a_step_reads() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "32", "--kv-heads", "32", "--head-dim", "128"];
    let step =
        ["--tokens", "32768", "--bandwidth", "2TB/s", "--kv", "f16 hot=0 sinks=0", "--other", "turbo4=68"];
    let args = [&shape[..], &step].concat();
    let plan = json(at, &args);
    // 17.2 and 4.6 GB, 8.6 and 2.3 ms: a published argument for compression. Our pages have headers.
    for (row, bytes, ms) in [(0, 17_205_035_008u64, 8.605), (1, 4_563_402_752, 2.28)] {
        let row = &plan["rows"][row];
        let room = row["cache_bytes"].as_u64().unwrap() - bytes;
        assert!(room == 0 || row["other"].is_null() && room < bytes / 1000, "{row}");
        assert!((row["read_ms"].as_f64().unwrap() - ms).abs() < 0.005, "{row}");
        assert_eq!(row["step_ms"], Value::Null, "no weights were named");
    }
    assert_eq!(
        (&plan["rows"][1]["other"], &plan["rows"][1]["f32_ratio"]),
        (&"turbo4".into(), &(512.0 / 68.0).into())
    );
    let plan = json(at, &[&args[..], &["--weight-bytes", "16GB"]].concat());
    let row = &plan["rows"][1];
    let (read, step) = (row["read_ms"].as_f64().unwrap(), row["step_ms"].as_f64().unwrap());
    assert!((step - read - 8.0).abs() < 1e-9, "{row}");
    let text = tqkv(at, &[&args[..], &["--memory", "34GB"]].concat());
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for word in ["f32 ratio", "longest context", "read ms", "turbo4"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn plan_knows_microcontrollers() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let plan = json(at, &["plan", "--ram", "64KiB", "--head-dim", "64"]);
    assert_eq!((&plan["ram"], &plan["kv_heads"], &plan["layers"]), (&65_536.into(), &1.into(), &1.into()));
    let rows = plan["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for (codec, bytes, tokens) in
        [("i8", 132u64, 496u64), ("s4", 68, 963), ("n3", 52, 1260), ("s2", 36, 1820)]
    {
        let row = rows.iter().find(|row| row["codec_k"] == codec && row["codec_v"] == codec).unwrap();
        assert_eq!((&row["bytes_per_token"], &row["tokens"]), (&bytes.into(), &tokens.into()), "{codec}");
        let per_kib = row["tokens_per_kib"].as_f64().unwrap();
        assert!((per_kib - 1024.0 / bytes as f64).abs() < 1e-9, "{codec}");
    }
    let shape = ["plan", "--ram", "64KiB", "--head-dim", "64", "--kv-heads", "2", "--kv", "s4,s2"];
    let mixed = json(at, &shape);
    assert_eq!(mixed["rows"][0]["bytes_per_token"], 2 * (34 + 18));
    assert_eq!(mixed["rows"][0]["tokens"], 65_536 / 104);
    let text = tqkv(at, &shape);
    assert!(String::from_utf8_lossy(&text.stdout).contains("tokens/KiB"));
}

#[test]
fn bench_measures_each_combination_once() {
    let options = ["--codec", "s4,t2", "--data", "l1", "--query-heads", "1,4", "--threads", "2"];
    let command = [&["bench", "--op", "scores", "--seconds", "1", "--json"], &options[..]].concat();
    // On a busy machine, stderr has a note that the figures are not reliable.
    let output = tqkv(folder().path(), &command);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["results"].as_array().unwrap();
    let cases: Vec<_> = rows
        .iter()
        .map(|row| (row["codec"].as_str().unwrap(), row["query_heads"].as_u64().unwrap()))
        .collect();
    assert_eq!(cases, [("s4", 1), ("t2", 1), ("s4", 4), ("t2", 4)]);
    for row in rows {
        assert_eq!(row["threads"], 2, "{row}");
        assert!(row["ns_min"].as_f64() > Some(0.0) && row["ratio_to_f16"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn bench_measures_a_whole_model() {
    let run = |options: &[&str]| tqkv(folder().path(), &[&["bench", "--model"], options].concat());
    let output = run(&["--depth", "70,5", "--tokens", "2", "--rounds", "2", "--threads", "1", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["results"].as_array().unwrap();
    let cases: Vec<_> =
        rows.iter().map(|row| (row["policy"].as_str().unwrap(), row["depth"].as_u64().unwrap())).collect();
    assert_eq!(
        cases,
        [("f16,f16", 70), ("s4,s4", 70), ("t4,t2", 70), ("f16,f16", 5), ("s4,s4", 5), ("t4,t2", 5)]
    );
    for (row, rate) in rows.iter().flat_map(|row| [(row, &row["prompt"]), (row, &row["generation"])]) {
        assert!(rate[0].as_f64() >= rate[1].as_f64() && rate[1].as_f64() > Some(0.0), "{row}");
    }
    let said = |options: &[&str]| String::from_utf8(run(options).stderr).unwrap();
    assert!(said(&["--depth", "1024"]).contains("--depth 1024 and --tokens 32: expected at most"));
    assert!(said(&["no-such-file"]).contains("no-such-file: no such file or folder"));
    assert!(said(&["--op", "scores"]).contains("cannot be used with"));
    assert!(said(&["--kv", "t9"]).contains("t9"));
}

#[test]
fn every_help_text_shows_an_example() {
    let folder = tempfile::tempdir().unwrap();
    for command in
        ["demo", "generate", "eval", "encode", "decode", "inspect", "codecs", "plan", "tune", "bench"]
    {
        let output = tqkv(folder.path(), &[command, "--help"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.contains(&format!("\n  tqkv {command}")),
            "{command}: {text}"
        );
    }
    assert!(tqkv(folder.path(), &["--version"]).status.success());
}

#[test]
fn files_are_the_same_on_every_level_and_a_bad_level_is_named() {
    let folder = folder();
    let at = folder.path();
    let run = |level: &str, args: &[&str]| tqkv_with(at, args, ("TQKV_LEVEL", level));
    for codec in ["s4", "t3", "i8", "q4_0"] {
        let mut files = Vec::new();
        for level in tqkv_simd::Level::available() {
            let level = level.name().name();
            let encode = run(level, &["encode", "--force", "--codec", codec, "in.npy", "x.tqk"]);
            assert!(encode.status.success(), "{encode:?}");
            assert!(run(level, &["decode", "--force", "x.tqk", "x.npy"]).status.success());
            files.push((fs::read(at.join("x.tqk")).unwrap(), fs::read(at.join("x.npy")).unwrap()));
        }
        assert!(files.iter().all(|file| *file == files[0]), "{codec}");
    }
    for args in [&["encode", "--codec", "s4", "in.npy", "y.tqk"][..], &["decode", "x.tqk", "y.npy"]] {
        let output = run("mmx", args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && message.contains("TQKV_LEVEL: unknown level"),
            "{message}"
        );
    }
}

#[test]
fn plan_knows_units_windows_latents_and_the_model_context() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--memory"];
    assert!(error(at, &[&shape[..], &["34"]].concat(), 2).contains("a number and a unit: B, KB"));
    let rows = json(at, &[&shape[..], &["34GB"]].concat())["rows"].clone();
    let codecs: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| row["codec_k"].as_str().unwrap()).collect();
    assert!(["f16", "t4", "t3", "t2"].iter().all(|codec| codecs.contains(codec)), "{codecs:?}");
    let config = r#"{"num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 512,
        "sliding_window_pattern": 6, "max_position_embeddings": 8192}"#;
    fs::write(at.join("config.json"), config).unwrap();
    let args = ["plan", "--config", "config.json", "--kv", "s4", "--memory", "64MiB"];
    let plan = json(at, &args);
    assert_eq!((&plan["windowed_layers"], &plan["window"]), (&5.into(), &512.into()));
    let row = &plan["rows"][0];
    assert_eq!((&row["bytes_per_token"], &row["bytes_per_token_past_window"]), (&3168.into(), &528.into()));
    assert_eq!((&row["max_tokens"], &plan["model_context"]), (&8192.into(), &8192.into()));
    let text = String::from_utf8(tqkv(at, &args).stdout).unwrap();
    assert!(text.contains("8,192 (the model's)") && text.contains("newest 512 tokens"), "{text}");
    let piped =
        crate::support::piped(at, &["plan", "--config", "-", "--kv", "s4", "--json"], config.as_bytes());
    assert!(piped.status.success(), "{piped:?}");
}

/// A plan with tiers holds more tokens than the pair alone.
#[test]
fn plan_counts_tiers() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "4", "--kv-heads", "2", "--head-dim", "128", "--memory", "64MiB"];
    let written = "n4 tier=4096:n3 tier=16384:n2";
    let plan = json(at, &[&shape[..], &["--kv", "n4", "--kv", "n2", "--kv", written]].concat());
    let number = |row: usize, name: &str| plan["rows"][row][name].as_u64().unwrap();
    let [n4, n2, tiered] = [0, 1, 2].map(|row| number(row, "max_tokens"));
    assert!(n4 < tiered && tiered < n2, "{plan}");
    assert_eq!(number(2, "bytes_per_token"), number(1, "bytes_per_token"), "the oldest tier grows");
    assert_eq!((&plan["rows"][2]["policy"], &plan["rows"][0]["policy"]), (&written.into(), &Value::Null));
    let text = String::from_utf8(tqkv(at, &[&shape[..], &["--kv", written]].concat()).stdout).unwrap();
    assert!(text.contains(&format!("\n{written} ")), "{text}");
    for (extra, expected) in [
        (["--kv", "s4 tier=9:q4_0"], "s4 pages cannot go cold as q4_0"),
        (["--kv", "s4 spill=9:/tmp"], "files are not planned: expected no spill="),
        (["--kv", "s4 tier=9"], "AFTER:K,V"),
        (["--ram", "4KiB"], "cannot be used with"),
    ] {
        let message = error(at, &[&shape[..], &extra].concat(), 2);
        assert!(message.contains(expected), "{extra:?}: {message}");
    }
}

#[test]
fn export_writes_a_flat_file_that_plan_reads() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shipped");
    let eight = json(at, &["export", "--target", "mcu", model, "eight.tqlm"]);
    assert_eq!((&eight["bits"], &eight["ram"]), (&8.into(), &532_480.into()));
    let bytes = fs::read(at.join("eight.tqlm")).unwrap();
    assert_eq!(eight["flash_bytes"], bytes.len() as u64);
    assert_eq!(&bytes[..4], b"TQLM");
    let four = json(at, &["export", "--target", "mcu", "--bits", "4", "--ram", "64KiB", model, "four.tqlm"]);
    assert!(four["flash_bytes"].as_u64().unwrap() < eight["flash_bytes"].as_u64().unwrap() * 54 / 100);

    let plan = json(at, &["plan", "--ram", "520KiB", "--firmware-model", "eight.tqlm", "--kv", "s4,s3"]);
    assert_eq!((&plan["flash_bytes"], &plan["work_bytes"]), (&eight["flash_bytes"], &eight["work_bytes"]));
    let row = eight["rows"].as_array().unwrap().iter().find(|row| row["codec_v"] == "s3").unwrap();
    assert_eq!(plan["rows"][0]["tokens"], row["tokens"]);
    assert!(row["tokens"].as_u64().unwrap() >= 1024, "{row}");

    for (args, what) in [
        (vec!["export", "--target", "mcu", "nowhere", "out"], "nowhere"),
        (vec!["export", "--target", "pdp11", model, "out"], "pdp11"),
        (vec!["export", "--target", "mcu", model, "eight.tqlm"], "exists, --force"),
        (vec!["export", "--target", "mcu", "--bits", "3", model, "out"], "8, 4"),
        (vec!["plan", "--ram", "1KiB", "--firmware-model", "in.npy"], "in.npy"),
        (vec!["plan", "--firmware-model", "eight.tqlm"], "--ram"),
    ] {
        assert!(error(at, &args, 2).contains(what), "{args:?}");
    }
    fs::write(at.join("bad.tqlm"), &bytes[..1000]).unwrap();
    assert!(error(at, &["plan", "--ram", "1KiB", "--firmware-model", "bad.tqlm"], 2).contains("1000 bytes"));
    assert!(!at.join("out").exists());
}

//! `tqkv demo`, `generate` and `eval`: field names, consistent outputs, errors.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tqkv_model::shipped;

use crate::printed::number;
use crate::support::{error, json, tqkv, tqkv_with};

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Caches that encode every token at once.
const EVERY_TOKEN: [&str; 6] =
    ["--kv", "i8 hot=0 sinks=0", "--kv", "s4 hot=0 sinks=0", "--kv", "s2 hot=0 sinks=0"];

pub(crate) fn rows(value: &Value) -> &Vec<Value> {
    value["results"].as_array().unwrap()
}

#[test]
fn eval_and_generate_run_formats_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let eval = ["eval", "--context", "256", "--windows", "2"];
    let report =
        json(at, &[&eval[..], &["--kv", "p3", "--kv-cache-dtype", "tq3", "--kv", "tq_k4v3"]].concat());
    let results = rows(&report);
    let kv: Vec<_> = results.iter().map(|row| row["kv"].as_str().unwrap()).collect();
    assert_eq!(kv, ["f16,f16", "p3,p3", "tq3,tq3", "turbo4k,turbo3v"]);
    // Four layers of one KV head of head dim 128 take the bytes of their blocks and nothing else.
    for (row, slot) in results[1..].iter().zip([52.0 + 52.0, 52.0 + 52.0, 72.0 + 52.0]) {
        assert!((number(row, "cache_bytes_per_token") - 4.0 * slot).abs() < 1e-9, "{report}");
    }
    assert!(number(&results[1], "kl_to_f16") > number(&results[2], "kl_to_f16"), "{report}");
    let generate = ["generate", "--prompt", "fn main() {", "--tokens", "8"];
    let report = json(at, &[&generate[..], &["--cache-type-k", "tq3", "--cache-type-v", "tq3"]].concat());
    assert_eq!((&rows(&report)[0]["kv"], &rows(&report)[0]["tokens"]), (&"tq3,tq3".into(), &8.into()));
    for (args, expected) in [
        (vec!["eval", "--kv", "tq9"], "'tq9' is neither a preset"),
        (
            vec!["eval", "--kv", "tq3 tier=256:t2"],
            "'tier=256:t2' is not valid for the yardstick 'tq3', which no cache stores",
        ),
        (vec!["demo", "--kv", "p4"], "demo: no cache stores p4,p4"),
        (
            vec!["generate", "--prompt", "a", "--sequences", "2", "--kv", "p4"],
            "--sequences: no cache stores p4,p4",
        ),
    ] {
        let message = error(at, &args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

const EVAL_FIELDS: [&str; 10] = [
    "bits_per_value",
    "cache_bytes_per_token",
    "kl_of_windows",
    "kl_p99",
    "kl_p999",
    "kl_to_f16",
    "kv",
    "nll_delta",
    "perplexity",
    "top1_agreement",
];

#[test]
fn eval_prints_f16_first_and_narrower_caches_predict_worse() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args = ["eval", "--context", "256", "--windows", "2"];
    let report = json(at, &[&args[..], &EVERY_TOKEN, &["--kv", "f16"]].concat());
    assert_eq!(parts(&report), ["context", "model", "results", "seconds", "windows"]);
    assert_eq!((&report["model"], &report["context"]), (&shipped::NAME.into(), &256.into()));
    let results = rows(&report);
    let kv: Vec<_> = results.iter().map(|row| row["kv"].as_str().unwrap()).collect();
    assert_eq!(kv, ["f16,f16", "i8,i8", "s4,s4", "s2,s2"], "f16 first and once");
    assert_eq!(names(&results[0]), EVAL_FIELDS);
    assert_eq!(results[1]["policy"], "i8 hot=0 sinks=0");
    assert_eq!((number(&results[0], "kl_to_f16"), number(&results[0], "top1_agreement")), (0.0, 1.0));
    for pair in results.windows(2) {
        assert!(number(&pair[1], "kl_to_f16") > number(&pair[0], "kl_to_f16"), "{report}");
        assert!(number(&pair[1], "top1_agreement") <= number(&pair[0], "top1_agreement"), "{report}");
        let bytes = |row| number(row, "cache_bytes_per_token");
        assert!(bytes(&pair[1]) < bytes(&pair[0]), "{report}");
    }
    let delta = (number(&results[3], "perplexity") / number(&results[0], "perplexity")).ln();
    assert!((number(&results[3], "nll_delta") - delta).abs() < 1e-12);
}

/// Each text is a row with its text as the name, in the order of the command.
#[test]
fn eval_compares_policies() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let base = ["eval", "--context", "512", "--windows", "1"];
    let texts = ["n4 hot=0 sinks=0", "n2 hot=0 sinks=0"];
    let decay = "n4 tier=128:n3 tier=256:n2 hot=0 sinks=0";
    let layers = "n4 layer-kv=boundary:1:i8 hot=0 sinks=0";
    let policies = ["--kv", texts[0], "--kv", texts[1], "--kv", decay, "--kv", layers];
    let report = json(at, &[&base[..], &policies, &["--attention-error"]].concat());
    let results = rows(&report);
    let called: Vec<_> = results.iter().map(|row| (row["kv"].as_str(), row["policy"].as_str())).collect();
    let n4 = Some("n4,n4");
    assert_eq!(called[..2], [(Some("f16,f16"), None), (n4, Some(texts[0]))]);
    assert_eq!(called[2..], [(Some("n2,n2"), Some(texts[1])), (n4, Some(decay)), (n4, Some(layers))]);
    let bits = |i: usize| number(&results[i], "bits_per_value");
    assert!((16.0..17.0).contains(&bits(0)) && (4.0..5.0).contains(&bits(1)), "{report}");
    assert!(bits(2) < bits(3) && bits(3) < bits(1) && bits(1) < bits(4), "{report}");
    let errors: Vec<_> = results.iter().map(|row| number(row, "attention_error")).collect();
    assert!(errors[0] == 0.0 && errors[4] < errors[1] && errors[1] < errors[3], "{errors:?}");
    assert!(errors[3] < errors[2], "{errors:?}");
    // Token by token: a whole window is cut where pages turn cold, and short pieces meet codes in int8.
    let stepwise = |spill: &str| {
        let text = format!("{}{spill}", texts[0]);
        let report = json(at, &[&base[..], &["--step", "1", "--kv", &text]].concat());
        rows(&report)[1].clone()
    };
    let (kept, spilled) = (stepwise(""), stepwise(&format!(" spill=128:{}", at.display())));
    assert_eq!(spilled["kl_to_f16"], kept["kl_to_f16"], "the same codes");
    assert!(number(&spilled, "bits_per_value") < number(&kept, "bits_per_value"));
    assert_eq!(fs::read_dir(at).unwrap().count(), 0, "the file has no name");
}

/// Token by token, as in generation: codes, scales, integer logits and sums are equal on every instruction
/// set. The predictions are therefore equal too.
#[test]
fn generation_predicts_alike_on_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["eval", "--context", "160", "--windows", "1", "--step", "1", "--json"];
    let kv = ["s4", "s2", "i8", "t4", "t2", "q4_0"].map(|codec| format!("{codec} hot=8"));
    let kv: Vec<_> = kv.iter().flat_map(|kv| ["--kv", kv]).collect();
    let predictions = |level: &str| {
        let output = tqkv_with(folder.path(), &[&args[..], &kv].concat(), ("TQKV_LEVEL", level));
        assert!(output.status.success(), "{level}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        // The first row is f16, whose pages do not guarantee equal bits.
        let rows = rows(&report)[1..].iter();
        rows.map(|row| (number(row, "perplexity"), number(row, "cache_bytes_per_token"))).collect::<Vec<_>>()
    };
    let portable = predictions("portable");
    for level in tqkv_simd::Level::available().skip(1) {
        let name = level.name().name();
        assert_eq!(predictions(name), portable, "{name}");
    }
}

#[test]
fn eval_options_reach_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("text.txt"), &shipped::HELDOUT_TEXT[4096..4096 + 600]).unwrap();
    let base = ["eval", "--text", "text.txt", "--context", "256", "--windows", "2", "--kv"];
    let kl = |settings: &str| {
        let text = format!("s2 hot=0 sinks=0 {settings}");
        let report = json(at, &[&base[..], &[&text]].concat());
        number(&rows(&report)[1], "kl_to_f16")
    };
    let plain = kl("centring=off scale-mode=preserving");
    for settings in [
        "centring=on scale-mode=preserving",
        "centring=off scale-mode=raw",
        "centring=off scale-mode=preserving seed=7",
    ] {
        assert_ne!(kl(settings), plain, "{settings}");
    }
    // A hot window as long as the context leaves nothing to compress, so there is no note.
    let message = error(at, &[&base[..], &["s2 hot=256"]].concat(), 2);
    assert!(
        message.contains("nothing would be compressed") && message.contains("--context 264"),
        "{message}"
    );
    assert!(error(at, &["eval", "--context", "64"], 2).contains("expected --context 72 or more"));
    let report = json(at, &[&base[..], &["s2", "--layers"]].concat());
    let cosines: Vec<f64> =
        rows(&report)[1]["layer_cosine"].as_array().unwrap().iter().map(|c| c.as_f64().unwrap()).collect();
    assert!(cosines.len() == 4 && cosines.iter().all(|c| (0.8..1.0).contains(c)), "{cosines:?}");
}

/// Names in a report. It also has the memory use on systems that report it.
pub(crate) fn parts(report: &Value) -> Vec<&str> {
    let peak = "peak_resident_bytes";
    assert_eq!(report[peak].as_u64().is_some_and(|bytes| bytes > 0), cfg!(target_os = "linux"), "{report}");
    let [weights, embedding] = ["weight_bytes", "embedding_bytes"];
    assert!(
        number(report, weights) > number(report, embedding) && number(report, embedding) > 0.0,
        "{report}"
    );
    names(report).into_iter().filter(|name| ![peak, weights, embedding].contains(name)).collect()
}

#[test]
fn eval_compares_attention_scores_head_by_head() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args = ["eval", "--context", "256", "--windows", "2", "--attention"];
    let args = [&args[..], &EVERY_TOKEN].concat();
    let report = json(at, &args);
    let results = rows(&report);
    assert_eq!(names(&results[0]), EVAL_FIELDS, "f16 is what others are compared with");
    let mean = |row: &Value, name: &str| {
        let scores = row["scores"].as_array().unwrap();
        assert_eq!(scores.len(), 4 * 2, "4 layers of 2 query heads");
        assert!(scores.iter().all(|head| head["queries"] == 2 * 4), "one of 64 tokens: {row}");
        scores.iter().map(|head| number(head, name)).sum::<f64>() / scores.len() as f64
    };
    for name in ["cosine", "top1", "top5"] {
        let [i8, s4, s2] = [1, 2, 3].map(|row: usize| mean(&results[row], name));
        assert!(i8 >= s4 && s4 >= s2 && s2 > 0.3, "{name}: {i8} {s4} {s2}");
    }
    assert!(mean(&results[1], "cosine") > 0.9999 && mean(&results[3], "cosine") < 0.999);
    for row in &results[1..] {
        assert!(mean(row, "top5") >= mean(row, "top1"), "{row}");
        assert!(number(row, "kl_p999") >= number(row, "kl_p99"), "{row}");
    }
    let text = String::from_utf8(tqkv(at, &args).stdout).unwrap();
    assert!(text.contains("[s2 hot=0 sinks=0] attention scores") && text.contains("top-5"), "{text}");
}

const GENERATE_FIELDS: [&str; 11] = [
    "cache_bytes",
    "f16_bytes",
    "kv",
    "ms_per_token",
    "prefill_seconds",
    "prefill_tokens_per_second",
    "prompt_tokens",
    "stop",
    "text",
    "tokens",
    "tokens_per_second",
];

#[test]
fn generate_streams_what_its_json_holds() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let prompt = std::str::from_utf8(&shipped::HELDOUT_TEXT[..300]).unwrap();
    let args = ["generate", "--prompt", prompt, "--tokens", "40"];
    let report = json(at, &args);
    assert_eq!(parts(&report), ["model", "prompt", "results"]);
    let row = &rows(&report)[0];
    assert_eq!(names(row), GENERATE_FIELDS);
    assert_eq!((&row["kv"], &row["tokens"]), (&"s4,s4".into(), &40.into()));
    assert_eq!((&row["stop"], &row["prompt_tokens"]), (&"length".into(), &300.into()));
    let (ms, rate) = (number(row, "ms_per_token"), number(row, "tokens_per_second"));
    assert!((ms * rate / 1000.0 - 1.0).abs() < 1e-9, "{ms} {rate}");
    let product = number(row, "prefill_tokens_per_second") * number(row, "prefill_seconds");
    assert!((product - 300.0).abs() < 1e-6, "{product}");
    let streamed = tqkv(at, &args);
    let streamed = String::from_utf8(streamed.stdout).unwrap();
    assert!(streamed.starts_with(row["text"].as_str().unwrap()), "{streamed}");
    assert!(streamed.contains("cache bytes") && streamed.contains("s4,s4 balanced"), "{streamed}");
    let threads = |count| json(at, &[&args[..], &["--threads", count]].concat());
    assert_eq!(rows(&threads("1"))[0]["text"], rows(&threads("3"))[0]["text"]);
}

/// The first Ctrl-C ends the text, not the command: the report follows, and the shell sees the signal.
#[test]
#[cfg(unix)]
fn generate_ends_with_its_report_when_interrupted() {
    use std::io::Read;
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_tqkv"))
        .args(["generate", "--prompt", "The borrow checker", "--tokens", "1000", "--kv", "t4 effort=best"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0; 1];
    stdout.read_exact(&mut text).unwrap();
    let kill = std::process::Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    assert!(kill.unwrap().success());
    stdout.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.contains("ms/token") && text.contains("cache bytes"), "{text}");
}

#[test]
fn generate_shows_several_settings_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let prompt = std::str::from_utf8(&shipped::HELDOUT_TEXT[..300]).unwrap();
    let args = ["generate", "--prompt", prompt, "--tokens", "16", "--kv", "f16", "--kv", "s2,s3"];
    let report = json(at, &args);
    let bytes: Vec<_> = rows(&report).iter().map(|row| number(row, "cache_bytes")).collect();
    assert!(bytes.len() == 2 && bytes[1] < 0.8 * bytes[0], "{bytes:?}");
    let text = String::from_utf8(tqkv(at, &args).stdout).unwrap();
    assert!(text.contains("[f16,f16]\n") && text.contains("[s2,s3]\n"), "{text}");
    let types = [&args[..5], &["--cache-type-k", "s2", "--cache-type-v", "s3"]].concat();
    let alias = json(at, &types);
    assert_eq!(rows(&alias)[0]["text"], rows(&report)[1]["text"]);
    let drawn = |seed: &str| {
        let sampling = ["--temperature", "1.5", "--sample-seed", seed];
        rows(&json(at, &[&args[..5], &sampling].concat()))[0]["text"].clone()
    };
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
}

#[test]
fn sequences_are_those_of_their_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let prompt = std::str::from_utf8(&shipped::HELDOUT_TEXT[..300]).unwrap();
    let args = ["generate", "--prompt", prompt, "--tokens", "12", "--temperature", "1", "--kv", "f16"];
    let report = json(at, &[&args[..], &["--kv", "s3", "--sequences", "3"]].concat());
    assert_eq!(parts(&report), ["model", "prompt", "results", "sequences"]);
    assert_eq!((&report["sequences"], rows(&report).len()), (&3.into(), 2));
    for row in rows(&report) {
        let fields = [
            "cache_bytes",
            "f16_bytes",
            "kv",
            "ms_per_step",
            "prefill_seconds",
            "prefill_tokens_per_second",
            "prompt_tokens",
            "texts",
            "tokens",
            "tokens_per_second",
            "unshared_bytes",
        ];
        assert_eq!(names(row), fields);
        assert!(number(row, "cache_bytes") < number(row, "unshared_bytes"), "{row}");
        assert_eq!((&row["tokens"], row["texts"].as_array().unwrap().len()), (&36.into(), 3));
        assert!(number(row, "tokens_per_second") > 0.0);
    }
    let [f16, s3] = [0, 1].map(|row| number(&rows(&report)[row], "cache_bytes"));
    assert!(s3 < f16, "{s3} {f16}");
    let texts = rows(&report)[0]["texts"].as_array().unwrap();
    assert_ne!(texts[0], texts[1]);
    for (i, text) in texts.iter().enumerate() {
        let seed = (42 + i).to_string();
        let alone = json(at, &[&args[..], &["--sample-seed", &seed]].concat());
        assert_eq!(&rows(&alone)[0]["text"], text, "sequence {i}");
    }
    let text = tqkv(at, &[&args[..], &["--sequences", "2"]].concat()).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("[f16,f16, sequence 2]\n") && text.contains("f16 ratio"), "{text}");
    assert_eq!(text.lines().nth(1).unwrap().split_whitespace().last(), Some("1.00"), "{text}");
}

/// A row is on stdout while the next one is measured. A stopped eval has therefore printed its finished rows.
#[test]
#[cfg(unix)]
fn eval_prints_its_rows_as_they_come() {
    use std::io::{BufRead, BufReader};
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_tqkv"))
        .args(["eval", "--windows", "1", "--kv", "s4", "--kv", "t4 effort=best", "--step", "1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let shown: Vec<_> = lines.by_ref().take(3).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(shown[1].starts_with("K,V") && shown[1].contains("perplexity"), "{shown:?}");
    assert!(shown[2].starts_with("f16,f16 ") && shown[2].contains("100.00 %"), "{shown:?}");
    assert!(lines.next().is_none_or(|line| line.starts_with("s4,s4")), "only whole rows");
}

#[test]
fn f16_is_as_large_as_itself() {
    let folder = tempfile::tempdir().unwrap();
    for tokens in ["2", "40"] {
        let args = ["generate", "--prompt", "The borrow checker", "--tokens", tokens, "--kv", "f16"];
        let text = String::from_utf8(tqkv(folder.path(), &args).stdout).unwrap();
        let row = text.lines().find(|line| line.starts_with("f16,f16")).unwrap();
        assert_eq!(row.split_whitespace().last(), Some("1.00"), "{text}");
    }
}

/// f16 pages in a cold tier are no longer f16: the ratio counts the real bytes under any name of the row.
#[test]
fn f16_that_goes_cold_is_smaller_than_f16() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let prompt = std::str::from_utf8(&shipped::HELDOUT_TEXT[..800]).unwrap();
    let decay = "f16 tier=128:q8_0";
    let args = ["generate", "--prompt", prompt, "--tokens", "4", "--kv", "f16", "--kv", decay];
    for extra in [&[][..], &["--sequences", "2"]] {
        let args = [&args[..], extra].concat();
        let report = json(at, &args);
        let called: Vec<_> = rows(&report).iter().map(|row| row["policy"].as_str()).collect();
        assert_eq!(called, [None, Some(decay)]);
        let [f16, cold] = [0, 1]
            .map(|row| &rows(&report)[row])
            .map(|row| [number(row, "f16_bytes"), number(row, "cache_bytes")]);
        assert!((f16[0] / f16[1] - 1.0).abs() < 0.005 && cold[0] == f16[0], "{report}");
        assert!((1.2..1.9).contains(&(cold[0] / cold[1])), "{report}");
        let text = String::from_utf8(tqkv(at, &args).stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with(decay)).unwrap();
        assert!(line.ends_with(&format!("{:.2}", cold[0] / cold[1])), "{text}");
    }
}

/// A model with sliding layers runs with its windows: its caches stop growing. Its figures compare with f16
/// under the same windows.
#[test]
fn sliding_models_are_run_past_their_window() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let llama = "\"LlamaForCausalLM\"\n ],\n \"model_type\": \"llama\"";
    let mistral = "\"MistralForCausalLM\"\n ],\n \"sliding_window\": 128";
    model_folder(at, "sliding", llama, mistral);
    let args = ["eval", "--context", "1024", "--windows", "1"];
    let full = json(at, &[&args[..], &["--kv", "s4"]].concat());
    let args = [&args[..], &["--model", "sliding", "--kv"]].concat();
    let sliding = json(at, &[&args[..], &["s4"]].concat());
    let bytes = |report: &Value, row: usize| number(&rows(report)[row], "cache_bytes_per_token");
    assert!(
        bytes(&sliding, 0) < 0.55 * bytes(&full, 0) && bytes(&sliding, 1) < bytes(&sliding, 0),
        "{sliding}"
    );
    assert!((0.0..0.05).contains(&number(&rows(&sliding)[1], "kl_to_f16")), "{sliding}");
    let sinks = json(at, &[&args[..], &["s4 sinks=64"]].concat());
    let kl = |report: &Value| rows(report)[1]["kl_to_f16"].clone();
    assert_eq!(kl(&sinks), kl(&sliding), "sinks are not seen beside windows");
    let message = error(at, &[&args[..], &["s4 hot=200"]].concat(), 2);
    assert!(message.contains("window of 128 tokens: expected 200"), "{message}");
    let prompt = std::str::from_utf8(&shipped::HELDOUT_TEXT[..700]).unwrap();
    let args = ["generate", "--model", "sliding", "--prompt", prompt, "--tokens", "20", "--kv", "f16"];
    let made = json(at, &args);
    let row = &rows(&made)[0];
    assert_eq!((&row["tokens"], &row["f16_bytes"]), (&20.into(), &row["cache_bytes"]), "{made}");
    let plan = json(at, &["plan", "--config", "sliding", "--kv", "s4"]);
    assert_eq!((&plan["windowed_layers"], &plan["window"]), (&4.into(), &128.into()));
}

#[test]
fn demo_measures_and_generates() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args = ["demo", "--context", "128", "--windows", "1", "--tokens", "8", "--kv", "s3"];
    let report = json(at, &args);
    assert_eq!(names(&report), ["context", "model", "prompt", "results", "windows"]);
    let mut fields = [
        &EVAL_FIELDS[..],
        &GENERATE_FIELDS[..],
        &["ratio", "long_step_ms", "long_step_spread", "long_speedup"],
    ]
    .concat();
    fields.sort_unstable();
    fields.dedup();
    assert_eq!(rows(&report).len(), 2);
    for row in rows(&report) {
        assert_eq!(names(row), fields);
    }
    let (f16, s3) = (&rows(&report)[0], &rows(&report)[1]);
    let ratio = number(f16, "cache_bytes_per_token") / number(s3, "cache_bytes_per_token");
    assert!((number(s3, "ratio") - ratio).abs() < 1e-12 && ratio > 1.0);
    // A time is present if its spread is narrow, and a speed-up if both times are.
    for row in [f16, s3] {
        assert_eq!(row["long_step_ms"].is_null(), number(row, "long_step_spread") > 1.5, "{row}");
        assert_eq!(
            row["long_speedup"].is_null(),
            row["long_step_ms"].is_null() || f16["long_step_ms"].is_null()
        );
    }
    if !s3["long_speedup"].is_null() {
        let speedup = number(f16, "long_step_ms") / number(s3, "long_step_ms");
        assert!((number(s3, "long_speedup") - speedup).abs() < 1e-9 && speedup > 0.0);
    }
    let text = String::from_utf8(tqkv(at, &args).stdout).unwrap();
    for part in ["perplexity", "KL to f16", "top-1", "ratio", "spread", "s3,s3", "[prompt]"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A copy of the shipped model with one change to its config.json.
fn model_folder(at: &Path, name: &str, from: &str, to: &str) {
    let folder = at.join(name);
    fs::create_dir(&folder).unwrap();
    let config = String::from_utf8(shipped::CONFIG.to_vec()).unwrap();
    assert!(config.contains(from), "{config}");
    fs::write(folder.join("config.json"), config.replacen(from, to, 1)).unwrap();
    fs::write(folder.join("model.safetensors"), shipped::WEIGHTS).unwrap();
}

#[test]
fn a_model_folder_runs_as_the_shipped_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    model_folder(at, "copy", "LlamaForCausalLM", "LlamaForCausalLM");
    let args = ["eval", "--context", "64", "--windows", "1", "--kv", "s4 hot=0"];
    let copy = json(at, &[&args[..], &["--model", "copy"]].concat());
    assert_eq!(copy["model"], "copy");
    assert_eq!(copy["results"], json(at, &args)["results"]);
}

#[test]
fn bad_input_is_one_line_with_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    model_folder(at, "deeper", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
    model_folder(at, "foreign", "LlamaForCausalLM", "MambaForCausalLM");
    fs::create_dir(at.join("empty")).unwrap();
    fs::write(at.join("short.txt"), "too short").unwrap();
    let long = "x".repeat(1000);
    let generate = |extra: &[&'static str]| [&["generate", "--prompt", "A trait"], extra].concat();
    for (args, expected) in [
        (vec!["generate"], "--prompt"),
        (vec!["generate", "--prompt", ""], "at least one token"),
        (vec!["generate", "--prompt", &long], "context is 1024"),
        (generate(&["--tokens", "2000"]), "context is 1024"),
        (generate(&["--temperature=-1"]), "0 (greedy) or a positive number"),
        (generate(&["--sequences", "0"]), "expected 1 to 1024"),
        (generate(&["--threads", "0"]), "expected 1 or more"),
        (generate(&["--kv", "turbo9"]), "safe-lowbit"),
        (generate(&["--cache-type-k", "q5_1"]), "expected f16"),
        (generate(&["--cache-type-k", "s4", "--kv", "s4"]), "cannot be used with"),
        (
            generate(&["--model", "missing"]),
            "missing: no such file or folder: expected a .gguf file, or a folder with config.json",
        ),
        (generate(&["--model", "empty"]), "config.json"),
        (generate(&["--model", "deeper"]), "deeper: tensor model.layers.4."),
        (generate(&["--model", "foreign"]), "accepted: LlamaForCausalLM"),
        (vec!["eval", "--text", "missing.txt"], "missing.txt"),
        (vec!["eval", "--text", "short.txt"], "too few for a window of"),
        (vec!["eval", "--text", "short.txt", "--windows", "2"], "too few for a window of"),
        (vec!["eval", "--windows", "0"], "0 windows"),
        (vec!["eval", "--windows", "201"], "expected 1 to 200"),
        (vec!["eval", "--context", "2048"], "context is 1024"),
        (vec!["eval", "--context", "1"], "nothing would be compressed"),
        (vec!["eval", "--context", "64"], "expected --context 72 or more"),
        (vec!["eval", "--kv", "s4 centring=maybe"], "centring=auto|on|off"),
        (vec!["eval", "--kv", "s4 tier=256"], "tier=AFTER:K,V, such as tier=256:s2,s2"),
        (vec!["eval", "--kv", "s4 tier=256:q4_0"], "cache spec: s4 pages cannot go cold as q4_0"),
        (vec!["eval", "--kv", "n4 tier=256:n3 tier=256:n2"], "not in order of age"),
        (vec!["eval", "--kv", "s4 spill=x"], "spill=AFTER:FOLDER, such as spill=4096:/tmp"),
        (generate(&["--kv", "s4 spill=9:missing/folder"]), "missing/folder"),
        (generate(&["--kv", "s4 layer-kv=boundary:i8"]), "tail:N:K,V, boundary:N:K,V, gradient"),
        (vec!["eval", "--kv", "s4 cold=2"], "cold= is not valid: expected kv=, layer-kv=, hot="),
        (vec!["eval", "--kv", "t4 tier=64:t3"], "t4 tier=64:t3: cache spec: t4 pages"),
        (vec!["eval", "--kv", "s4 scale-mode=best"], "raw|preserving"),
        (vec!["eval", "--hot", "8"], "'--hot' found; caches have it in --kv: --kv \"s4 hot=32\""),
        (vec!["demo", "--tokens", "1000"], "context is 1024"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.starts_with("tqkv: ") && message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_one_line_and_auto_goes_on_without() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let base = ["generate", "--prompt", "The", "--tokens", "4", "--kv", "s4"];
    let auto = tqkv(at, &[&base[..], &["--device", "auto"]].concat());
    let note = String::from_utf8(auto.stderr).unwrap();
    assert!(auto.status.success(), "{note}");
    if note.is_empty() {
        // This machine has a GPU, so the cache must work on it too.
        let cuda = tqkv(at, &[&base[..], &["--device", "cuda"]].concat());
        assert!(cuda.status.success() && cuda.stderr.is_empty());
        return;
    }
    let why = if cfg!(feature = "cuda") { "CUDA" } else { "built without the feature cuda" };
    assert!(note.starts_with("tqkv: --device auto: ") && note.contains(why), "{note}");
    assert!(note.ends_with("; running on the CPU\n") && note.lines().count() == 1, "{note}");
    let line = error(at, &[&base[..], &["--device", "cuda"]].concat(), 2);
    assert!(line.starts_with("tqkv: --device cuda: ") && line.contains(why), "{line}");
    for command in [&base[..], &["eval", "--windows", "1"]] {
        assert!(
            error(at, &[command, &["--device", "tpu"]].concat(), 2).contains("expected cpu, cuda, cuda:N")
        );
    }
}

/// Encodes a model, replaces its source with the result, and runs it from the file layer by layer.
#[test]
fn weights_are_compressed_streamed_and_coded_at_load() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/shipped");
    let model = shipped.to_str().unwrap();
    let compress =
        |out: &str, more: &[&str]| json(at, &[&["weights", "compress", model, out], more].concat());
    let windows = ["--report", "--windows", "1", "--context", "256"];
    let four = compress("four", &windows);
    assert_eq!(
        (&four["codec"], &four["embedding"], &four["group"]),
        (&"t4".into(), &"i8".into(), &64.into())
    );
    let two = compress("two", &[&["--bits", "2", "--group", "128"], &windows[..]].concat());
    for (report, bits) in [(&four, 4.25), (&two, 2.125)] {
        assert!((bits..bits + 0.3).contains(&number(report, "bits_per_weight")), "{report}");
        assert!(number(report, "bytes") < number(report, "bytes_before") / 3.0, "{report}");
    }
    let perplexity = |report: &Value, when: &str| number(&report["perplexity"], when);
    assert_eq!(perplexity(&four, "before"), perplexity(&two, "before"));
    assert!(perplexity(&four, "after") < 1.03 * perplexity(&four, "before"), "{four}");
    assert!(perplexity(&two, "after") > perplexity(&four, "after"), "{two}");

    let plan = json(at, &["plan", "--config", "four", "--weights"]);
    let weights = &plan["weights"];
    let [all, layer, beside] = ["all", "largest_layer", "beside_layers"].map(|name| number(weights, name));
    assert_eq!((all, all), (number(&four, "bytes"), 4.0 * layer + beside), "four equal layers: {plan}");
    assert_eq!(number(weights, "streamed"), 2.0 * layer + beside);

    let write = ["generate", "--model", "four", "--prompt", "The borrow checker", "--tokens", "24"];
    let text = |report: &Value| rows(report)[0]["text"].clone();
    let streamed = [&write[..], &["--stream-weights"]].concat();
    let plain = [&["generate", "--model", model], &write[3..]].concat();
    let at_load = [&plain[..], &["--weight-bits", "4"]].concat();
    let [whole, streamed, coded, plain] =
        [&write[..], &streamed, &at_load, &plain].map(|args| json(at, args));
    assert_eq!((text(&whole), text(&whole)), (text(&streamed), text(&coded)));
    let held = |report: &Value| number(report, "weight_bytes");
    assert_eq!((held(&whole), held(&streamed)), (all, 2.0 * layer + beside));
    assert!(held(&coded) == all && held(&plain) > 3.0 * all, "{} and {}", held(&coded), held(&plain));

    let refused = |args: &[&str], code, said: &str| {
        let error = error(at, args, code);
        assert!(error.contains(said), "{error}");
    };
    refused(&["weights", "compress", model, "four"], 2, "exists: expected");
    refused(&["weights", "compress", "four", "five", "--bits", "3"], 2, "coded as i8 already");
    refused(&["weights", "compress", model, "five", "--codec", "s9"], 2, "s9");
    refused(&[&write[..], &["--weight-bits", "4"]].concat(), 2, "already");
    refused(&[&at_load[..], &["--stream-weights"]].concat(), 2, "cannot be used with");
    refused(&["generate", "--prompt", "a", "--weight-bits", "5"], 2, "5");
    assert!(!at.join("five").exists());
}

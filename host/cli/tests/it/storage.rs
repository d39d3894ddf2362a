//! `tqkv basis`, and arrays of keys and values that are stored in a basis.

use std::fs;

use tqkv_model::Model;

use crate::printed::number;
use crate::support::{error, json, tqkv};

#[test]
fn a_basis_of_too_few_tokens_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let few = error(at, &["basis", "--context", "64", "--windows", "1", "out.tqb"], 2);
    assert!(few.contains("tokens for a basis of"), "{few}");
    assert!(!at.join("out.tqb").exists());
    assert!(tqkv(at, &["basis"]).status.code() == Some(2));
}

#[test]
fn sums_of_two_runs_make_one_basis() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = tqkv_model::shipped::HELDOUT_TEXT;
    fs::write(at.join("a.txt"), &text[..2048]).unwrap();
    fs::write(at.join("b.txt"), &text[4096..6144]).unwrap();
    let learn = ["basis", "--context", "512"];
    let run = |more: &[&str]| json(at, &[&learn[..], more].concat());
    run(&["--text", "a.txt", "--sums", "a.tqa", "a.tqb"]);
    run(&["--text", "b.txt", "--sums", "b.tqa", "b.tqb"]);
    let both = run(&["--text", "a.txt", "--text", "b.txt", "both.tqb"]);
    let merged = run(&["--merge", "a.tqa", "--merge", "b.tqa", "merged.tqb"]);
    let added = run(&["--text", "b.txt", "--merge", "a.tqa", "added.tqb"]);
    assert_eq!([&merged["tokens"], &added["tokens"]], [&both["tokens"]; 2]);
    // The sums of a merge are in the order of its files.
    assert_ne!(
        merged["basis"],
        json(at, &["basis", "--context", "512", "--merge", "a.tqa", "one.tqb"])["basis"]
    );
    let said = |more: &[&str]| error(at, &[&learn[..], more].concat(), 2);
    assert!(said(&["--merge", "a.tqb", "x.tqb"]).contains("a.tqb: moments: not moments"));
    assert!(said(&["--apart", "--merge", "a.tqa", "x.tqb"]).contains("a.tqa: basis does not fit"));
    let mut damaged = fs::read(at.join("a.tqa")).unwrap();
    damaged[5000] ^= 1;
    fs::write(at.join("damaged.tqa"), damaged).unwrap();
    assert!(said(&["--merge", "damaged.tqa", "x.tqb"]).contains("SHA-256 does not match"));
    assert!(!at.join("x.tqb").exists());
}

#[test]
fn plan_compares_loading_with_computing_anew() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--tokens", "32768"];
    let links = ["--kv", "t4", "--storage", "1.1", "--bandwidth", "7GB/s", "--bandwidth", "100MB/s"];
    let args = [&shape[..], &links, &["--prefill", "5000", "--cores", "4"]].concat();
    let plan = json(at, &args);
    assert!(plan["bandwidth"].is_null() && plan["rows"][0]["read_ms"].is_null());
    let loading = &plan["loading"];
    assert_eq!(number(loading, "compute_seconds"), 32768.0 / 5000.0);
    let forms = loading["forms"].as_array().unwrap();
    let names: Vec<_> = forms.iter().map(|form| form["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["f16,f16", "t4,t4", "stored at 1.1 bits"]);
    for form in forms {
        let (bytes, decode) = (number(form, "bytes"), number(form, "decode_seconds"));
        for (link, bandwidth) in form["links"].as_array().unwrap().iter().zip([7e9, 1e8]) {
            let load = number(link, "load_seconds");
            assert!((load - decode.max(bytes / bandwidth)).abs() < 1e-9, "{form}");
            assert_eq!(link["loads_to_pay"].is_null(), load >= 32768.0 / 5000.0, "{form}");
        }
    }
    // A tenth of the bytes: from the slow link it is loaded before it could be computed, and f16 is not.
    assert!(
        forms[0]["links"][1]["loads_to_pay"].is_null() && number(&forms[2]["links"][1], "loads_to_pay") > 0.0
    );
    assert!(forms[0]["sooner_than_f16_to"].is_null() && number(&forms[2], "sooner_than_f16_to") > 1e9);
    let text = String::from_utf8(tqkv(at, &args).stdout).unwrap();
    for word in ["before f16 to", "load at 7.0 GB/s", "load at 100 MB/s", "pays after"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let many = [&shape[..], &["--kv", "t4", "--bandwidth", "7GB/s", "--bandwidth", "3GB/s"]].concat();
    assert!(error(at, &many, 2).contains("expected --storage too"));
    let alone = [&shape[..], &["--prefill", "10"]].concat();
    assert!(error(at, &alone, 2).contains("--storage"));
}

/// An f32 array of version 1.
fn npy(shape: [usize; 4], value: impl Fn(usize) -> f32) -> Vec<u8> {
    let [a, b, c, d] = shape;
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({a}, {b}, {c}, {d}), }}");
    text.extend(std::iter::repeat_n(' ', 127 - 10 - text.len()));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend((0..a * b * c * d).flat_map(|i| value(i).to_le_bytes()));
    bytes
}

fn floats(npy: &[u8]) -> Vec<f32> {
    npy[128..].as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

#[test]
fn arrays_become_chunks_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    json(at, &["basis", "--context", "512", "--windows", "2", "m.tqb"]);
    let config = Model::shipped().unwrap().config().kv_shape();
    let shape = [config.num_layers, 300, config.num_kv_heads, config.head_dim];
    let wave = |i: usize| (i as f32 * 0.37).sin() * (1.0 + (i % 13) as f32);
    // The codes have the same noise for all vectors, so keys must be about as large as those of the model.
    fs::write(at.join("k.npy"), npy(shape, |i| wave(i) / 10.0)).unwrap();
    fs::write(at.join("v.npy"), npy(shape, |i| wave(i + 5))).unwrap();
    let encode = ["encode", "--storage", "5", "--basis", "m.tqb", "--values"];
    let made = json(at, &[&encode[..], &["v.npy", "k.npy", "kv.tqc"]].concat());
    assert_eq!((&made["tokens"], &made["first_position"]), (&300.into(), &0.into()));
    let bytes = fs::metadata(at.join("kv.tqc")).unwrap().len();
    assert_eq!(made["file_bytes"], bytes);
    let values = 2 * shape.iter().product::<usize>();
    assert!((number(&made, "bits_per_value") - 8.0 * bytes as f64 / values as f64).abs() < 1e-9);
    let decode = ["decode", "--basis", "m.tqb", "--values"];
    json(at, &[&decode[..], &["v2.npy", "kv.tqc", "k2.npy"]].concat());
    for (from, to) in [("k.npy", "k2.npy"), ("v.npy", "v2.npy")] {
        let (from, to) = (fs::read(at.join(from)).unwrap(), fs::read(at.join(to)).unwrap());
        assert_eq!(from[..128], to[..128]);
        let (from, to) = (floats(&from), floats(&to));
        assert_eq!(from[..4 * config.head_dim], to[..4 * config.head_dim], "first tokens");
        let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let error = square(&mut from.iter().zip(&to).map(|(a, b)| a - b));
        let all = square(&mut from.iter().copied());
        assert!(error < 0.02 * all, "{error} of {all}");
    }

    let said = |command: &[&str], more: &[&str]| error(at, &[command, more].concat(), 2);
    fs::write(at.join("short.npy"), npy([shape[0], 200, shape[2], shape[3]], wave)).unwrap();
    assert!(said(&encode, &["short.npy", "k.npy", "x.tqc"]).contains("short.npy: shape"));
    assert!(said(&["encode", "--storage", "1"], &["k.npy", "x.tqc"]).contains("--basis"));
    assert!(said(&["encode", "--storage", "1", "--codec", "t2"], &["k.npy", "x.tqc"]).contains("--codec"));
    assert!(said(&["encode"], &["k.npy", "x.tqc"]).contains("--codec"));
    let far = ["v.npy", "k.npy", "x.tqc", "--position", "18446744073709551615"];
    assert!(said(&encode, &far).contains("--position"));
    for own in ["v.npy", "m.tqb"] {
        assert!(said(&encode, &["v.npy", "k.npy", own, "--force"]).contains("is the input itself"), "{own}");
    }
    assert!(said(&decode, &["y.npy", "kv.tqc", "y.npy"]).contains("need a file each"));
    // The file of the values exists, so the keys are not written either.
    assert!(said(&decode, &["v2.npy", "kv.tqc", "y.npy"]).contains("v2.npy: exists"));
    let whole = fs::read(at.join("kv.tqc")).unwrap();
    fs::write(at.join("cut.tqc"), &whole[..whole.len() - 9]).unwrap();
    fs::write(at.join("none.tqc"), []).unwrap();
    assert!(said(&decode, &["x.npy", "cut.tqc", "y.npy"]).contains("cut.tqc: chunk: truncated"));
    assert!(said(&decode, &["x.npy", "none.tqc", "y.npy"]).contains("holds no chunk"));
    assert!(said(&decode, &["x.npy", "k.npy", "y.npy"]).contains("not a chunk"));
    assert!(["x.tqc", "x.npy", "y.npy"].iter().all(|name| !at.join(name).exists()));
}

#[test]
fn plan_counts_stored_tokens_and_their_basis() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "30", "--kv-heads", "3", "--head-dim", "64", "--memory", "1GB"];
    let report = json(at, &[&shape[..], &["--kv", "f16", "--storage", "1", "--storage", "2.1"]].concat());
    // One matrix of 384 columns per layer, with its scales, means and factors.
    assert_eq!(report["basis_bytes"], 30 * (384 * 386 + 2 * 192 + 8));
    let rows: Vec<_> = report["rows"].as_array().unwrap().iter().skip(1).collect();
    for (row, bits) in rows.iter().zip([1.0, 2.1]) {
        let bytes = number(row, "bytes_per_token");
        let budget = 30.0 * 384.0 * bits / 8.0;
        assert!(bytes >= budget && bytes < budget + 2.0, "{row}");
        assert_eq!(number(row, "max_tokens"), (1e9 / bytes).floor());
    }
    assert!(rows[0]["other"].as_str().unwrap().ends_with("stored at 1 bit"));
    let odd =
        ["plan", "--layers", "2", "--kv-heads", "1", "--head-dim", "72", "--kv", "f16", "--storage", "1"];
    assert!(error(at, &odd, 2).contains("multiples of 16"));
}

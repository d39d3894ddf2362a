//! `tqkv basis` and `tqkv eval --storage`: a basis learned from one part of the held-out text, judged on another.

use std::fs;

use serde_json::Value;
use tqkv_model::{Model, shipped};

use crate::support::{error, json, tqkv};

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} in {value}"))
}

#[test]
fn a_learned_basis_stores_nearer_than_codes_alone_in_fewer_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = shipped::HELDOUT_TEXT;
    fs::write(at.join("learn.txt"), &text[..text.len() / 2]).unwrap();
    fs::write(at.join("judge.txt"), &text[text.len() / 2..]).unwrap();
    let learned =
        json(at, &["basis", "--text", "learn.txt", "--context", "512", "--windows", "8", "out.tqb"]);
    assert_eq!(number(&learned, "tokens"), 8.0 * 508.0);
    assert_eq!(fs::metadata(at.join("out.tqb")).unwrap().len() as f64, number(&learned, "bytes"));
    let eval =
        ["eval", "--text", "judge.txt", "--context", "512", "--windows", "2", "--kv", "t2", "--kv", "t1"];
    let storage = ["--storage", "2.1", "--storage", "1.1"];
    let based = json(at, &[&eval[..], &storage, &["--basis", "out.tqb"]].concat());
    let plain = json(at, &[&eval[..], &storage].concat());
    assert_eq!((&based["basis"], &based["prefix"]), (&learned["basis"], &384.into()));
    assert!(plain.get("basis").is_none());
    let rows = |report: &Value| report["results"].as_array().unwrap().clone();
    let names: Vec<_> = rows(&based).iter().map(|row| row["store"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["f16", "t2,t2", "t1,t1", "storage 2.1", "storage 1.1"]);
    let kl: Vec<f64> = rows(&based).iter().map(|row| number(row, "kl_to_f16")).collect();
    let bits: Vec<f64> = rows(&based).iter().map(|row| number(row, "bits_per_value")).collect();
    assert!(kl[0] == 0.0 && bits[0] == 16.0);
    for (codes, storage) in [(1, 3), (2, 4)] {
        assert!(kl[storage] < 0.7 * kl[codes] && bits[storage] < bits[codes], "{kl:?}, {bits:?}");
    }
    let without = number(&rows(&plain)[3], "kl_to_f16");
    assert!(kl[3] < 0.7 * without, "without a basis: {without}, {kl:?}");
}

/// A basis is judged on text that it has not seen: not by default, and not where the windows are cut in another way.
#[test]
fn an_evaluation_on_the_text_that_was_learned_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    json(at, &["basis", "--context", "512", "--windows", "2", "own.tqb"]);
    let eval = ["eval", "--context", "256", "--windows", "1", "--kv", "t2", "--storage", "1", "--basis"];
    json(at, &[&eval[..], &["own.tqb"]].concat());
    let text = shipped::HELDOUT_TEXT;
    fs::write(at.join("seen.txt"), &text[text.len() / 2 + 300..text.len() / 2 + 900]).unwrap();
    let said = error(at, &[&eval[..], &["own.tqb", "--text", "seen.txt"]].concat(), 2);
    assert!(said.contains("own.tqb: it was learned from 1 of these 1 windows"), "{said}");
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("bad.tqb"), b"no basis at all, but long enough to hold a digest").unwrap();
    let eval = ["eval", "--context", "64", "--windows", "1"];
    let said = |more: &[&str]| error(at, &[&eval[..], more].concat(), 2);
    assert!(said(&["--storage", "9"]).contains("accepted are 0.5 to 5"));
    assert!(said(&["--storage", "1", "--basis", "bad.tqb"]).contains("bad.tqb: basis: not a basis"));
    assert!(said(&["--storage", "1", "--basis", "none.tqb"]).contains("none.tqb"));
    assert!(said(&["--storage", "1", "--prefix", "63"]).contains("accepted are 1 to 62"));
    assert!(said(&["--basis", "bad.tqb"]).contains("--storage"));
    assert!(said(&["--storage", "1", "--layers"]).contains("--layers"));
    let few = error(at, &["basis", "--context", "64", "--windows", "1", "out.tqb"], 2);
    assert!(few.contains("tokens for a basis of"), "{few}");
    assert!(!at.join("out.tqb").exists());
    assert!(tqkv(at, &["basis"]).status.code() == Some(2));
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
    // A basis expects keys about as large as the model's: noise is the same for all that it holds.
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
    // The values' file is there: nor are keys written.
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
    // One matrix of 384 columns a layer, with its scales, means and factors.
    assert_eq!(report["basis_bytes"], 30 * (384 * 386 + 2 * 192 + 8));
    let rows: Vec<_> = report["rows"].as_array().unwrap().iter().skip(1).collect();
    for (row, bits) in rows.iter().zip([1.0, 2.1]) {
        let bytes = number(row, "bytes_per_token");
        let budget = 30.0 * 384.0 * bits / 8.0;
        assert!(bytes >= budget && bytes < budget + 2.0, "{row}");
        assert_eq!(number(row, "max_tokens"), (1e9 / bytes).floor());
    }
    assert!(rows[0]["other"].as_str().unwrap().contains("stored at 1 bits"));
    let odd =
        ["plan", "--layers", "2", "--kv-heads", "1", "--head-dim", "72", "--kv", "f16", "--storage", "1"];
    assert!(error(at, &odd, 2).contains("multiples of 16"));
}

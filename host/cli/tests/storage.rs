//! `tqkv basis` and `tqkv eval --storage`: a basis learned from one part of the held-out text, judged on another.

use std::fs;

use serde_json::Value;
use tqkv_model::shipped;

mod support;

use support::{error, json, tqkv};

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
    assert!(few.contains("tokens to learn a basis"), "{few}");
    assert!(!at.join("out.tqb").exists());
    assert!(tqkv(at, &["basis"]).status.code() == Some(2));
}

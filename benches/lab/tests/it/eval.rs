//! `tqkv-lab eval`: variants of the shipped model, and stored prefixes. The basis is learned from one part of
//! the held-out text and measured on another.

use std::fs;

use serde_json::Value;
use tqkv_model::shipped;

use crate::printed::number;
use crate::product::product;
use crate::support::{error, json, tqkv as lab};

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn rows(value: &Value) -> &Vec<Value> {
    value["results"].as_array().unwrap()
}

/// The figures of each layer's KV heads stand next to its hidden states.
#[test]
fn eval_shows_what_encoding_does_to_each_layer() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args = ["eval", "--context", "512", "--windows", "2", "--layers", "--biased-keys", "30"];
    let args = [&args[..], &["--kv", "s4", "--kv", "s2"]].concat();
    let report = json(at, &args);
    let heads = |row: usize| rows(&report)[row]["heads"].as_array().unwrap();
    let fields =
        ["allocated_bytes", "centred_energy", "key_error", "kv_head", "layer", "means", "value_error"];
    for (row, result) in rows(&report).iter().enumerate() {
        assert!(heads(row).len() == 4 && heads(row).iter().all(|head| names(head) == fields), "{report}");
        let bytes: f64 = heads(row).iter().map(|head| number(head, "allocated_bytes")).sum();
        assert!((bytes / 512.0 / number(result, "cache_bytes_per_token") - 1.0).abs() < 1e-9, "{report}");
    }
    for (layer, [f16, s4, s2]) in (0..4).map(|layer| (layer, [0, 1, 2].map(|row| &heads(row)[layer]))) {
        assert_eq!((number(s4, "layer"), number(s4, "kv_head")), (layer as f64, 0.0));
        for error in ["key_error", "value_error"] {
            assert!(number(f16, error) < 1e-6, "{report}");
            assert!(number(s2, error) > 2.0 * number(s4, error), "{report}");
        }
        assert!((0.005..0.02).contains(&number(s4, "value_error")), "{report}");
        // Keys of the first and the last layer have a constant, which centring subtracts.
        let biased = layer == 0 || layer == 3;
        assert_eq!(number(s4, "centred_energy") < 0.1, biased, "{report}");
        assert_eq!(number(f16, "means"), 0.0, "{report}");
    }
    let text = String::from_utf8(lab(at, &args).stdout).unwrap();
    let table = text.split("[s4,s4]\n").nth(1).unwrap();
    let cells: Vec<Vec<&str>> = table.lines().take(5).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0].join(" "), "layer cosine key error value error energy left bytes");
    let layer = |i: usize| (cells[i + 1][0], cells[i + 1][3], cells[i + 1].len());
    let value_error = |i: usize| format!("{:.6}", number(&heads(1)[i], "value_error"));
    assert_eq!((layer(0), layer(3)), (("0", &*value_error(0), 6), ("3", &*value_error(3), 6)), "{text}");
}

/// The constant in the keys costs accuracy, and centring removes that cost.
#[test]
fn biased_keys_are_as_good_as_any_once_centred() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["eval", "--context", "512", "--windows", "1", "--kv"];
    let perplexity = |words: &[&str]| {
        let report = json(folder.path(), &[&args[..], words].concat());
        [0, 1].map(|row| number(&rows(&report)[row], "perplexity"))
    };
    let [_, plain] = perplexity(&["s4"]);
    let [f16, centred] = perplexity(&["s4", "--biased-keys", "30"]);
    assert!((centred / plain - 1.0).abs() < 0.02 && (f16 / plain - 1.0).abs() < 0.02, "{centred} {plain}");
    let [_, off] = perplexity(&["s4 centring=off", "--biased-keys", "30"]);
    assert!(off > 1.2 * plain, "{off} {plain}");
}

/// Channels that are scaled up lose more at the same bits.
#[test]
fn outliers_reach_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let base = ["eval", "--context", "256", "--windows", "2", "--kv"];
    let plain = "s2 hot=0 sinks=0 centring=off scale-mode=preserving";
    let kl = |extra: &[&str]| {
        let report = json(folder.path(), &[&base[..], &[plain], extra].concat());
        number(&rows(&report)[1], "kl_to_f16")
    };
    assert_ne!(kl(&["--outlier-variant"]), kl(&[]));
}

#[test]
fn variants_that_cannot_be_made_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../host/model/shipped");
    for (args, expected) in [
        (vec!["--biased-keys", "inf"], "it must be 0 or a positive number"),
        (vec!["--biased-keys", "-3"], "-3"),
        (vec!["--model", model, "--stream-weights", "--biased-keys", "2"], "--biased-keys"),
        (vec!["--model", model, "--stream-weights", "--outlier-variant"], "--outlier-variant"),
    ] {
        let message = error(folder.path(), &[&["eval"], &args[..]].concat(), 2);
        assert!(message.contains(expected) && !message.contains("unexpected"), "{args:?}: {message}");
    }
}

#[test]
fn a_learned_basis_stores_nearer_than_codes_alone_in_fewer_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = shipped::HELDOUT_TEXT;
    fs::write(at.join("learn.txt"), &text[..text.len() / 2]).unwrap();
    fs::write(at.join("judge.txt"), &text[text.len() / 2..]).unwrap();
    let [learn, out] = ["learn.txt", "out.tqb"].map(|name| at.join(name).display().to_string());
    let learned = product(&["basis", "--text", &learn, "--context", "512", "--windows", "8", &out]);
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

/// A basis is measured on text that it was not learned from: by default, and with windows cut in another way.
#[test]
fn an_evaluation_on_the_text_that_was_learned_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let own = at.join("own.tqb").display().to_string();
    product(&["basis", "--context", "512", "--windows", "2", &own]);
    let eval = ["eval", "--context", "256", "--windows", "1", "--kv", "t2", "--storage", "1", "--basis"];
    json(at, &[&eval[..], &["own.tqb"]].concat());
    let text = shipped::HELDOUT_TEXT;
    fs::write(at.join("seen.txt"), &text[text.len() / 2 + 300..text.len() / 2 + 900]).unwrap();
    let said = error(at, &[&eval[..], &["own.tqb", "--text", "seen.txt"]].concat(), 2);
    assert!(said.contains("own.tqb: it was learned from 1 of 1 window,"), "{said}");
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("bad.tqb"), b"no basis at all, but long enough to hold a digest").unwrap();
    let eval = ["eval", "--context", "64", "--windows", "1"];
    let said = |more: &[&str]| error(at, &[&eval[..], more].concat(), 2);
    assert!(said(&["--storage", "9"]).contains("expected 0.5 to 5"));
    assert!(said(&["--storage", "1", "--basis", "bad.tqb"]).contains("bad.tqb: basis: not a basis"));
    assert!(said(&["--storage", "1", "--basis", "none.tqb"]).contains("none.tqb"));
    assert!(said(&["--storage", "1", "--prefix", "63"]).contains("expected 1 to 62"));
    assert!(said(&["--basis", "bad.tqb"]).contains("--storage"));
    assert!(said(&["--storage", "1", "--layers"]).contains("--layers"));
    assert!(said(&["--storage", "1.1", "--kv", "tq3"]).contains("--storage: no cache stores tq3,tq3"));
}

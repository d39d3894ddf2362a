//! `tqkv-lab needle`: retrieval at a length that tests can afford, the fields, and the errors.

use serde_json::Value;

use crate::printed::number;
use crate::support::{error, json, tqkv as lab};

const FIELDS: [&str; 12] = [
    "cosine",
    "exact_weight",
    "gb_per_s",
    "kv",
    "ms_per_query",
    "planned_bytes",
    "resident_bytes",
    "retrieval",
    "strength",
    "tokens",
    "top_logit",
    "weight",
];

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn needle(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    json(folder.path(), &[&["needle", "--needles", "8"], args].concat())
}

#[test]
fn needles_are_found_in_the_bytes_that_plan_says() {
    let lengths = ["--tokens", "4096,8192", "--kv", "f16", "--kv", "s4", "--kv", "s2"];
    let report = needle(&[&lengths[..], &["--kv-heads", "2", "--heads", "6"]].concat());
    assert_eq!(names(&report), ["head_dim", "heads", "kv_heads", "needles", "results"]);
    let results = report["results"].as_array().unwrap();
    let settings: Vec<_> =
        results.iter().map(|row| (row["tokens"].as_u64().unwrap(), row["kv"].as_str().unwrap())).collect();
    let pairs = ["f16,f16", "s4,s4", "s2,s2"];
    assert_eq!(settings, [4096, 8192].map(|n| pairs.map(|pair| (n, pair))).concat());
    for row in results {
        assert_eq!(names(row), FIELDS);
        assert_eq!((number(row, "retrieval"), number(row, "top_logit")), (1.0, 1.0), "{row}");
        assert!(number(row, "exact_weight") > 0.99 && number(row, "cosine") > 0.9, "{row}");
        // At 2 bits, logits of needles have errors of a few tenths.
        assert!((number(row, "weight") - number(row, "exact_weight")).abs() < 0.02, "{row}");
        assert!(number(row, "ms_per_query") > 0.0 && number(row, "gb_per_s") > 0.0, "{row}");
        // What is planned is a bound, which leaves room for pages that are not full.
        let ratio = number(row, "resident_bytes") / number(row, "planned_bytes");
        assert!((0.97..=1.0).contains(&ratio), "{row}");
    }
    for row in results.chunks(3) {
        assert!(row[0]["exact_weight"] == row[2]["exact_weight"], "the same tokens for every cache");
        assert!(number(&row[0], "cosine") > number(&row[1], "cosine"));
        assert!(number(&row[1], "cosine") > number(&row[2], "cosine"));
        assert!(number(&row[1], "resident_bytes") < 0.5 * number(&row[0], "resident_bytes"));
    }
}

#[test]
fn strength_seed_and_windows_count() {
    let of = |kv: &str, extra: &[&str]| {
        let base = ["--tokens", "4096", "--kv", kv];
        needle(&[&base[..], extra].concat())["results"][0].clone()
    };
    let row = |extra: &[&str]| of("s2", extra);
    let plain = row(&[]);
    assert!((number(&plain, "strength") - (4096f64.ln() + 5.5)).abs() < 1e-5, "{plain}");
    let again = row(&[]);
    assert_eq!((&plain["cosine"], &plain["exact_weight"]), (&again["cosine"], &again["exact_weight"]));
    assert_ne!(row(&["--data-seed", "2"])["exact_weight"], plain["exact_weight"]);
    assert_eq!(of("s2 seed=9", &[])["exact_weight"], plain["exact_weight"]);
    let weak = row(&["--strength", "4"]);
    assert!(number(&weak, "exact_weight") < 0.1 && number(&weak, "retrieval") < 1.0, "{weak}");
    let bytes = |row: &Value, name| number(row, name);
    let hot = of("s2 hot=1024 sinks=128", &[]);
    for name in ["resident_bytes", "planned_bytes"] {
        assert!(bytes(&hot, name) > bytes(&plain, name) + 900.0 * 400.0, "{name}: {hot} {plain}");
    }
}

#[test]
fn the_table_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["needle", "--tokens", "4096", "--kv", "balanced", "--needles", "4"];
    let text = String::from_utf8(lab(folder.path(), &args).stdout).unwrap();
    assert!(text.starts_with("4 needles, 1 query heads over 1 KV heads of 128 coordinates\n"), "{text}");
    for part in ["retrieval", "planned", "GB/s", "s4,s4 balanced", "4,096", "100.0 %"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn bad_input_is_one_line_with_code_2() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["--tokens", "0"][..], "expected 1 to 4294967296"),
        (&["--tokens", "some"], "'some' is not a whole number"),
        (&["--tokens", "128", "--needles", "129"], "129 needles do not fit 128 tokens"),
        (&["--tokens", "4096", "--needles", "0"], "expected 1 to 1024"),
        (&["--tokens", "4096", "--heads", "3", "--kv-heads", "2"], "3 query heads do not divide among 2"),
        (&["--tokens", "4096", "--head-dim", "100", "--kv", "s4"], "head_dim 100"),
        (&["--tokens", "4096", "--head-dim", "0", "--kv", "s4"], "head_dim 0"),
        (&["--tokens", "4096", "--strength", "nan"], "expected 0 to 1000"),
        (&["--tokens", "4096", "--kv", "turbo9"], "safe-lowbit"),
        (&["--tokens", "1024", "--kv", "tq3"], "needle: no cache stores tq3,tq3"),
        (&["--kv", "t4 tier=64:t3"], "t4 tier=64:t3: cache spec: t4 pages"),
        (&["--tokens", "64", "--kv", "s4"], "expected --tokens 72 or more"),
    ] {
        let message = error(folder.path(), &[&["needle"], args].concat(), 2);
        assert!(message.starts_with("tqkv-lab: ") && message.contains(expected), "{args:?}: {message}");
    }
}

//! `tqkv tune`: a policy within a budget, as a table and as JSON, and what it refuses.

use serde_json::Value;

use crate::printed::number;
use crate::support::{error, json, tqkv};

/// Little to measure.
const SMALL: [&str; 5] = ["tune", "--kinds", "prose,copy", "--text-tokens", "512"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [&SMALL[..], more].concat()
}

fn candidates(report: &Value) -> &[Value] {
    report["candidates"].as_array().unwrap()
}

/// The chosen policy is a candidate, the one that loses least, and every command reads it.
#[test]
fn tune_prints_a_policy_within_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let report = json(at, &SMALL);
    let expected = [
        "budget_bytes",
        "budget_bytes_per_token",
        "candidates",
        "context",
        "heads",
        "kv",
        "model",
        "ranked_layers",
        "seconds",
        "text_tokens",
        "texts",
    ];
    let parts: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(parts, expected);
    assert_eq!(
        (&report["context"], &report["text_tokens"], &report["texts"]),
        (&1024.into(), &512.into(), &1.into())
    );
    assert_eq!(report["heads"].as_array().unwrap().len(), 4, "one KV head in each of four layers");
    let budget = report["budget_bytes"].as_u64().unwrap();
    let rows = candidates(&report);
    assert!(rows.iter().all(|row| row["bytes"].as_u64().unwrap() <= budget), "{report}");
    let tiny = rows.iter().find(|row| row["kv"] == "tiny").unwrap();
    assert_eq!((tiny["bytes"].as_u64().unwrap(), &tiny["may_be_chosen"]), (budget, &false.into()));
    let chosen = rows.iter().find(|row| row["kv"] == report["kv"]).unwrap();
    let open = rows.iter().filter(|row| row["may_be_chosen"] == true);
    assert!(open.clone().all(|row| number(chosen, "kl") <= number(row, "kl")), "{report}");
    for row in rows {
        let kinds = row["kl_of_kinds"].as_array().unwrap();
        assert_eq!((kinds[0]["text"].as_str(), kinds[1]["text"].as_str()), (Some("prose"), Some("copy")));
        let mean = (number(&kinds[0], "kl") * number(&kinds[1], "kl")).sqrt();
        assert!((number(row, "kl") - mean).abs() < 1e-9, "{row}");
        assert!(number(row, "kl") > 0.0, "{row}");
    }
    let kv = report["kv"].as_str().unwrap();
    let eval = json(at, &["eval", "--context", "256", "--windows", "1", "--kv", kv]);
    assert_eq!(eval["results"][1]["policy"], *kv);
    let said = tqkv(at, &["generate", "--prompt", "fn ", "-n", "2", "--kv", kv]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let table = String::from_utf8(tqkv(at, &SMALL).stdout).unwrap();
    let last: Vec<_> = table.lines().rev().take(2).collect();
    assert_eq!(last, [format!("TQKV_KV='{kv}'"), format!("--kv '{kv}'")]);
    assert!(
        table.contains("of 4 KV heads look back") && table.contains("bytes/token      KL   prose    copy"),
        "{table}"
    );
}

/// A budget is bytes per token or a memory, and the candidates take what it allows.
#[test]
fn tune_takes_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let per_token = json(at, &with(&["--bytes", "400", "--context", "8000"]));
    assert_eq!(
        (per_token["budget_bytes"].as_u64(), per_token["context"].as_u64()),
        (Some(3_200_000), Some(8000))
    );
    let memory = json(at, &with(&["--memory", "3.2MB", "--context", "8000"]));
    let kv = |report: &Value| candidates(report).iter().map(|row| row["kv"].clone()).collect::<Vec<_>>();
    assert_eq!(kv(&memory), kv(&per_token));
    let rich = json(at, &with(&["--bytes", "5000"]));
    assert!(candidates(&rich).iter().any(|row| row["kv"] == "i8,t4 hot=16"), "{rich}");
}

#[test]
fn tune_refuses_what_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("short.txt"), "a few words and no more of them").unwrap();
    for (more, expected) in [
        (
            &["--bytes", "90"][..],
            "a budget of 92160 bytes for 1024 tokens is too small: 'm2,t2 hot=16' takes the least",
        ),
        (&["--bytes", "0"], "0"),
        (&["--memory", "1MB"], "--context"),
        (&["--memory", "1MB", "--bytes", "5", "--context", "9"], "cannot be used with"),
        (&["--memory", "many", "--context", "9"], "'many' is not valid"),
        (&["--texts", "0"], "0"),
        (&["--texts", "4000"], "4000 windows of 512 tokens: expected 1 to"),
        (&["--text", "short.txt"], "too few for a window of 512"),
        (&["--text", "none.txt"], "none.txt"),
        (&["none.gguf"], "none.gguf: no such file or folder"),
    ] {
        let said = error(at, &with(more), 2);
        assert!(said.contains(expected), "{more:?}: {said}");
    }
    let kinds = error(at, &["tune", "--kinds", "songs"], 2);
    assert!(kinds.contains("'songs'") && kinds.contains("expected prose, copy"), "{kinds}");
    let long = error(at, &["tune", "--text-tokens", "2048"], 2);
    assert!(long.contains("windows of 2048 tokens do not fit: the model's context is 1024"), "{long}");
}

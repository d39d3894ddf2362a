//! The figures of documents that any machine reproduces: each is measured again, and must equal the printed
//! one.
//!
//! A few rows by default, all with `TQKV_EXHAUSTIVE=1`.

use std::path::Path;

use serde_json::Value;

use crate::printed::{
    assert_claimed, assert_printed, cells, chosen, document, is_exhaustive, number, rows, run,
};
use crate::support::json;

#[test]
fn the_table_of_quality_is_what_eval_measures() {
    let head = "K,V                  perplexity  KL";
    for row in chosen(rows(&document("docs/quality.md"), head), &["i8,s4", "s4,s4"]) {
        let words: Vec<_> = row.split_whitespace().collect();
        let kv = words[0];
        let figures = words[1..].iter().copied().filter(|word| *word != "%");
        // The name of a preset may follow the pair.
        let figures: Vec<_> = figures.skip_while(|word| word.parse::<f64>().is_err()).collect();
        let report = run(&format!("eval --windows 4 --kv {kv}"));
        let measured = report["results"].as_array().unwrap().last().unwrap();
        let fields = ["perplexity", "kl_to_f16", "top1_agreement", "cache_bytes_per_token"];
        for (field, printed) in fields.iter().zip(figures) {
            let factor = if *field == "top1_agreement" { 100.0 } else { 1.0 };
            let figure = format!("docs/quality.md, {kv}, {field}");
            assert_printed(&figure, printed, factor * number(measured, field));
        }
    }
}

/// A row of M3 in the form of `--kv`: "t4, t2 at 128, hot 16" and similar.
fn policy(row: &str) -> String {
    let mut words = row.split(", ");
    let codec = words.next().unwrap_or_default().to_owned();
    words.fold(codec, |policy, part| {
        let option = if let Some(hot) = part.strip_prefix("hot ") {
            format!("hot={hot}")
        } else if let Some(codec) = part.strip_prefix("last layer ") {
            format!("layer-kv=tail:1:{codec}")
        } else if let Some(codec) = part.strip_prefix("first and last layer ") {
            format!("layer-kv=boundary:1:{codec}")
        } else {
            let (codec, after) = part.split_once(" at ").unwrap_or_else(|| panic!("{row}: {part}"));
            format!("tier={after}:{codec}")
        };
        format!("{policy} {option}")
    })
}

#[test]
fn policies_cost_what_is_printed() {
    assert_eq!(policy("t4, t2 at 128, hot 16"), "t4 tier=128:t2 hot=16");
    if !is_exhaustive() {
        return;
    }
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M3 ")).unwrap().to_owned();
    for row in rows(&section, "| policy | bits | perplexity")
        .iter()
        .map(|row| cells(row))
        .filter(|cells| cells[0] != "f16")
    {
        let policy = policy(&row[0]);
        let args = ["eval", "--windows", "12", "--attention-error", "--kv", &policy];
        let report = json(Path::new(env!("CARGO_MANIFEST_DIR")), &args);
        let measured = report["results"].as_array().unwrap().last().unwrap();
        let fields = ["bits_per_value", "perplexity", "kl_to_f16", "attention_error"];
        for (field, printed) in fields.iter().zip(&row[1..]) {
            assert_printed(&format!("M3, {policy}, {field}"), printed, number(measured, field));
        }
    }
}

/// The comparison with llama.cpp in `docs/quality.md` is the quotient of the rows of M1.
#[test]
fn quality_compares_with_llama_cpp_as_m1_does() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M1 ")).unwrap().to_owned();
    let table = rows(&section, "| K,V | KL");
    let kl = |name: &str| -> f64 {
        let row = table.iter().map(|row| cells(row)).find(|row| row[0] == name);
        row.unwrap_or_else(|| panic!("no row {name}"))[1].parse().unwrap()
    };
    let [scalar, trellis] = ["s4", "t4"].map(|codec| kl("llama.cpp q4_0") / kl(codec));
    let said = format!("`q4_0` loses {scalar:.1} and {trellis:.1} times as much");
    let quality = document("docs/quality.md").replace('\n', " ");
    assert!(quality.contains(&said), "docs/quality.md does not say: {said}");
}

/// The sizes of a cache in README are what `plan` says.
#[test]
fn readme_has_the_sizes_of_plan() {
    let readme = document("README.md");
    let kv = ["f16", "t4", "t2"].map(every_token).join(" ");
    let plan = run(&format!("plan --layers 32 --kv-heads 8 --head-dim 128 --tokens 131072 {kv}"));
    let bytes = plan["rows"].as_array().unwrap().iter().map(|row| number(row, "cache_bytes") / 1e9);
    let [f16, t4, t2] = bytes.collect::<Vec<_>>()[..] else { panic!("three rows") };
    let said = format!(
        "takes {f16:.1} GB in f16. It takes {t4:.1} GB with the codec `t4` and {t2:.1} GB with `t2`."
    );
    assert!(readme.contains(&said), "README does not say: {said}");
}

/// A field of each row of a report, as far as the rows have it.
fn fields(report: &Value, list: &str, field: &str) -> Vec<f64> {
    report[list].as_array().unwrap().iter().filter_map(|row| row[field].as_f64()).collect()
}

#[test]
fn claims_are_what_plan_says() {
    let shape = "plan --layers 1 --kv-heads 1 --head-dim 128 --kv safe-lowbit";
    let plan = run(shape);
    let command = format!("tqkv {shape}");
    assert_claimed(&command, "5.2", fields(&plan, "rows", "f32_ratio")[0]);
    assert_claimed(&command, "196", fields(&plan, "rows", "bytes_per_token")[0]);
    let large = "plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34000MiB --other tq3=52 --kv \"t3 hot=0 sinks=0\"";
    let tokens = fields(&run(large), "rows", "max_tokens");
    let command = format!("tqkv {large}");
    assert_claimed(&command, "551,936", tokens[0]);
    assert_claimed(&command, "535,630", tokens[1]);
}

/// A cache of these codecs that encodes every token at once.
fn every_token(kv: &str) -> String {
    format!("--kv \"{kv} hot=0 sinks=0\"")
}

#[test]
fn claims_are_what_eval_measures() {
    if !is_exhaustive() {
        return;
    }
    for (command, printed) in [
        ("eval --kv experimental-max --kv \"balanced hot=0 sinks=0\"".to_owned(), &["0.048", "0.0038"][..]),
        (
            format!("eval {}", ["s4,s3", "s3,s4", "s3", "s4,s2"].map(every_token).join(" ")),
            &["0.0086", "0.0111", "0.0164", "0.0256"],
        ),
        (
            format!("eval {} --kv \"t3 last:i8 hot=0 sinks=0\"", ["q8_0", "t4"].map(every_token).join(" ")),
            &["0.00002", "0.0020", "0.0060"],
        ),
        ("eval --kv t4 --kv \"t4 hot=16 tier=128:t2\"".to_owned(), &["0.00013", "0.0012"]),
        ("eval --kv p4 --kv tq4".to_owned(), &["0.048", "0.008"]),
        ("eval --kv p3 --kv tq3".to_owned(), &["0.244", "0.035"]),
    ] {
        let measured = fields(&run(&command), "results", "kl_to_f16");
        for (printed, value) in printed.iter().zip(&measured[1..]) {
            assert_claimed(&format!("tqkv {command}"), printed, *value);
        }
    }
}

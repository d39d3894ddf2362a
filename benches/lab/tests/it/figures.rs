//! The figures of MEASURED.md that every machine reproduces. Each is measured again, and must equal the
//! printed one.
//!
//! A few rows by default, all with `TQKV_EXHAUSTIVE=1`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::product::product;
use crate::support::json;

fn is_exhaustive() -> bool {
    std::env::var_os("TQKV_EXHAUSTIVE").is_some_and(|value| value == "1")
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(args: &str) -> Value {
    json(Path::new(env!("CARGO_MANIFEST_DIR")), &args.split_whitespace().collect::<Vec<_>>())
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"))
}

/// The rows of a document below the line that begins with `head`, up to an empty line.
fn rows(text: &str, head: &str) -> Vec<String> {
    let mut lines = text.lines().skip_while(|line| !line.trim().starts_with(head));
    assert!(lines.next().is_some(), "no line begins with {head}");
    let is_row = |line: &&str| !line.trim().is_empty() && !line.starts_with("```");
    lines.take_while(is_row).filter(|line| !line.starts_with("| ---")).map(str::to_owned).collect()
}

/// Cells of a row of a Markdown table.
fn cells(row: &str) -> Vec<String> {
    row.trim().trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('*').to_owned()).collect()
}

/// Returns true if a figure equals the printed one, up to one in the last digit.
fn assert_printed(what: &str, printed: &str, value: f64) {
    let text = printed.trim_end_matches('%').trim().replace(',', "");
    let wanted: f64 = text.parse().unwrap_or_else(|_| panic!("{what}: {printed} is no number"));
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let last = 0.1f64.powi(digits as i32);
    assert!((value - wanted).abs() < 1.5 * last, "{what}: printed is {printed}, measured {value}");
}

/// The rows that this run measures.
fn chosen(rows: Vec<String>, few: &[&str]) -> Vec<String> {
    let is_chosen = |row: &String| {
        is_exhaustive() || few.iter().any(|few| row.trim_start().trim_start_matches("| ").starts_with(few))
    };
    let rows: Vec<_> = rows.into_iter().filter(is_chosen).collect();
    assert!(!rows.is_empty(), "{few:?} is in no row");
    rows
}

#[test]
fn errors_of_trellis_codes_are_what_stats_measures() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M2 ")).unwrap().to_owned();
    for row in chosen(rows(&section, "| codec | bytes | fast"), &["t2 "]) {
        let cells = cells(&row);
        for (effort, printed) in ["fast", "default", "best"].iter().zip(&cells[2..]) {
            let options = format!("--random 20000 --scale-mode mmse --effort {effort} --codec {}", cells[0]);
            let measured = &run(&format!("stats {options}"))["codecs"][0];
            assert_printed(&format!("M2, {options}"), printed, number(measured, "relative_mse"));
            assert_printed("M2, bytes", &cells[1], number(measured, "bytes_per_vector"));
        }
    }
}

#[test]
fn errors_of_sketches_are_what_stats_measures() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M21 ")).unwrap().to_owned();
    // A row of several formats has several figures per cell.
    let single =
        rows(&section, "| codec | bytes | error").into_iter().filter(|row| !cells(row)[0].contains('/'));
    let few: &[&str] = if is_exhaustive() { &[] } else { return };
    for row in chosen(single.collect(), few) {
        let cells = cells(&row);
        let measured =
            &run(&format!("stats --random 200000 --scale-mode raw --codec {}", cells[0]))["codecs"][0];
        let theory = &measured["theory"];
        // The bound is for the squared error of dot products.
        let figures = [
            number(measured, "bytes_per_vector"),
            number(measured, "relative_mse"),
            number(theory, "expected"),
            number(measured, "dot_slope"),
            number(measured, "dot_error"),
        ];
        for (value, printed) in figures.iter().zip(&cells[1..]).filter(|(_, printed)| !printed.is_empty()) {
            assert_printed(&format!("M21, {}", cells[0]), printed, *value);
        }
        if !cells[6].is_empty() {
            assert_printed("M21, bound", &cells[6], number(theory, "bound").sqrt());
        }
    }
}

/// README and the report compare QJL with the scalar code of the same bits at its unbiased scale. The scalar
/// code is as unbiased, and its errors of vectors and dot products are smaller.
#[test]
fn an_unbiased_scale_gives_what_a_bit_of_qjl_buys() {
    let codecs = run("stats --random 4000 --codec s4,p4,s3,p3,s2,p2")["codecs"].clone();
    for pair in codecs.as_array().unwrap().chunks_exact(2) {
        let [scalar, sketch] = pair else { panic!("two") };
        assert_eq!(scalar["scale_mode"], "unbiased");
        assert!((number(scalar, "dot_slope") - 1.0).abs() < 0.004, "{scalar}");
        for error in ["relative_mse", "dot_error", "bytes_per_vector"] {
            assert!(number(scalar, error) < number(sketch, error), "{error}: {scalar} {sketch}");
        }
    }
}

/// The bounds of M25 hold: of vectors by each codec of a preset, and of predictions by the preset.
#[test]
fn presets_stay_within_their_bounds() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M25 ")).unwrap().to_owned();
    let rows: Vec<_> = rows(&section, "| preset | K,V").iter().map(|row| cells(row)).collect();
    let quality = product(&["eval", "--windows", "1"]);
    let presets: Vec<_> = quality["results"].as_array().unwrap().iter().skip(1).collect();
    assert_eq!(rows.len(), presets.len(), "a bound for each preset");
    for (row, measured) in rows.iter().zip(presets) {
        assert_eq!(measured["kv"], row[1].as_str(), "{}", row[0]);
        let bounds: Vec<f64> = row[2..].iter().map(|bound| bound.parse().unwrap()).collect();
        assert!(number(measured, "kl_to_f16") <= bounds[2], "{}: {measured}", row[0]);
        for dim in [64, 128, 256] {
            for (codec, bound) in row[1].split(',').zip(&bounds) {
                let stats = run(&format!("stats --random 1000 --dim {dim} --codec {codec}"));
                let error = number(&stats["codecs"][0], "relative_mse");
                assert!(error <= *bound, "{}: {codec} at {dim} has {error}", row[0]);
            }
        }
    }
}

//! The figures of MEASURED.md that every machine reproduces. Each is measured again, and must equal the
//! printed one.
//!
//! A few rows by default, all with `TQKV_EXHAUSTIVE=1`.

use crate::printed::{
    assert_claimed, assert_printed, cells, chosen, document, is_exhaustive, number, rows, run,
};
use crate::product::product;

#[test]
fn errors_of_trellis_codes_are_what_stats_measures() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M6 ")).unwrap().to_owned();
    for row in chosen(rows(&section, "| codec | bytes | fast"), &["t2 "]) {
        let cells = cells(&row);
        for (effort, printed) in ["fast", "default", "best"].iter().zip(&cells[2..]) {
            let options = format!("--random 20000 --scale-mode mmse --effort {effort} --codec {}", cells[0]);
            let measured = &run(&format!("stats {options}"))["codecs"][0];
            assert_printed(&format!("M6, {options}"), printed, number(measured, "relative_mse"));
            assert_printed("M6, bytes", &cells[1], number(measured, "bytes_per_vector"));
        }
    }
}

#[test]
fn errors_of_sketches_are_what_stats_measures() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M7 ")).unwrap().to_owned();
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
            assert_printed(&format!("M7, {}", cells[0]), printed, *value);
        }
        if !cells[6].is_empty() {
            assert_printed("M7, bound", &cells[6], number(theory, "bound").sqrt());
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

/// The bounds of M5 hold: of vectors by each codec of a preset, and of predictions by the preset.
#[test]
fn presets_stay_within_their_bounds() {
    let section =
        document("MEASURED.md").split("\n## ").find(|text| text.starts_with("M5 ")).unwrap().to_owned();
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

/// Figures of `docs/claims.md`, by the codecs that their command measures.
#[test]
fn claims_are_what_stats_measures() {
    let all = [
        ("tq4,s4,t4", "mean_cosine", &["0.9954", "0.9958", "0.9977"][..]),
        ("tq3,tq4,t3,t4", "relative_mse", &["0.034", "0.009", "0.018", "0.0045"]),
        ("tq3,turbo3v", "relative_mse", &["0.034", "0.034"]),
        ("c25,t2h,c35,t3h", "bytes_per_vector", &["44", "42", "60", "58"]),
    ];
    for (codecs, field, printed) in all.iter().take(if is_exhaustive() { all.len() } else { 1 }) {
        let command = format!("stats --codec {codecs}");
        let measured = run(&command)["codecs"].clone();
        for (row, printed) in measured.as_array().unwrap().iter().zip(*printed) {
            assert_claimed(&format!("tqkv-lab {command}"), printed, number(row, field));
        }
    }
}

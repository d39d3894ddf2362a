//! Runs the complete check on the fake driver. Every row must be right, in order, and written as soon as it
//! is known.
#![cfg(target_os = "linux")]

use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    check: tqkv_gpu::check::CheckArgs,
}

/// Runs the check with these options and returns its verdict and its lines.
fn check(options: &[&str], json: bool) -> (bool, String) {
    let path = std::env::current_exe().unwrap().parent().unwrap().join("libtqkv_gpu_fake.so");
    // SAFETY: it is a library of this workspace, and loading it runs no code. It stays open, because it is
    // now the driver.
    std::mem::forget(unsafe { libloading::Library::new(&path) }.unwrap());
    let line = Line::parse_from([&["check", "--seconds", "0.001"], options].concat());
    let device = tqkv_gpu::check::open(&line.check).unwrap();
    let mut text = String::new();
    let mut write = |line: &str| {
        assert!(line.ends_with('\n') && !line.is_empty());
        text.push_str(line);
        Ok(())
    };
    let is_right = tqkv_gpu::check::run(&device, &line.check, json, &mut write).unwrap();
    (is_right, text)
}

fn rows(options: &[&str]) -> (bool, Vec<Value>) {
    let (is_right, text) = check(options, true);
    (is_right, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn codes_and_attention_of_the_codecs_asked_for_are_right() {
    let (is_right, rows) = rows(&["--codes", "--attend", "--codec", "s3,s2", "--vectors", "16"]);
    assert!(is_right);
    assert_eq!(rows[0]["row"], "device");
    assert_eq!(rows[0].get("commit").map(Value::as_str), Some(option_env!("TQKV_COMMIT")));
    assert!(rows[0]["read_bytes_per_second"].as_f64().unwrap() > 0.0);
    let codes: Vec<_> = rows.iter().filter(|row| row["row"] == "codes").collect();
    assert_eq!(codes.len(), 2 * 3, "two codecs at three head dims");
    assert!(codes.iter().all(|row| row["vectors"] == 16 && row["mismatches"] == 0));
    let attention: Vec<_> = rows.iter().filter(|row| row["row"] == "attention").collect();
    assert_eq!(attention.len(), 3, "pairs of both");
    assert!(attention.iter().all(|row| row["largest_error"].as_f64().unwrap() < 2e-4));
    let weights: Vec<_> = rows.iter().filter(|row| row["row"] == "weights").collect();
    assert_eq!(weights.len(), 2 * 3);
    for element in ["f32", "f16", "bf16"] {
        assert!(weights.iter().all(|row| row["groups"] == 16 && row[format!("{element}_mismatches")] == 0));
    }
    let residuals: Vec<_> = rows.iter().filter(|row| row["row"] == "residuals").collect();
    assert_eq!(residuals.len(), 3);
    assert!(
        residuals.iter().all(|row| row["residuals"] == 16 && row["largest_error"].as_f64().unwrap() < 1e-5)
    );
    assert!(residuals.iter().all(|row| row["f16_mismatches"] == 0 && row["bf16_mismatches"] == 0));
    assert_eq!(rows.len(), 1 + 6 + 6 + 3 + 3);
}

#[test]
fn speed_has_f16_and_the_codecs_with_shares_of_what_the_memory_does() {
    let (is_right, rows) = rows(&["--speed", "--codec", "s2", "--shape", "1x128x1x2x64,2x64+1x128x1x1x64"]);
    assert!(is_right);
    let (kernels, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row["row"] == "kernel");
    let names: Vec<_> = kernels.iter().map(|row| [&row["kernel"], &row["codec"], &row["element"]]).collect();
    let decoded = ["f32", "f16", "bf16"].map(|element| ["weight_decode", "s2", element].map(Value::from));
    assert!(names[..3].iter().zip(&decoded).all(|(got, want)| got.map(Value::clone) == *want), "{names:?}");
    assert_eq!((names[3][0], names[6][0], names.len()), (&"sketch".into(), &"correct".into(), 7));
    // A launch takes a millisecond: 36 blocks of 34 bytes, and 128 values of 2 bytes of each.
    assert_eq!((&kernels[1]["vectors"], kernels[1]["seconds"]["p50"].as_f64()), (&36.into(), Some(1e-3)));
    assert_eq!(kernels[1]["bytes_per_second"].as_f64(), Some(36.0 * (34.0 + 256.0) / 1e-3));
    let codecs: Vec<_> = rows[1..].iter().map(|row| row["codec"].as_str().unwrap()).collect();
    assert_eq!(codecs, ["f16", "s2", "f16", "s2"]);
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
    // A run of all layers takes a millisecond on the fake driver. Codes of 4,608 bytes take two layers for
    // four times the 2,304 bytes of its second-level cache.
    let (half, s2) = (&rows[1], &rows[2]);
    assert_eq!((number(half, "layers"), number(s2, "layers")), (1.0, 2.0));
    assert_eq!(s2["attend_seconds"]["p50"].as_f64().unwrap(), 1e-3 / 2.0);
    let bytes = 128.0 * 2.0 * (16.0 + 2.0);
    assert_eq!(number(s2, "attend_bytes_per_second"), bytes / 5e-4);
    // Numbers of JSON are read to their last digit but one.
    let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-12, "{got} is not {want}");
    near(number(s2, "copy_share"), bytes / 5e-4 / number(&rows[0], "copy_bytes_per_second"));
    assert_eq!((number(half, "f16_ratio"), number(s2, "f16_ratio")), (1.0, 2.0));
    let read = 128.0 * 2.0 * 128.0 / number(&rows[0], "read_bytes_per_second");
    near(number(s2, "f16_read_ratio"), read / 5e-4);
    assert_eq!((number(s2, "registers"), number(s2, "local_bytes")), (128.0, 0.0));
    assert_eq!((&rows[4]["shape"], number(&rows[4], "tokens")), (&"2x64+1x128x1x1x64".into(), 256.0));
    assert!(rows[1]["encoded_vectors_per_second"].is_null());
}

#[test]
fn speed_has_a_row_with_exact_tokens() {
    let (is_right, rows) = rows(&["--speed", "--codec", "s4", "--shape", "1x128x1x2x64"]);
    assert!(is_right);
    let speed = rows.iter().filter(|row| row["row"] == "speed");
    assert!(speed.map(|row| row["codec"].as_str().unwrap()).eq(["f16", "s4", "s4+f16"]));
}

#[test]
fn kernels_of_a_file_are_used_or_the_file_is_named() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ptx/");
    let options = ["--codes", "--codec", "s2", "--vectors", "8", "--ptx"];
    // The committed file also runs from the disk; a file that is no PTX does not.
    let other = format!("{folder}sm_80.ptx");
    assert!(rows(&[&options[..], &[&other]].concat()).0);
    for (file, expected) in [("REGISTERS.md", "NOT_FOUND"), ("none.ptx", "none.ptx: No such file")] {
        let path = format!("{folder}{file}");
        let line = Line::parse_from([&["check", "--seconds", "0.001"], &options[..], &[&path]].concat());
        let device = tqkv_gpu::check::open(&line.check).unwrap();
        let error =
            tqkv_gpu::check::run(&device, &line.check, true, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn people_get_tables() {
    let (is_right, text) =
        check(&["--codes", "--speed", "--codec", "s2", "--vectors", "8", "--shape", "1x64x1x1x64"], false);
    assert!(is_right);
    for expected in
        ["a GPU of paper", "codes against", "       8 vectors      0 differ", "1x64x1x1x64", "1000.0"]
    {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
    assert_eq!(text.matches("codes against").count(), 1, "a head a table");
}

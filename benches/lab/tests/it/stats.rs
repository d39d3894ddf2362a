//! `tqkv-lab stats`: fields, known figures, and arrays that are refused.

use crate::arrays::{DIM, files, folder, npy, raw, values};
use crate::product::product;
use crate::support::{error, json, tqkv as lab, tqkv_with as lab_with};

#[test]
fn stats_has_the_fields_and_the_known_distortion() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["stats", "--random", "4000", "--codec", "tq1,s2,s3", "--codec", "s4", "--codec", "s5"];
    let raw = json(folder.path(), &[&args[..], &["--scale-mode", "raw", "--effort", "fast"]].concat());
    assert_eq!((&raw["dim"], &raw["count"]), (&128.into(), &4000.into()));
    let codecs = raw["codecs"].as_array().unwrap();
    let expected = [
        ("tq1", 20, 0.3609),
        ("s2", 34, 0.1160),
        ("s3", 50, 0.03397),
        ("s4", 66, 0.009315),
        ("s5", 82, 0.002469),
    ];
    for (found, (name, bytes, mse)) in codecs.iter().zip(expected) {
        let field = |name: &str| found[name].as_f64().unwrap();
        // A format of the reference has the norm as its scale, in every mode.
        let mode = if name == "tq1" { "own" } else { "raw" };
        assert_eq!((&found["codec"], &found["scale_mode"]), (&name.into(), &mode.into()));
        assert_eq!(found["bytes_per_vector"], bytes);
        assert!((field("bits_per_value") - f64::from(bytes) / 16.0).abs() < 1e-12);
        assert!((field("relative_mse") / mse - 1.0).abs() < 0.01, "{name}: {}", field("relative_mse"));
        assert!((field("mean_cosine") - (1.0 - mse).sqrt()).abs() < 0.002, "{name}");
        assert!((field("dot_slope") - (1.0 - mse)).abs() < 0.005, "{name}: {}", field("dot_slope"));
        assert!((field("dot_error") / mse.sqrt() - 1.0).abs() < 0.02, "{name}: {}", field("dot_error"));
    }
    assert_eq!(codecs.len(), 5);
    let unbiased = json(folder.path(), &["stats", "--random", "4000", "--codec", "s2"]);
    let slope = unbiased["codecs"][0]["dot_slope"].as_f64().unwrap();
    assert!((slope - 1.0).abs() < 0.005, "{slope}");
}

#[test]
fn stats_holds_formats_of_the_reference_beside_the_theory() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["stats", "--random", "40000", "--codec", "p3,tq3,turbo3,c25,u3,s3"];
    let report = json(folder.path(), &[&args[..], &["--scale-mode", "raw", "--effort", "fast"]].concat());
    let codecs = report["codecs"].as_array().unwrap();
    for (found, (name, bytes)) in
        codecs.iter().zip([("p3", 52), ("tq3", 52), ("turbo3", 50), ("c25", 44), ("u3", 52), ("s3", 50)])
    {
        let field = |name: &str| found[name].as_f64().unwrap();
        let theory = |name: &str| found["theory"][name].as_f64();
        assert_eq!((&found["codec"], &found["bytes_per_vector"]), (&name.into(), &bytes.into()));
        if let Some(expected) = theory("expected") {
            let ratio = field("relative_mse") / expected;
            assert!((ratio - 1.0).abs() < 0.01, "{name}: {ratio}");
        } else {
            assert_eq!(name, "u3");
        }
        if let Some(bound) = theory("bound") {
            let error = if name == "p3" { field("dot_error").powi(2) } else { field("relative_mse") };
            assert!(error < bound && error > theory("shannon").unwrap(), "{name}: {error}");
        }
    }
    let slope = |row: usize| codecs[row]["dot_slope"].as_f64().unwrap();
    assert!((slope(0) - 1.0).abs() < 0.003 && slope(1) < 0.97, "{} {}", slope(0), slope(1));
    let hadamard =
        json(folder.path(), &["stats", "--random", "4000", "--codec", "tq3", "--rotation", "hadamard"]);
    let error = hadamard["codecs"][0]["relative_mse"].as_f64().unwrap();
    assert!((error / 0.03397 - 1.0).abs() < 0.01, "{error}");
}

#[test]
fn zero_vectors_are_counted_and_left_out() {
    let folder = folder();
    let at = folder.path();
    let mut some = values(50);
    some[..3 * DIM].fill(0.0);
    npy(&at.join("some.npy"), "<f4", &format!("(50, {DIM})"), &raw(&some));
    let report = json(at, &["stats", "some.npy", "--codec", "s4"]);
    assert_eq!((&report["zero_vectors"], &report["count"]), (&3.into(), &50.into()));
    assert!(report["codecs"][0]["relative_mse"].as_f64().is_some_and(|mse| mse < 0.02), "{report}");
    let text = lab(at, &["stats", "some.npy", "--codec", "s4"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("3 of them zero and left out"));
    npy(&at.join("none.npy"), "<f4", &format!("(4, {DIM})"), &raw(&vec![0.0; 4 * DIM]));
    assert!(error(at, &["stats", "none.npy"], 2).contains("every vector is zero"));
    assert!(error(at, &["stats", "in.npy", "--queries", "none.npy"], 2).contains("not all zero"));
}

#[test]
fn nan_is_reported_with_its_row() {
    let folder = folder();
    let at = folder.path();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut values = values(50);
        values[17 * DIM + 5] = bad;
        values[40 * DIM] = bad;
        npy(&at.join("bad.npy"), "<f4", &format!("(50, {DIM})"), &raw(&values));
        let before = files(at);
        for args in [
            &["stats", "--codec", "s4", "bad.npy"][..],
            &["stats", "--codec", "s4", "in.npy", "--queries", "bad.npy"],
        ] {
            let message = error(at, args, 2);
            assert!(message.contains("row 17 ") && message.contains("bad.npy"), "{message}");
            assert_eq!(files(at), before, "{args:?}");
        }
    }
}

#[test]
fn a_vector_too_large_for_its_scale_names_its_row() {
    let folder = folder();
    let at = folder.path();
    let mut values = values(50);
    values[33 * DIM] = 1e30;
    npy(&at.join("in.npy"), "<f4", &format!("(50, {DIM})"), &raw(&values));
    let message = error(at, &["stats", "--codec", "s4", "in.npy"], 2);
    assert!(message.contains("row 33 ") && message.contains("65504"), "{message}");
}

/// A codec that is not here is measured by what it gave back. That of `s4` has the figures of `s4`.
#[test]
fn an_array_of_reconstructions_is_a_row() {
    let folder = folder();
    let at = folder.path();
    let path = |name: &str| at.join(name).display().to_string();
    product(&["encode", "--codec", "s4", &path("in.npy"), &path("a.tqk")]);
    product(&["decode", &path("a.tqk"), &path("back.npy")]);
    let args = ["stats", "in.npy", "--codec", "s4", "--reconstructed", "back.npy"];
    let report = json(at, &args);
    let [own, given] = [0, 1].map(|row| report["codecs"][row].clone());
    assert_eq!((&given["codec"], &given["scale_mode"]), (&"back.npy".into(), &"own".into()));
    assert!(given["bytes_per_vector"].is_null() && given["bits_per_value"].is_null());
    for field in ["relative_mse", "mean_cosine", "dot_slope", "dot_error"] {
        let [own, given] = [&own, &given].map(|row| row[field].as_f64().unwrap());
        assert!((own - given).abs() < 1e-6 * own.abs(), "{field}: {own} {given}");
    }
    assert!(String::from_utf8_lossy(&lab(at, &args).stdout).contains("back.npy"));
    let alone = json(at, &["stats", "in.npy", "--reconstructed", "back.npy"]);
    assert_eq!(alone["codecs"].as_array().unwrap().len(), 1, "no codec was asked for: {alone}");
    npy(&at.join("d16.npy"), "<f4", "(50, 16)", &[0; 3200]);
    npy(&at.join("few.npy"), "<f4", "(2, 32)", &[0; 256]);
    for (args, expected) in [
        (&["stats", "in.npy", "--reconstructed", "few.npy"][..], "few.npy has 2 rows, the vectors have 50"),
        (&["stats", "in.npy", "--reconstructed", "d16.npy"], "reconstructions have 16 coordinates"),
        (&["stats", "--reconstructed", "few.npy"], "<IN>"),
    ] {
        let message = error(at, args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn figures_are_the_same_on_every_level_and_a_bad_level_is_named() {
    let folder = folder();
    let at = folder.path();
    for codec in ["s4", "t3", "i8", "q4_0"] {
        let levels = tqkv_simd::Level::available().map(|level| {
            let args = ["stats", "in.npy", "--codec", codec, "--json"];
            lab_with(at, &args, ("TQKV_LEVEL", level.name().name())).stdout
        });
        let figures: Vec<_> = levels.collect();
        assert!(!figures[0].is_empty() && figures.iter().all(|figure| *figure == figures[0]), "{codec}");
    }
    let output = lab_with(at, &["stats"], ("TQKV_LEVEL", "mmx"));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("TQKV_LEVEL: unknown level"), "{message}");
}

#[test]
#[cfg(unix)]
fn a_device_without_an_end_is_refused_at_once() {
    let folder = folder();
    for args in [&["stats", "/dev/zero"][..], &["stats", "in.npy", "--queries", "/dev/zero"]] {
        let message = error(folder.path(), args, 2);
        assert!(message.contains("/dev/zero") && message.contains("is not a regular file"), "{message}");
    }
}

#[test]
fn bad_input_is_one_line_with_code_2_and_leaves_no_file() {
    let folder = folder();
    let at = folder.path();
    npy(&at.join("d16.npy"), "<f4", "(2, 16)", &[0; 128]);
    npy(&at.join("none.npy"), "<f4", "(0, 32)", &[]);
    let before = files(at);
    for (args, expected) in [
        (vec!["stats", "--dim", "16", "--codec", "q8_0"], "multiple of 32"),
        (vec!["stats", "--random", "0"], "--random"),
        (vec!["stats", "--codec", "p9"], "tqkv codecs --all"),
        (vec!["stats", "--codec", "turbo4k", "--dim", "80"], "expected 16, 32, 64"),
        (vec!["stats", "--codec", "s4", "--rotation", "dense"], "none of the codecs has a choice; p2, p3"),
        (vec!["stats", "--codec", "p3", "--rotation", "hadamard", "--dim", "80"], "powers of two"),
        (vec!["stats", "--random", "10", "in.npy"], "cannot be used"),
        (vec!["stats", "none.npy"], "no vectors"),
        (vec!["stats", "in.npy", "--queries", "d16.npy"], "16 coordinates"),
        (vec!["codebook", "--dim", "128", "--bits", "6"], "1 to 5 bits"),
        (vec!["codebook", "--dim", "128", "--bits", "5", "--nested"], "2 to 4 bits"),
        (vec!["codebook", "--dim", "100", "--bits", "2"], "head dims 16, 32"),
        (vec!["stats", "--dim", "100"], "--dim 100 is not valid: expected one of 16, "),
        (vec!["stats", "--codec", "s9"], "tqkv codecs --all lists them"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.starts_with("tqkv-lab: ") && message.contains(expected), "{args:?}: {message}");
        assert_eq!(files(at), before, "{args:?}");
    }
}

/// Every codec of the list is accepted, and has the bytes in the list.
#[test]
fn every_codec_of_the_list_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let all = product(&["codecs", "--all"]);
    for row in all["codecs"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let stats = json(folder.path(), &["stats", "--random", "8", "--codec", name]);
        assert_eq!(stats["codecs"][0]["bytes_per_vector"], row["bytes"], "{name}");
    }
}

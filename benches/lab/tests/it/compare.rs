//! `tqkv-lab compare` of files.

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;

use crate::arrays::{DIM, folder, npy, raw, values};
use crate::product::product;
use crate::support::{error, json, tqkv as lab};

#[test]
fn compare_reads_two_files_of_the_same_vectors() {
    let folder = folder();
    let at = folder.path();
    let encode = |codec: &str, seed: &str, out: &str| {
        let [from, to] = ["in.npy", out].map(|name| at.join(name).display().to_string());
        product(&["encode", "--codec", codec, "--seed", seed, &from, &to]);
    };
    encode("s4", "1", "a.tqk");
    encode("s4", "2", "b.tqk");
    encode("s2", "1", "c.tqk");
    let compare = |a: &str, b: &str| json(at, &["compare", a, b])["vectors"].clone();
    let same = compare("a.tqk", "a.tqk");
    assert_eq!((&same["code_agreement"], &same["equal_blocks"]), (&1.0.into(), &1.0.into()));
    assert_eq!((&same["relative_error"], &same["mean_cosine"]), (&0.0.into(), &1.0.into()));
    for other in ["b.tqk", "c.tqk"] {
        let found = compare("a.tqk", other);
        assert_eq!(
            found["code_agreement"],
            Value::Null,
            "codes of other seeds and codecs mean something else"
        );
        let error = found["relative_error"].as_f64().unwrap();
        assert!(error > 0.005 && error < 0.3, "{found}");
    }
    let text = lab(at, &["compare", "a.tqk", "c.tqk"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("equal blocks"));
}

#[test]
fn compare_says_which_file_is_missing() {
    let folder = folder();
    let at = folder.path();
    let [from, to] = ["in.npy", "a.tqk"].map(|name| at.join(name).display().to_string());
    product(&["encode", "--codec", "s4", &from, &to]);
    for args in
        [["compare", "a.tqk", "nosuch.tqk"], ["compare", "no/such", "s4"], ["compare", "s4", "nosuch.tqk"]]
    {
        let message = error(at, &args, 2);
        assert!(message.contains("no such file: expected a .tqk file, a snapshot, or a run"), "{message}");
    }
    assert!(
        error(at, &["compare", "a.tqk", "s9"], 2).contains("'s9' is no file and no run: kv=s9 is not valid")
    );
}

/// Dumps of two systems: arrays, and all tensors whose names two files share.
#[test]
fn compare_reads_dumps_of_vectors() {
    let folder = folder();
    let at = folder.path();
    let mut near = values(50);
    near.iter_mut().for_each(|x| *x *= 0.9);
    npy(&at.join("near.npy"), "<f4", &format!("(5, 10, {DIM})"), &raw(&near));
    let report = json(at, &["compare", "in.npy", "near.npy"]);
    let row = &report["arrays"][0];
    assert_eq!((&row["tensor"], &row["vectors"]), (&"".into(), &50.into()));
    assert!((row["relative_error"].as_f64().unwrap() - 0.01).abs() < 1e-6, "{report}");
    assert!((row["mean_cosine"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{report}");
    let save = |file: &str, tensors: &[(&str, &[f32])]| {
        let bytes: Vec<_> = tensors.iter().map(|(name, x)| (*name, raw(x))).collect();
        let views = bytes.iter().map(|(name, bytes)| {
            let shape = vec![bytes.len() / 4 / DIM, DIM];
            (*name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
        });
        serialize_to_file(views, None, &at.join(file)).unwrap();
    };
    let exact = values(50);
    save("a.safetensors", &[("layers.0.k", &exact), ("layers.1.k", &exact), ("only.a", &exact)]);
    save("b.safetensors", &[("layers.0.k", &near), ("layers.1.k", &exact)]);
    save("c.safetensors", &[("layers.0.k", &near[..DIM]), ("other", &exact)]);
    let report = json(at, &["compare", "a.safetensors", "b.safetensors"]);
    let rows = report["arrays"].as_array().unwrap();
    let errors: Vec<_> = rows
        .iter()
        .map(|row| (row["tensor"].as_str().unwrap(), row["relative_error"].as_f64().unwrap()))
        .collect();
    assert_eq!((errors.len(), errors[0].0, errors[1]), (2, "layers.0.k", ("layers.1.k", 0.0)));
    let text = lab(at, &["compare", "a.safetensors:layers.0.k", "near.npy"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("A and B"));
    for (args, expected) in [
        (
            ["compare", "a.safetensors", "c.safetensors"],
            "has 50 vectors of 32 coordinates, c.safetensors:layers.0.k has 1 of 32",
        ),
        (["compare", "in.npy", "none.npy"], "none.npy"),
        (["compare", "in.npy", "s4"], "expected two .tqk files or arrays"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

/// Codes of two systems: whole numbers of any type and shape, by their values.
#[test]
fn compare_counts_equal_codes() {
    let folder = folder();
    let at = folder.path();
    let codes: Vec<u8> = (0..64u16).map(|i| (i * 37 % 251) as u8).collect();
    let mut other = codes.clone();
    other[5] ^= 1;
    other[60] = 255;
    npy(&at.join("a.npy"), "|u1", "(4, 16)", &codes);
    npy(&at.join("b.npy"), "|u1", "(4, 16)", &other);
    let wide: Vec<u8> = codes.iter().flat_map(|code| i32::from(*code).to_le_bytes()).collect();
    npy(&at.join("wide.npy"), "<i4", "(4, 16)", &wide);
    npy(&at.join("signed.npy"), "|i1", "(4, 16)", &other);
    npy(&at.join("flat.npy"), "|u1", "(64,)", &codes);
    for (a, b, equal) in [
        ("a.npy", "b.npy", 62.0 / 64.0),
        ("a.npy", "wide.npy", 1.0),
        ("flat.npy", "flat.npy", 1.0),
        // As signed bytes, codes from 128 on are other numbers.
        (
            "a.npy",
            "signed.npy",
            codes.iter().zip(&other).filter(|(a, b)| a == b && **a < 128).count() as f64 / 64.0,
        ),
    ] {
        let report = json(at, &["compare", a, b]);
        let row = &report["arrays"][0];
        assert_eq!(
            (row["numbers"].as_u64(), row["equal_numbers"].as_f64()),
            (Some(64), Some(equal)),
            "{a} {b}"
        );
        assert!(row.get("mean_cosine").is_none(), "{row}");
    }
    let save = |file: &str, quant: &[u8], scales: &[f32]| {
        let scales = raw(scales);
        let views = [
            ("quant_k", TensorView::new(Dtype::U8, vec![2, 2, 16], quant).unwrap()),
            ("scales", TensorView::new(Dtype::F32, vec![2, 2], &scales).unwrap()),
        ];
        serialize_to_file(views, None, &at.join(file)).unwrap();
    };
    save("a.safetensors", &codes, &[1.0, 2.0, 3.0, 4.0]);
    save("b.safetensors", &other, &[1.0, 2.0, 3.0, 5.0]);
    let report = json(at, &["compare", "a.safetensors", "b.safetensors"]);
    let rows = report["arrays"].as_array().unwrap();
    let equal: Vec<_> =
        rows.iter().map(|row| (row["tensor"].as_str(), row["equal_numbers"].as_f64())).collect();
    assert_eq!(equal, [(Some("quant_k"), Some(62.0 / 64.0)), (Some("scales"), Some(0.75))]);
    let text = String::from_utf8(lab(at, &["compare", "a.safetensors", "b.safetensors"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("quant_k") && line.ends_with("96.88 %")), "{text}");
    let fp8 = [("quant_k", TensorView::new(Dtype::F8_E4M3, vec![4, 16], &codes).unwrap())];
    serialize_to_file(fp8, None, &at.join("fp8.safetensors")).unwrap();
    for (args, expected) in [
        (["compare", "a.npy", "flat.npy"], "a.npy has the shape [4, 16], flat.npy has [64]"),
        (["compare", "a.npy", "in.npy"], "a.npy has whole numbers, in.npy has not"),
        (["compare", "a.safetensors", "fp8.safetensors"], "element type F8_E4M3 is not valid"),
        (["stats", "a.npy", "--json"], "element type |u1 is not valid: expected f64, f32 or f16"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

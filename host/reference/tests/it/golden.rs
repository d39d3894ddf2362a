//! Another program encoded these blocks from FORMATS.md alone (`tests/reference/codecs.py`). This crate must
//! write the same bytes and decode them to the same vectors.

use serde_json::Value;
use tqkv_reference::{Coder, ROWS, Row};

const VECTORS: &str = include_str!("../../../../tests/vectors/reference.json");

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn blocks_of_another_program_are_ours() {
    let file: Value = serde_json::from_str(VECTORS).unwrap();
    let mut seen = Vec::new();
    for case in file["blocks"].as_array().unwrap() {
        let row = Row::from_name(case["row"].as_str().unwrap()).unwrap();
        let x: Vec<f32> = numbers(&case["ints"]).iter().map(|i| (i / 25.0) as f32).collect();
        let layer = case["layer"].as_u64().unwrap() as usize;
        let coder = Coder::new(row, x.len(), (42, layer), None).unwrap();
        let place = format!("{} at head dim {}, layer {layer}", row.name(), x.len());
        let theirs = bytes(case["block"].as_str().unwrap());
        let mut ours = vec![0; coder.block_bytes()];
        coder.encode(&x, &mut ours).unwrap();
        assert_eq!(ours, theirs, "{place}");
        let mut decoded = vec![0.0; x.len()];
        coder.decode(&theirs, &mut decoded).unwrap();
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        for (ours, theirs) in decoded.iter().zip(numbers(&case["decoded"])) {
            assert!((f64::from(*ours) - theirs).abs() < 1e-6 * f64::from(norm), "{place}: {ours} {theirs}");
        }
        seen.push((row.name(), x.len(), layer));
    }
    for row in ROWS {
        assert!([64, 128].iter().all(|&dim| [0, 3].iter().all(|&layer| seen.contains(&(
            row.name(),
            dim,
            layer
        )))));
    }
}

/// Bytes at head dim 128, as in the sources of the formats.
#[test]
fn blocks_are_as_long_as_their_sources_say() {
    for (name, expected) in [
        ("p2", 36),
        ("p3", 52),
        ("p4", 68),
        ("p4r4", 116),
        ("tq1", 20),
        ("tq2", 36),
        ("tq3", 52),
        ("tq4", 68),
        ("tq4u8", 132),
        ("turbo2", 34),
        ("turbo3", 50),
        ("turbo4", 66),
        ("turbo3k", 56),
        ("turbo4k", 72),
        ("turbo3v", 52),
        ("turbo4v", 68),
        ("c25", 44),
        ("c35", 60),
        ("u3", 52),
        ("u4", 68),
        ("u8", 132),
        ("f8", 130),
        ("f8e5m2", 130),
        ("q4_0r", 72),
        ("u3r", 52),
        ("u4r", 68),
        ("u8r", 132),
        ("fp8", 128),
        ("nvfp4", 72),
        ("mxfp4", 68),
        ("int4h", 68),
        ("vtq3", 50),
        ("vtq4", 66),
    ] {
        assert_eq!(Row::from_name(name).unwrap().block_bytes(128), Some(expected), "{name}");
    }
}

//! Stored bytes do not change: those of a chunk without a basis, of one in a basis, and of the basis.
//!
//! `cargo test --workspace --test it golden_chunks:: -- --ignored` writes the files anew, which is a new
//! version of the format.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tqkv_storage::{Basis, Budget, Join, Learner, Rope, RopePairing, Shape, Span, StorageCodec};

const LAYERS: usize = 2;
const TOKENS: usize = 50;
/// KV heads times head dim.
const WIDTH: usize = 32;

fn shape() -> Shape {
    let rope = Rope::new(2, RopePairing::Half, vec![1.0, 0.25, 0.0625]);
    let other = Rope::new(0, RopePairing::Interleaved, vec![0.5; 8]);
    Shape::new(LAYERS, 2, 16, 16, rope).unwrap().with_rope(other, [1]).unwrap()
}

/// Numbers of few bits. Each fifth is large, and neighbours are similar.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let one = |i: u32| {
        let low = (i / 4 + seed).wrapping_mul(2_654_435_761) >> 24;
        let high = (i + seed).wrapping_mul(2_246_822_519) >> 28;
        (low as f32 - 128.0 + high as f32) / 64.0 + if i.is_multiple_of(5) { 3.0 } else { 0.0 }
    };
    (0..count as u32).map(one).collect()
}

fn tokens() -> (Span, Vec<f32>, Vec<f32>) {
    let span = Span { name: *b"a golden", ..Span::of(&shape(), 1, TOKENS) };
    (span, numbers(LAYERS * TOKENS * WIDTH, 1), numbers(LAYERS * TOKENS * WIDTH, 2))
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

fn encode(basis: Option<Basis>) -> Vec<u8> {
    let codec = StorageCodec::new(shape(), basis.map(Arc::new)).unwrap();
    let (span, k, v) = tokens();
    codec.encode(Budget::new(2.5).unwrap(), &span, &k, &v).unwrap()
}

fn decode(basis: Option<Basis>, bytes: &[u8]) -> Vec<f32> {
    let codec = StorageCodec::new(shape(), basis.map(Arc::new)).unwrap();
    let (span, mut k, mut v) = tokens();
    assert_eq!(codec.decode(bytes, &mut k, &mut v).unwrap(), span);
    [k, v].concat()
}

fn read_floats(name: &str) -> Vec<f32> {
    read(name).as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

#[test]
fn without_a_basis_the_bytes_are_these_on_every_machine() {
    assert!(encode(None) == read("plain.tqc"), "bytes of a chunk without a basis changed");
    assert_near(&decode(None, &read("plain.tqc")), "plain.f32");
}

#[test]
fn in_a_basis_the_chunk_decodes_as_it_did() {
    let basis = Basis::load(path("basis.tqb")).unwrap();
    assert_eq!(basis.to_bytes(), read("basis.tqb"));
    assert_near(&decode(Some(basis.clone()), &read("based.tqc")), "based.f32");
    assert!(encode(Some(basis)) == read("based.tqc"), "bytes of a chunk in a basis changed");
}

fn assert_near(got: &[f32], name: &str) {
    let want = read_floats(name);
    assert_eq!(got.len(), want.len());
    for (i, (a, b)) in got.iter().zip(&want).enumerate() {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{name}: value {i} is {a}, was {b}");
    }
}

#[test]
#[ignore = "writes the files"]
fn write_the_files() {
    let mut learner = Learner::new(shape(), Join::Joint).unwrap();
    let (k, v) = (numbers(LAYERS * 200 * WIDTH, 3), numbers(LAYERS * 200 * WIDTH, 4));
    learner.learn(&k, &v, 0).unwrap();
    // A basis that is there stays: one that is learned again may differ in signs.
    let basis = Basis::load(path("basis.tqb")).unwrap_or_else(|_| learner.freeze("golden").unwrap());
    let write = |name: &str, bytes: &[u8]| std::fs::write(path(name), bytes).unwrap();
    let floats = |x: Vec<f32>| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    write("basis.tqb", &basis.to_bytes());
    for (name, basis) in [("plain", None), ("based", Some(basis))] {
        let bytes = encode(basis.clone());
        write(&format!("{name}.f32"), &floats(decode(basis, &bytes)));
        write(&format!("{name}.tqc"), &bytes);
    }
}

//! The rotation of every head dim: orthogonal, with seeded signs, and undone by its inverse.

use tqkv_core::{AnyCodec, CodecId, HEAD_DIMS, Options, is_supported_head_dim};
use tqkv_tests::inputs::{Gaussian, one_hot};
use tqkv_tests::oracle::{dot, energy};

const SIGNS_SEED_42: &str = "\
-++++-+-+-++---++++--+--++---------+++-+-++--+++--+++++----++--+\
+--+----+---+-+++-++-+-----++--+-+-+-+---++++-+-+-+++-+---++++++";

/// A codec that rotates.
fn codec(dim: usize, seed: u64) -> AnyCodec {
    AnyCodec::new(CodecId::S2, dim, Options::DEFAULT.seed(seed)).unwrap()
}

/// The rotation of x. A rotated query is this divided by `dim`; the division is exact if coordinates are 1 or
/// -1.
fn forward(dim: usize, seed: u64, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; dim];
    codec(dim, seed).rotate_query(x, &mut y);
    y.iter().map(|v| v / (1.0 / dim as f32)).collect()
}

fn inverse(dim: usize, seed: u64, y: &[f32]) -> Vec<f32> {
    let mut x = y.to_vec();
    codec(dim, seed).unrotate(&mut x);
    x
}

#[test]
fn the_designs_head_dims_are_there() {
    for dim in [16, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512, 576, 1024] {
        assert!(is_supported_head_dim(dim), "{dim}");
    }
    for dim in [0, 1, 8, 17, 40, 72, 100, 208, 1040, 2048] {
        assert!(!is_supported_head_dim(dim), "{dim}");
    }
}

#[test]
fn signs_follow_splitmix64() {
    let codec = codec(128, 42);
    let signs = codec.signs();
    let text: String = (0..128).map(|i| if signs.is_negative(i) { '-' } else { '+' }).collect();
    assert_eq!(text, SIGNS_SEED_42);
}

/// Columns of the transform are the images of the unit vectors: entries +-1, pairwise orthogonal.
#[test]
fn every_head_dim_has_an_orthogonal_rotation_of_ones() {
    for dim in HEAD_DIMS {
        let columns: Vec<Vec<f32>> = (0..dim).map(|i| forward(dim, 1, &one_hot(dim, i, 1.0))).collect();
        for (i, column) in columns.iter().enumerate() {
            assert!(column.iter().all(|v| v.abs() == 1.0), "dim {dim}, column {i}");
            // All pairs for small dims, the neighbours for large ones.
            let step = if dim <= 144 { 1 } else { dim / 7 };
            for other in columns[i + 1..].iter().step_by(step) {
                assert_eq!(dot(column, other), 0.0, "dim {dim}, column {i}");
            }
        }
    }
}

#[test]
fn the_inverse_undoes_and_lengths_are_kept() {
    let mut gaussian = Gaussian::new(3);
    for dim in HEAD_DIMS {
        let x = gaussian.vector(dim);
        let y = forward(dim, 9, &x);
        assert!((energy(&y) / (dim as f64 * energy(&x)) - 1.0).abs() < 1e-5, "dim {dim}");
        for (a, b) in x.iter().zip(inverse(dim, 9, &y)) {
            assert!((a - b).abs() < 1e-5, "dim {dim}: {a} became {b}");
        }
    }
}

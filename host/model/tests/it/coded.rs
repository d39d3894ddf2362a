//! Products on codes, against the decoded matrix.

use std::thread;

use crate::coded_blocks::{Choose, live};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_model::CodedMatrix;
use tqkv_simd::Level;

/// Values like those of a layer: rows of unlike sizes.
fn painted(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut values = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        let size = 1.0 + (row % 7) as f32;
        values.extend((0..columns).map(|_| size * (rng.f32() + rng.f32() + rng.f32() - 1.5)));
    }
    values
}

fn codec(id: CodecId, group: usize) -> AnyCodec {
    AnyCodec::new(id, group, Options::DEFAULT).unwrap()
}

fn coded(codec: &AnyCodec, weights: &[f32], outputs: usize) -> CodedMatrix {
    let inputs = weights.len() / outputs;
    let read = |row: usize, to: &mut [f32]| to.copy_from_slice(&weights[row * inputs..][..to.len()]);
    CodedMatrix::encode(codec, Level::detect().unwrap(), [outputs, inputs], &read).unwrap()
}

fn product(matrix: &CodedMatrix, x: &[f32]) -> Vec<f32> {
    let [outputs, inputs] = matrix.shape();
    let mut y = vec![f32::NAN; x.len() / inputs * outputs];
    matrix.multiply(x, &mut y);
    y
}

/// The product with the decoded matrix, in f64.
fn expected(matrix: &CodedMatrix, x: &[f32]) -> Vec<f64> {
    let [outputs, inputs] = matrix.shape();
    let mut rows = vec![0.0; outputs * inputs];
    rows.chunks_exact_mut(inputs).enumerate().for_each(|(row, out)| matrix.expand_row(row, out));
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    x.chunks_exact(inputs).flat_map(|x| rows.chunks_exact(inputs).map(move |row| dot(x, row))).collect()
}

/// Norm of the error over the norm of the result.
fn error(y: &[f32], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    norm(&mut y.iter().zip(expected).map(|(y, e)| f64::from(*y) - e)) / norm(&mut expected.iter().copied())
}

const CODECS: [CodecId; 7] =
    [CodecId::I8, CodecId::S4, CodecId::N4, CodecId::S3, CodecId::T4, CodecId::T3, CodecId::T2];

#[test]
fn products_are_those_of_the_decoded_matrix() {
    for id in CODECS {
        // No multiple of a page's rows, and more than one page.
        let matrix = coded(&codec(id, 64), &painted(333, 192, 1), 333);
        for tokens in [1, 5, 8, 19] {
            let x = painted(tokens, 192, 2);
            let error = error(&product(&matrix, &x), &expected(&matrix, &x));
            assert!((0.003..0.009).contains(&error), "{} of {tokens} tokens: {error}", id.name());
        }
    }
}

#[test]
fn tokens_do_not_change_each_other() {
    let matrix = coded(&codec(CodecId::T4, 64), &painted(200, 128, 1), 200);
    let x = painted(21, 128, 3);
    let alone: Vec<f32> = x.chunks_exact(128).flat_map(|x| product(&matrix, x)).collect();
    assert_eq!(product(&matrix, &x), alone);
}

/// A thread keeps its memory for activations. What a longer group left there is not read.
#[test]
fn an_earlier_product_leaves_nothing() {
    for id in CODECS {
        let (long, short) = (codec(id, 128), codec(id, 32));
        let matrix = coded(&short, &painted(130, 96, 1), 130);
        let x = painted(3, 96, 2);
        let fresh = thread::scope(|scope| scope.spawn(|| product(&matrix, &x)).join().unwrap());
        product(&coded(&long, &painted(130, 512, 3), 130), &painted(8, 512, 4));
        assert_eq!(product(&matrix, &x), fresh, "{}", id.name());
    }
}

#[test]
fn blocks_make_the_same_matrix() {
    for id in CODECS {
        let codec = codec(id, 64);
        let weights = painted(150, 128, 1);
        let matrix = coded(&codec, &weights, 150);
        let blocks = matrix.to_blocks();
        let mut stored = vec![0; blocks.len()];
        tqkv_simd::codec::encode(Level::detect().unwrap(), &codec, &weights, &mut stored).unwrap();
        assert_eq!(blocks, stored, "{}", id.name());
        let again = CodedMatrix::from_blocks(&codec, Level::detect().unwrap(), &blocks, [150, 128]).unwrap();
        let x = painted(2, 128, 2);
        assert_eq!(product(&again, &x), product(&matrix, &x));
        assert_eq!((again.shape(), again.codec().id()), ([150, 128], id));
        assert!((blocks.len()..2 * blocks.len() + 512).contains(&again.held_bytes()));
    }
}

#[test]
fn what_cannot_be_coded_is_refused_in_one_line() {
    let (level, four) = (Level::detect().unwrap(), codec(CodecId::S4, 64));
    let refused = |codec: &AnyCodec, shape, value: f32, said: &str| {
        let made = CodedMatrix::encode(codec, level, shape, &|_, to| to.fill(value));
        let error = made.unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
    };
    refused(&four, [3, 96], 1.0, "[3, 96] is not valid: expected rows of whole groups of 64");
    refused(&four, [0, 64], 1.0, "[0, 64] is not valid");
    refused(&four, [3, 0], 1.0, "[3, 0] is not valid");
    refused(&four, [3, 64], f32::NAN, "row 0 (counted from 0) cannot be coded");
    refused(&codec(CodecId::F16, 64), [3, 64], 1.0, "codec f16 is not valid for products on codes");
    let error = CodedMatrix::from_blocks(&four, level, &[0; 33], [1, 64]).unwrap_err().to_string();
    assert!(error.contains("33 bytes are not valid for [1, 64] in s4: expected 34"), "{error}");
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    let matrix = coded(&codec(CodecId::T4, 64), &painted(130, 128, 1), 130);
    let mut x = painted(2, 128, 2);
    let clean = product(&matrix, &x);
    x[128 + 5] = f32::INFINITY;
    let y = product(&matrix, &x);
    assert!(y[130..].iter().all(|y| y.is_nan()));
    assert_eq!(y[..130], clean[..130]);
}

impl Choose for fastrand::Rng {
    fn below(&mut self, n: usize) -> usize {
        self.usize(..n)
    }
}

#[test]
fn arbitrary_blocks_are_refused_or_multiplied_as_f64_does() {
    let mut random = fastrand::Rng::with_seed(11);
    let made: Vec<_> = (0..400).map(|_| live(&mut random)).collect();
    let accepted = made.iter().filter(|made| made.is_ok()).count();
    assert!((40..360).contains(&accepted), "{accepted} of 400 are accepted");
}

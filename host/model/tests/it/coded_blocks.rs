//! Matrices of arbitrary blocks. A test and a fuzz target make them; each makes choices of its own.

use tqkv_core::{AnyCodec, CodecId, HEAD_DIMS, Options};
use tqkv_model::CodedMatrix;
use tqkv_simd::Level;

/// The choices that make a matrix.
pub(crate) trait Choose {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize;
}

/// Makes a matrix of blocks. It is refused with a reason, which comes back, or it gives its blocks back, its
/// rows are those of the portable decoder, and its products are those of f64 over these rows.
pub(crate) fn live(choose: &mut impl Choose) -> Result<(), String> {
    let id = CodecId::ALL[choose.below(CodecId::ALL.len())];
    // The first dims reach every kind of rotation and the ragged group.
    let dim = HEAD_DIMS[choose.below(10)];
    let options = Options::DEFAULT.seed(choose.below(256) as u64);
    let codec = AnyCodec::new(id, dim, options).map_err(|error| error.to_string())?;
    // More rows than a page has, and none.
    let (outputs, groups) = (choose.below(256), choose.below(4));
    let expected = outputs * groups * codec.block_bytes();
    let len = (expected + [0, 0, 0, 1, 7][choose.below(5)]).saturating_sub([0, 0, 0, 1][choose.below(4)]);
    let (tokens, activations) = (1 + choose.below(11), [(); 16].map(|()| choose.below(256)));
    let blocks = blocks(choose, codec.block_bytes(), len);
    let level = Level::detect().expect("an instruction set");
    let matrix = match CodedMatrix::from_blocks(&codec, level, &blocks, [outputs, groups * dim]) {
        Ok(matrix) => matrix,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("expected"), "{text}");
            return Err(text);
        }
    };
    assert!(expected > 0 && len == expected, "{len} bytes of {expected} are accepted");
    assert_eq!(matrix.shape(), [outputs, groups * dim]);
    assert!(matrix.to_blocks() == blocks, "{}: other blocks come back", id.name());
    let rows: Vec<Vec<f32>> = (0..outputs).map(|row| decoded(&matrix, &blocks, row)).collect();
    let activation = |i: usize| activations[(i + i / 16) % 16] as f32 / 8.0 - 16.0;
    let x: Vec<f32> = (0..tokens * groups * dim).map(activation).collect();
    multiply(&matrix, &rows, &x);
    Ok(())
}

/// Blocks whose scales are arbitrary in one of four.
fn blocks(choose: &mut impl Choose, block: usize, len: usize) -> Vec<u8> {
    let few: Vec<u8> = (0..=choose.below(64)).map(|_| choose.below(256) as u8).collect();
    let mut bytes: Vec<u8> = few.iter().copied().cycle().take(len).collect();
    if choose.below(4) != 0 {
        let scale = half::f16::from_f32(0.001 * (1 + choose.below(4000)) as f32).to_le_bytes();
        bytes.chunks_exact_mut(block).for_each(|block| block[..2].copy_from_slice(&scale));
    }
    bytes
}

/// A row of the matrix: that of the portable decoder, or NaN where one of its blocks is damaged.
fn decoded(matrix: &CodedMatrix, blocks: &[u8], row: usize) -> Vec<f32> {
    let ([_, inputs], codec) = (matrix.shape(), matrix.codec());
    let row_bytes = inputs / codec.dim() * codec.block_bytes();
    let (mut held, mut want) = (vec![0.0; inputs], vec![0.0; inputs]);
    matrix.expand_row(row, &mut held);
    let blocks = blocks[row * row_bytes..][..row_bytes].chunks_exact(codec.block_bytes());
    let mut pairs = blocks.zip(want.chunks_exact_mut(codec.dim()));
    if pairs.all(|(block, out)| codec.decode(block, out).is_ok()) {
        let is_equal = held.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(is_equal, "{}: {held:?} and not {want:?}", codec.id().name());
    } else {
        assert!(held.iter().all(|value| value.is_nan()), "{}: a damaged row", codec.id().name());
    }
    held
}

/// Products with some tokens against f64, and those of a token alone.
fn multiply(matrix: &CodedMatrix, rows: &[Vec<f32>], x: &[f32]) {
    let ([outputs, inputs], name) = (matrix.shape(), matrix.codec().id().name());
    let (mut y, mut alone) = (vec![f32::NAN; x.len() / inputs * outputs], vec![f32::NAN; outputs]);
    matrix.multiply(x, &mut y);
    matrix.multiply(&x[..inputs], &mut alone);
    let is_equal = y.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(is_equal, "{name}: tokens change each other");
    let norm = |v: &[f32]| v.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
        for (row, y) in rows.iter().zip(y) {
            if row.iter().any(|value| value.is_nan()) {
                continue;
            }
            let want: f64 = row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let most = 0.03 * norm(row) * norm(x) + 1e-6;
            assert!((f64::from(*y) - want).abs() <= most, "{name}: {y} and not {want}, at most {most} apart");
        }
    }
}

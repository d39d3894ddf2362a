//! Takes bytes as the blocks of a coded matrix of weights, as Python hands them over. Another number of bytes is
//! refused. A matrix gives its blocks back to the bit, and products are those of the decoded rows in f64.
#![no_main]

mod seeds;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_model::CodedMatrix;
use tqkv_simd::{Level, codec};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    codec: u8,
    dim: u8,
    outputs: u8,
    groups: u8,
    tokens: u8,
    /// Bytes more or less than the shape needs.
    off: i8,
    x: [i8; 7],
    blocks: &'a [u8],
}

/// Largest error of a product over the norms of weights and activations. Activations are rounded to 8 bits of their
/// largest rotated coordinate, and levels to bytes.
const ERROR: f64 = 0.08;

fuzz_target!(|input: Input<'_>| {
    let id = CodecId::ALL[usize::from(input.codec) % CodecId::ALL.len()];
    let dim = [16, 64, 96, 128, 256][usize::from(input.dim) % 5];
    let Ok(coder) = AnyCodec::new(id, dim, Options::DEFAULT) else { return };
    let level = Level::detect().expect("a level of this machine");
    let (outputs, groups) = (usize::from(input.outputs) + 1, usize::from(input.groups % 3) + 1);
    let (inputs, wanted) = (groups * dim, outputs * groups * coder.block_bytes());
    let bytes = input.blocks.iter().chain(&[0]).copied().cycle();
    let bytes: Vec<u8> = bytes.take(wanted.saturating_add_signed(isize::from(input.off))).collect();
    let matrix = match CodedMatrix::from_blocks(&coder, level, &bytes, [outputs, inputs]) {
        Ok(matrix) => matrix,
        Err(why) => return seeds::refused(why),
    };
    assert_eq!(bytes.len(), wanted);
    assert_eq!(matrix.to_blocks(), bytes);
    let tokens = usize::from(input.tokens % 10) + 1;
    let x: Vec<f32> = input.x.iter().map(|x| f32::from(*x)).cycle().take(tokens * inputs).collect();
    let mut y = vec![0.0; tokens * outputs];
    matrix.multiply(&x, &mut y);
    let (row_bytes, mut row) = (groups * coder.block_bytes(), vec![0.0; inputs]);
    for (output, blocks) in bytes.chunks_exact(row_bytes).enumerate() {
        // A scale that no encoder writes makes products of NaN.
        if codec::decode(level, &coder, blocks, &mut row).is_err() {
            continue;
        }
        for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
            let product: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let norms: f64 =
                row.chunks_exact(dim).zip(x.chunks_exact(dim)).map(|(w, x)| norm(w) * norm(x)).sum();
            let error = (f64::from(y[output]) - product).abs();
            assert!(error <= ERROR * norms + 1e-6, "{id:?}, row {output}: {} for {product}", y[output]);
        }
    }
});

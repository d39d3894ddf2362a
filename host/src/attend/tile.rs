//! Decoded tokens and any number of queries, as products of matrices.

use crate::matmul::{Accumulate, Mat, MatMut, product};
use tqkv_simd::Level;
use tqkv_simd::page::{Attention, MAX_HEADS, rescale, soften};

/// Writes the logits (`[n, tokens]`) of queries (`[n, dim]`) and decoded tokens (`[tokens, dim]`), or adds them.
pub(crate) fn score(queries: &[f32], tokens: &[f32], dim: usize, logits: &mut [f32], store: Accumulate) {
    let (n, count) = (queries.len() / dim, tokens.len() / dim);
    let tokens = Mat::new(tokens, count, dim, dim).transposed();
    let queries = Mat::new(queries, n, dim, dim);
    product(&mut MatMut::new(logits, n, count, count), queries, tokens, 1.0, store);
}

/// Turns logits (`[n, tokens]`) into weights, and rescales the two sums (`[n, dim]`) of each query.
pub(crate) fn soften_all(
    level: Level,
    logits: &mut [f32],
    state: &mut [Attention],
    dim: usize,
    sums: [&mut [f32]; 2],
) {
    let count = logits.len() / state.len();
    let [plain, rotated] = sums.map(|sums| sums.chunks_mut(MAX_HEADS * dim));
    let states = state.chunks_mut(MAX_HEADS).zip(plain.zip(rotated));
    for (logits, (state, (plain, rotated))) in logits.chunks_mut(MAX_HEADS * count).zip(states) {
        let factors = soften(level, logits, state);
        rescale(&factors[..state.len()], dim, plain);
        rescale(&factors[..state.len()], dim, rotated);
    }
}

/// Adds values weighted by `weights` (`[n, tokens]`) to sums (`[n, dim]`). A token's value is the first `dim` of its
/// `width` values.
pub(crate) fn add(weights: &[f32], values: &[f32], (dim, width): (usize, usize), sums: &mut [f32]) {
    let (n, count) = (sums.len() / dim, values.len() / width);
    product(
        &mut MatMut::new(sums, n, dim, dim),
        Mat::new(weights, n, count, count),
        Mat::new(values, count, dim, width),
        1.0,
        Accumulate::Add,
    );
}

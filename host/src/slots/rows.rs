//! Exact rows of one side, and weighted sums of them.

use super::format::SlotFormat;
use super::task::Track;
use crate::matmul::{Mat, MatMut, Store, product};
use half::f16;
use std::ops::Range;
use tqkv_simd::page::{MAX_HEADS, row_sums, widen_rows};

/// Exact rows of one side, as the bits of f16.
pub(super) fn bits(track: Track<'_>, rows: Range<usize>) -> &[u16] {
    let dim = track.format.dim;
    &track.stream.exact.head(track.head)[rows.start * dim..rows.end * dim]
}

/// Adds values weighted by `weights` (`[n, rows]`) to `sums` (`[n, dim]`); `wide` is working memory.
///
/// A row that is not finite is added on its own, to the sums of the queries that give it weight. In the sums
/// over all rows it counts as zeros, because 0 times such a row is NaN.
pub(super) fn sum(
    values: Track<'_>,
    rows: Range<usize>,
    weights: &[f32],
    sums: &mut [f32],
    wide: &mut Vec<f32>,
) {
    let dim = values.format.dim;
    let (not_finite, rows) = (values.stream.exact.not_finite(rows.clone()), bits(values, rows));
    if not_finite.is_empty() {
        return sum_rows(values.format, rows, weights, sums, wide);
    }
    let mut finite = rows.to_vec();
    for at in not_finite {
        let row: Vec<f32> = rows[at * dim..][..dim].iter().map(|&x| f16::from_bits(x).to_f32()).collect();
        let weights = weights.iter().skip(at).step_by(rows.len() / dim);
        for (sums, &weight) in sums.chunks_exact_mut(dim).zip(weights).filter(|(_, weight)| **weight != 0.0) {
            sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += weight * x);
        }
        finite[at * dim..][..dim].fill(0);
    }
    sum_rows(values.format, &finite, weights, sums, wide);
}

/// Adds rows of f16 bits, weighted by `weights`.
fn sum_rows(format: &SlotFormat, rows: &[u16], weights: &[f32], sums: &mut [f32], wide: &mut Vec<f32>) {
    let (dim, level) = (format.dim, format.level);
    let (n, count) = (sums.len() / dim, rows.len() / dim);
    if n <= MAX_HEADS {
        return row_sums(level, rows, dim, weights, sums);
    }
    wide.resize(count * dim, 0.0);
    widen_rows(level, rows, wide);
    let (weights, values) = (Mat::new(weights, n, count, count), Mat::new(wide, count, dim, dim));
    product(&mut MatMut::new(sums, n, dim, dim), weights, values, 1.0, Store::Add);
}

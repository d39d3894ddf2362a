//! Exact rows of one side, and weighted sums of them.

use super::task::StreamSide;
use half::f16;
use std::borrow::Cow;
use std::ops::Range;
use tqkv_simd::page::row_sums;

/// Exact rows of one side, as the bits of f16.
pub(super) fn bits(side: StreamSide<'_>, rows: Range<usize>) -> &[u16] {
    let dim = side.format.dim;
    &side.stream.exact.head(side.head)[rows.start * dim..rows.end * dim]
}

/// Adds values weighted by `weights` (`[n, rows]`) to the sums (`[n, dim]`) of at most eight queries.
pub(super) fn sum(values: StreamSide<'_>, rows: Range<usize>, weights: &[f32], sums: &mut [f32]) {
    let rows = take_odd(values, rows, weights, sums);
    row_sums(values.format.level, &rows, values.format.dim, weights, sums);
}

/// The bits of rows to be summed, where a row that is not finite is zeros, because 0 times such a row is NaN. It is
/// added here, to the sums of the queries that give it weight.
pub(super) fn take_odd<'a>(
    values: StreamSide<'a>,
    rows: Range<usize>,
    weights: &[f32],
    sums: &mut [f32],
) -> Cow<'a, [u16]> {
    let dim = values.format.dim;
    let (not_finite, rows) = (values.stream.exact.not_finite(rows.clone()), bits(values, rows));
    if not_finite.is_empty() {
        return Cow::Borrowed(rows);
    }
    let mut finite = rows.to_vec();
    for at in not_finite {
        let row = &rows[at * dim..][..dim];
        let weights = weights.iter().skip(at).step_by(rows.len() / dim);
        for (sums, &weight) in sums.chunks_exact_mut(dim).zip(weights).filter(|(_, weight)| **weight != 0.0) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * f16::from_bits(*x).to_f32());
        }
        finite[at * dim..][..dim].fill(0);
    }
    Cow::Owned(finite)
}

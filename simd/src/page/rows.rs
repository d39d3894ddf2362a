//! f16 rows in memory of any alignment, summed in one order: the same bits on every level.
//!
//! They are for the few uncompressed tokens next to the coded ones of a cache, so that all of its attention
//! is reproducible. [`super::HalfPages`] is faster, but its bits may differ between levels.

use crate::level::{Kernel, Level};
use crate::lines::Machine;
use tqkv_core::MAX_HEAD_DIM;
use tqkv_core::unstable::machine::Lanes;

/// Lanes of a sum.
const LANES: usize = 16;

/// Logits of rows (f16 bits, `[n, dim]`) for queries (`[heads, dim]`): `out` is `[heads, n]`. `dim`
/// is a multiple of 16, at most [`MAX_HEAD_DIM`].
pub fn row_scores(level: Level, rows: &[u16], dim: usize, queries: &[f32], out: &mut [f32]) {
    level.run(RowScores { rows, dim, queries, out });
}

/// `acc[h] += sum of weights[h][i] * row i`. `weights` is `[heads, n]` and `acc` is `[heads, dim]`; the other
/// arguments are those of [`row_scores`].
///
/// A row that is not finite makes the sums NaN even where its weight is 0, because a product with 0 is then
/// NaN. A caller that hides rows gives zeros in their place.
pub fn row_sums(level: Level, rows: &[u16], dim: usize, weights: &[f32], acc: &mut [f32]) {
    level.run(RowSums { rows, dim, weights, acc });
}

/// Rounds values to f16 bits, to nearest, ties to even. Both slices have the same length, a multiple of 16.
///
/// # Panics
/// The lengths differ, or are not a multiple of 16.
pub fn narrow_rows(level: Level, x: &[f32], out: &mut [u16]) {
    assert!(
        x.len() == out.len() && x.len().is_multiple_of(LANES),
        "as many halves as values, a multiple of 16"
    );
    level.run(Narrow { x, out });
}

/// Widens f16 bits to values. Both slices have the same length, a multiple of 16.
///
/// # Panics
/// The lengths differ, or are not a multiple of 16.
pub fn widen_rows(level: Level, rows: &[u16], out: &mut [f32]) {
    assert!(
        rows.len() == out.len() && rows.len().is_multiple_of(LANES),
        "as many values as halves, a multiple of 16"
    );
    level.run(Widen { rows, out });
}

struct Narrow<'a> {
    x: &'a [f32],
    out: &'a mut [u16],
}

struct Widen<'a> {
    rows: &'a [u16],
    out: &'a mut [f32],
}

struct RowScores<'a> {
    rows: &'a [u16],
    dim: usize,
    queries: &'a [f32],
    out: &'a mut [f32],
}

struct RowSums<'a> {
    rows: &'a [u16],
    dim: usize,
    weights: &'a [f32],
    acc: &'a mut [f32],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let (x, rest) = self.x.as_chunks::<{ 2 * LANES }>();
        let (out, last) = self.out.as_chunks_mut::<{ 2 * LANES }>();
        for (out, x) in out.iter_mut().zip(x) {
            *out = isa.to_halves(isa.load(x));
        }
        if let Some(rest) = rest.first_chunk::<LANES>() {
            last.copy_from_slice(&isa.to_halves(isa.repeat(rest))[..LANES]);
        }
    }
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let rows = self.rows.as_chunks::<LANES>().0;
        for (out, halves) in self.out.as_chunks_mut::<LANES>().0.iter_mut().zip(rows) {
            *out = isa.widen16(halves);
        }
    }
}

impl Kernel for RowScores<'_> {
    type Output = ();

    /// Two rows at once, in the halves of a register; each half is folded separately.
    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let dim = self.dim.max(1);
        let n = self.rows.len() / dim;
        let mut pairs = [isa.splat(0.0); MAX_HEAD_DIM / LANES];
        for (i, rows) in self.rows.chunks(2 * dim).enumerate() {
            let (first, second) = rows.split_at(dim);
            // The last row of an odd number is paired with itself.
            let second = if second.is_empty() { first } else { second };
            let chunks = first.as_chunks::<LANES>().0.iter().zip(second.as_chunks::<LANES>().0);
            for (pair, (first, second)) in pairs.iter_mut().zip(chunks) {
                let mut halves = [0; 2 * LANES];
                halves[..LANES].copy_from_slice(first);
                halves[LANES..].copy_from_slice(second);
                *pair = isa.load_halves(&halves);
            }
            for (query, out) in self.queries.chunks_exact(dim).zip(self.out.chunks_exact_mut(n)) {
                let mut sums = isa.splat(0.0);
                for (x, q) in pairs.iter().zip(query.as_chunks::<LANES>().0) {
                    sums = sums + *x * isa.repeat(q);
                }
                let mut lanes = [0.0; 2 * LANES];
                // Folds halves onto halves.
                let sums = sums.butterfly::<8>().butterfly::<4>().butterfly::<2>().butterfly::<1>();
                isa.store(sums, &mut lanes);
                out[2 * i..].iter_mut().zip([lanes[0], lanes[LANES]]).for_each(|(out, sum)| *out = sum);
            }
        }
    }
}

impl Kernel for RowSums<'_> {
    type Output = ();

    /// Column by column, so that sums stay in registers. The compiler turned a loop over rows into gathers
    /// and scatters across heads.
    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let rows = self.rows.chunks_exact(self.dim.max(1));
        for (weights, acc) in
            self.weights.chunks_exact(rows.len().max(1)).zip(self.acc.chunks_exact_mut(self.dim))
        {
            let (acc, last) = acc.as_chunks_mut::<{ 2 * LANES }>();
            for (column, acc) in acc.iter_mut().enumerate() {
                let mut sums = isa.load(acc);
                for (row, &weight) in rows.clone().zip(weights) {
                    if let Some(halves) = row.as_chunks().0.get(column) {
                        sums = sums + isa.load_halves(halves) * isa.splat(weight);
                    }
                }
                isa.store(sums, acc);
            }
            let Some(last) = last.first_chunk_mut::<LANES>() else { continue };
            for (row, weight) in rows.clone().zip(weights) {
                if let Some(halves) = row.last_chunk() {
                    let x = isa.widen16(halves);
                    last.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
                }
            }
        }
    }
}

//! f16 rows in memory of any alignment, summed in one order: the same bits on every level.
//!
//! For the few uncompressed tokens beside the coded ones of a cache, so that the whole of its
//! attention is reproducible. [`super::HalfPages`] is faster and promises no bits.

use crate::level::{Kernel, Level};
use crate::lines::Machine;
use tqkv_core::MAX_HEAD_DIM;

/// Lanes of a sum.
const LANES: usize = 16;

/// Logits of rows (f16 bits, `[n, dim]`) for queries (`[heads, dim]`): `out` is `[heads, n]`. `dim`
/// is a multiple of 16, at most [`MAX_HEAD_DIM`].
pub fn row_scores(level: Level, rows: &[u16], dim: usize, queries: &[f32], out: &mut [f32]) {
    level.run(RowScores { rows, dim, queries, out });
}

/// `acc[h] += sum of weights[h][i] * row i`: `weights` is `[heads, n]`, `acc` `[heads, dim]`, the rest
/// as in [`row_scores`].
pub fn row_sums(level: Level, rows: &[u16], dim: usize, weights: &[f32], acc: &mut [f32]) {
    level.run(RowSums { rows, dim, weights, acc });
}

/// Rounds values to f16 bits, to nearest, ties to even: equally many of both, a multiple of 16.
///
/// # Panics
/// They are not.
pub fn narrow_rows(level: Level, x: &[f32], out: &mut [u16]) {
    assert!(
        x.len() == out.len() && x.len().is_multiple_of(LANES),
        "as many halves as values, a multiple of 16"
    );
    level.run(Narrow { x, out });
}

/// The values of f16 bits: equally many of both, a multiple of 16.
///
/// # Panics
/// They are not.
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

/// A row as f32.
#[inline(always)]
fn widen<I: Machine>(isa: I, row: &[u16], buffer: &mut [[f32; LANES]]) {
    for (lanes, halves) in buffer.iter_mut().zip(row.as_chunks::<LANES>().0) {
        *lanes = isa.widen16(halves);
    }
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

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let n = self.rows.len() / self.dim.max(1);
        let mut buffer = [[0.0; LANES]; MAX_HEAD_DIM / LANES];
        for (i, row) in self.rows.chunks_exact(self.dim.max(1)).enumerate() {
            widen(isa, row, &mut buffer);
            for (query, out) in self.queries.chunks_exact(self.dim).zip(self.out.chunks_exact_mut(n)) {
                let mut sums = [0.0; LANES];
                for (x, q) in buffer.iter().zip(query.as_chunks::<LANES>().0) {
                    for j in 0..LANES {
                        sums[j] += x[j] * q[j];
                    }
                }
                out[i] = fold(sums);
            }
        }
    }
}

/// Halves onto halves.
#[inline(always)]
fn fold(sums: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = core::array::from_fn(|j| sums[j] + sums[j + 8]);
    let four: [f32; 4] = core::array::from_fn(|j| eight[j] + eight[j + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

impl Kernel for RowSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let n = self.rows.len() / self.dim.max(1);
        let mut buffer = [[0.0; LANES]; MAX_HEAD_DIM / LANES];
        for (i, row) in self.rows.chunks_exact(self.dim.max(1)).enumerate() {
            widen(isa, row, &mut buffer);
            for (weights, acc) in self.weights.chunks_exact(n).zip(self.acc.chunks_exact_mut(self.dim)) {
                for (sums, x) in acc.as_chunks_mut::<LANES>().0.iter_mut().zip(&buffer) {
                    for j in 0..LANES {
                        sums[j] += weights[i] * x[j];
                    }
                }
            }
        }
    }
}

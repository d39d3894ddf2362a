//! Uncompressed tokens: a queue of f16 rows, oldest first, back to back in memory.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use tqkv_simd::Level;
use tqkv_simd::page::{row_scores, row_sums};

/// A queue of vectors of `dim` values kept as f16.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    dim: usize,
    level: Level,
    /// Bit patterns; rows before `start` are dropped.
    values: Vec<u16>,
    start: usize,
}

impl Rows {
    pub(super) fn new(dim: usize, level: Level) -> Self {
        Self { dim, level, values: Vec::new(), start: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() / self.dim - self.start
    }

    /// Appends rows (`[n, dim]`), in memory that is no larger than it must be: these rows are the dearest of the cache.
    pub(super) fn push(&mut self, rows: &[f32]) {
        if self.values.capacity() - self.values.len() < rows.len() {
            self.close_gap();
            self.values.reserve_exact(rows.len());
        }
        self.values.extend(rows.iter().map(|&v| f16::from_f32(v).to_bits()));
    }

    /// Drops the oldest rows, and gives back memory but for `spare` rows.
    pub(super) fn drop_front(&mut self, rows: usize, spare: usize) {
        self.start += rows;
        let most = (self.len() + spare) * self.dim;
        if self.values.capacity() > most {
            self.close_gap();
            self.values.shrink_to(most);
        }
    }

    /// Moves the rows to the front of the memory.
    fn close_gap(&mut self) {
        self.values.drain(..self.start * self.dim);
        self.start = 0;
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.values.truncate((self.start + rows) * self.dim);
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.start = 0;
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.values.capacity() * size_of::<u16>()
    }

    /// Rows `first..first + n` as bit patterns.
    fn bits(&self, first: usize, n: usize) -> &[u16] {
        let at = (self.start + first) * self.dim;
        &self.values[at..at + n * self.dim]
    }

    /// Rows `first..first + out.len() / dim`, decoded into `out`.
    pub(super) fn read(&self, first: usize, out: &mut [f32]) {
        let halves: &[f16] = self.bits(first, out.len() / self.dim).reinterpret_cast();
        halves.convert_to_f32_slice(out);
    }

    /// Logits of the rows from `first` on for queries `[heads, dim]`: `out` is `[heads, n]`.
    pub(super) fn scores(&self, first: usize, queries: &[f32], out: &mut [f32]) {
        let n = out.len() / (queries.len() / self.dim);
        row_scores(self.level, self.bits(first, n), self.dim, queries, out);
    }

    /// Adds the weighted rows from `first` on: `weights` is `[heads, n]`, `acc` `[heads, dim]`.
    pub(super) fn accumulate(&self, first: usize, weights: &[f32], acc: &mut [f32]) {
        let n = weights.len() / (acc.len() / self.dim);
        row_sums(self.level, self.bits(first, n), self.dim, weights, acc);
    }
}

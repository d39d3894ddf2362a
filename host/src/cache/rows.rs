//! Uncompressed tokens: a ring of f16 rows, oldest first.

use super::budget::{Budget, Lease};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use tqkv_simd::Level;
use tqkv_simd::page::{row_scores, row_sums};

/// A queue of vectors of `dim` values kept as f16, in a ring that is no larger than it must be: these rows are the
/// dearest of the cache.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    dim: usize,
    level: Level,
    /// Bit patterns of all slots of the ring.
    values: Vec<u16>,
    /// Slot of the oldest row.
    start: usize,
    len: usize,
    lease: Lease,
}

impl Rows {
    pub(super) fn new(dim: usize, level: Level, budget: &Budget) -> Self {
        Self { dim, level, values: Vec::new(), start: 0, len: 0, lease: budget.lease() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Slots of the ring.
    pub(super) fn capacity(&self) -> usize {
        self.values.len() / self.dim
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.dim * size_of::<u16>()
    }

    /// Appends rows of `dim` values.
    pub(super) fn push<'a>(&mut self, rows: impl ExactSizeIterator<Item = &'a [f32]>) {
        let len = self.len + rows.len();
        if len > self.capacity() {
            self.resize(len);
        }
        for row in rows {
            let slot = (self.start + self.len) % self.capacity() * self.dim;
            let halves: &mut [f16] = self.values[slot..slot + self.dim].reinterpret_cast_mut();
            halves.convert_from_f32_slice(row);
            self.len += 1;
        }
    }

    /// Drops the oldest rows, and gives back memory but for `spare` rows.
    pub(super) fn drop_front(&mut self, rows: usize, spare: usize) {
        self.len -= rows;
        self.start = if self.len == 0 { 0 } else { (self.start + rows) % self.capacity() };
        if self.capacity() > self.len + spare {
            self.resize(self.len + spare);
        }
    }

    /// Moves the rows to a ring of other size, from its first slot on.
    fn resize(&mut self, slots: usize) {
        let mut values = Vec::new();
        values.reserve_exact(slots * self.dim);
        let mut row = 0;
        while row < self.len {
            let end = self.run_end(row);
            values.extend_from_slice(self.bits(row, end - row));
            row = end;
        }
        values.resize(slots * self.dim, 0);
        (self.values, self.start) = (values, 0);
        self.lease.set(self.allocated_bytes());
    }

    /// Drops the newest rows, down to `rows`.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.len = self.len.min(rows);
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.len) = (0, 0);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.values.capacity() * size_of::<u16>()
    }

    /// One past the last row that lies back to back with row `first` in memory.
    pub(super) fn run_end(&self, first: usize) -> usize {
        let wrap = self.capacity() - self.start;
        if first < wrap { self.len.min(wrap) } else { self.len }
    }

    /// Rows `first..first + n`, of one run, as bit patterns.
    fn bits(&self, first: usize, n: usize) -> &[u16] {
        if n == 0 {
            return &[];
        }
        let at = (self.start + first) % self.capacity() * self.dim;
        &self.values[at..at + n * self.dim]
    }

    /// Rows `first..first + out.len() / dim`, decoded into `out`.
    pub(super) fn read(&self, mut first: usize, mut out: &mut [f32]) {
        while !out.is_empty() {
            let rows = (out.len() / self.dim).min(self.run_end(first) - first);
            let (now, later) = out.split_at_mut(rows * self.dim);
            let halves: &[f16] = self.bits(first, rows).reinterpret_cast();
            halves.convert_to_f32_slice(now);
            (first, out) = (first + rows, later);
        }
    }

    /// Logits of rows of one run from `first` on for queries `[heads, dim]`: `out` is `[heads, n]`.
    pub(super) fn scores(&self, first: usize, queries: &[f32], out: &mut [f32]) {
        let n = out.len() / (queries.len() / self.dim);
        row_scores(self.level, self.bits(first, n), self.dim, queries, out);
    }

    /// Adds weighted rows of one run from `first` on: `weights` is `[heads, n]`, `acc` `[heads, dim]`.
    pub(super) fn accumulate(&self, first: usize, weights: &[f32], acc: &mut [f32]) {
        let n = weights.len() / (acc.len() / self.dim);
        row_sums(self.level, self.bits(first, n), self.dim, weights, acc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Rows are told apart by their first value; reading goes over the seam of the ring.
    #[test]
    fn a_ring_keeps_rows_in_order_over_its_seam() {
        let budget = Budget::unlimited();
        let mut rows = Rows::new(2, Level::Portable, &budget);
        let mut model = VecDeque::new();
        let mut next = 0.0;
        for round in 0..200 {
            let pushed: Vec<[f32; 2]> = (0..round % 7).map(|i| [next + i as f32, 1.0]).collect();
            next = (next + pushed.len() as f32) % 2000.0;
            rows.push(pushed.iter().map(<[f32; 2]>::as_slice));
            model.extend(pushed);
            let gone = (round * 5 % 7).min(model.len());
            rows.drop_front(gone, round % 3);
            model.drain(..gone);
            if round % 11 == 0 {
                rows.truncate(model.len() / 2);
                model.truncate(model.len() / 2);
            }
            let mut out = vec![0.0; model.len() * 2];
            rows.read(0, &mut out);
            assert_eq!(out, model.iter().flatten().copied().collect::<Vec<_>>(), "round {round}");
            assert_eq!(rows.len(), model.len());
            assert_eq!(budget.used(), rows.allocated_bytes());
        }
        drop(rows);
        assert_eq!(budget.used(), 0);
    }
}

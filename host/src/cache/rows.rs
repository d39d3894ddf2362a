//! Uncompressed tokens: a ring of f16 rows.
//!
//! The rows wrap round at the end of the buffer, wherever the history of the cache puts that seam.
//! Kernels see one run of rows or two. A score depends on its row alone, and a sum adds row after row, so
//! the seam changes no bit.

use super::budget::{Budget, Lease};
use super::vectors::Floats;
use crate::error::CacheError;
use crate::memory;
use tqkv_simd::Level;
use tqkv_simd::page::{row_scores, row_sums, widen_rows};

/// A queue of vectors of `dim` values in f16, oldest first. The buffer is as small as possible, because these
/// rows take the most bytes per token.
#[derive(Debug)]
pub(super) struct HalfRows {
    dim: usize,
    level: Level,
    /// Bit patterns of all rows of the ring. Its capacity is that of the list.
    values: Vec<u16>,
    /// The place of the oldest row, in rows.
    start: usize,
    len: usize,
    lease: Lease,
}

impl Clone for HalfRows {
    /// The copy has the same capacity, because its owner is about to write.
    fn clone(&self) -> Self {
        let Self { dim, level, start, len, .. } = *self;
        let mut copy =
            Self { values: self.values.clone(), start, len, ..Self::new(dim, level, self.lease.budget()) };
        copy.count();
        copy
    }
}

impl HalfRows {
    pub(super) fn new(dim: usize, level: Level, budget: &Budget) -> Self {
        Self { dim, level, values: Vec::new(), start: 0, len: 0, lease: budget.lease() }
    }

    /// Makes a copy with the same capacity, like [`Clone`], but can fail.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn copy(&self) -> Result<Self, CacheError> {
        let mut rows = self.emptied();
        rows.values = self.in_order(self.capacity())?;
        rows.len = self.len;
        rows.count();
        Ok(rows)
    }

    /// An empty queue of the same kind.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.dim, self.level, self.lease.budget())
    }

    pub(super) fn level(&self) -> Level {
        self.level
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Capacity in rows.
    pub(super) fn capacity(&self) -> usize {
        self.values.len() / self.dim
    }

    /// Bytes per row.
    pub(super) fn row_bytes(&self) -> usize {
        self.dim * size_of::<u16>()
    }

    /// Makes room for this many rows in total.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn make_room(&mut self, rows: usize) -> Result<(), CacheError> {
        if self.capacity() < rows { self.resize(rows) } else { Ok(()) }
    }

    /// Appends rows of `dim` values: all of them or none.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn push<'a>(
        &mut self,
        rows: impl ExactSizeIterator<Item = Floats<'a>>,
    ) -> Result<(), CacheError> {
        self.make_room(self.len + rows.len())?;
        for row in rows {
            let at = self.place(self.len) * self.dim;
            row.narrow(self.level, &mut self.values[at..at + self.dim]);
            self.len += 1;
        }
        Ok(())
    }

    /// Drops the oldest rows, and keeps the memory.
    pub(super) fn drop_front(&mut self, rows: usize) {
        self.start = self.place(rows);
        self.len -= rows;
    }

    /// Frees memory beyond `spare` rows.
    pub(super) fn shrink(&mut self, spare: usize) {
        let most = self.len + spare;
        if self.capacity() > most {
            // Without memory for the smaller buffer, the larger one stays.
            let _ = self.resize(most);
        }
    }

    /// Gives the ring another capacity. The rows are in order afterwards.
    fn resize(&mut self, rows: usize) -> Result<(), CacheError> {
        (self.values, self.start) = (self.in_order(rows)?, 0);
        self.count();
        Ok(())
    }

    /// The rows from the oldest on, in a buffer for `capacity` rows.
    fn in_order(&self, capacity: usize) -> Result<Vec<u16>, CacheError> {
        let mut values = memory::list(capacity * self.dim)?;
        self.runs(0, self.len).iter().for_each(|run| values.extend_from_slice(run));
        values.resize(capacity * self.dim, 0);
        Ok(values)
    }

    /// The place of a row that is `row` rows after the oldest.
    fn place(&self, row: usize) -> usize {
        let place = self.start + row;
        if place < self.capacity() { place } else { place - self.capacity() }
    }

    /// Reports the allocated bytes to the budget.
    fn count(&mut self) {
        self.lease.set(self.allocated_bytes());
    }

    /// Drops the newest rows until `rows` are left.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.len = self.len.min(rows);
    }

    /// Drops all rows, and keeps the memory.
    pub(super) fn empty(&mut self) {
        (self.start, self.len) = (0, 0);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    /// Rows `first..first + n` as bit patterns: up to the seam, and after it.
    pub(super) fn runs(&self, first: usize, n: usize) -> [&[u16]; 2] {
        let place = self.place(first);
        let before = n.min(self.capacity() - place);
        let run = |place: usize, n: usize| &self.values[place * self.dim..(place + n) * self.dim];
        [run(place, before), run(0, n - before)]
    }

    /// Rows `first..first + out.len() / dim`, decoded into `out`.
    pub(super) fn read(&self, first: usize, out: &mut [f32]) {
        let [before, behind] = self.runs(first, out.len() / self.dim);
        let (head, tail) = out.split_at_mut(before.len());
        widen_rows(self.level, before, head);
        widen_rows(self.level, behind, tail);
    }

    /// Logits of the rows from `first` on for queries `[heads, dim]`: `out` is `[heads, n]`.
    pub(super) fn scores(&self, first: usize, queries: &[f32], out: &mut [f32]) {
        let n = out.len() / (queries.len() / self.dim);
        let [before, behind] = self.runs(first, n);
        if behind.is_empty() {
            return row_scores(self.level, before, self.dim, queries, out);
        }
        let seam = before.len() / self.dim;
        for (query, out) in queries.chunks_exact(self.dim).zip(out.chunks_exact_mut(n)) {
            let (head, tail) = out.split_at_mut(seam);
            row_scores(self.level, before, self.dim, query, head);
            row_scores(self.level, behind, self.dim, query, tail);
        }
    }

    /// Adds the weighted rows from `first` on: `weights` is `[heads, n]`, `acc` `[heads, dim]`.
    pub(super) fn accumulate(&self, first: usize, weights: &[f32], acc: &mut [f32]) {
        let n = weights.len() / (acc.len() / self.dim);
        let [before, behind] = self.runs(first, n);
        if behind.is_empty() {
            return row_sums(self.level, before, self.dim, weights, acc);
        }
        let seam = before.len() / self.dim;
        for (weights, acc) in weights.chunks_exact(n).zip(acc.chunks_exact_mut(self.dim)) {
            let (head, tail) = weights.split_at(seam);
            row_sums(self.level, before, self.dim, head, acc);
            row_sums(self.level, behind, self.dim, tail, acc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn rows_stay_in_order_and_are_counted() {
        let budget = Budget::unlimited();
        let mut rows = HalfRows::new(16, Level::Portable, &budget);
        let mut model = VecDeque::new();
        let mut next = 0.0;
        for round in 0..200 {
            let pushed: Vec<[f32; 16]> = (0..round % 7).map(|i| [next + i as f32; 16]).collect();
            next = (next + pushed.len() as f32) % 2000.0;
            rows.push(pushed.iter().map(Floats::from)).unwrap();
            model.extend(pushed);
            let gone = (round * 5 % 7).min(model.len());
            rows.drop_front(gone);
            if round % 5 == 0 {
                rows.shrink(round % 3);
            }
            model.drain(..gone);
            if round % 11 == 0 {
                rows.truncate(model.len() / 2);
                model.truncate(model.len() / 2);
            }
            let mut out = vec![0.0; model.len() * 16];
            rows.read(0, &mut out);
            assert_eq!(out, model.iter().flatten().copied().collect::<Vec<_>>(), "round {round}");
            assert_eq!(rows.len(), model.len());
            assert_eq!(budget.used(), rows.allocated_bytes());
        }
        drop(rows);
        assert_eq!(budget.used(), 0);
    }
}

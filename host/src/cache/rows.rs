//! Uncompressed tokens: a queue of f16 rows, oldest first, back to back in memory.
//!
//! This is not a ring. Sums over rows would split at its seam, so their last bits would depend on the history
//! of the cache. Rows move through a buffer with some spare room, and are copied to its front now and then.

use super::budget::{Budget, Lease};
use super::vectors::Floats;
use crate::error::CacheError;
use crate::memory;
use tqkv_simd::Level;
use tqkv_simd::page::{row_scores, row_sums, widen_rows};

/// A queue of vectors of `dim` values in f16. The buffer is as small as possible, because these rows take the
/// most bytes per token.
#[derive(Debug)]
pub(super) struct Rows {
    dim: usize,
    level: Level,
    /// Bit patterns. The rows before `start` have been dropped.
    values: Vec<u16>,
    start: usize,
    lease: Lease,
}

impl Clone for Rows {
    /// The copy has the same capacity, because its owner is about to write.
    fn clone(&self) -> Self {
        let mut rows = self.emptied();
        rows.values.reserve_exact(self.values.capacity());
        rows.values.extend_from_slice(&self.values[self.start * self.dim..]);
        rows.count();
        rows
    }
}

impl Rows {
    pub(super) fn new(dim: usize, level: Level, budget: &Budget) -> Self {
        Self { dim, level, values: Vec::new(), start: 0, lease: budget.lease() }
    }

    /// Makes a copy with the same capacity, like [`Clone`], but can fail.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn copy(&self) -> Result<Self, CacheError> {
        let mut rows = self.emptied();
        memory::reserve_exact(&mut rows.values, self.values.capacity())?;
        rows.values.extend_from_slice(&self.values[self.start * self.dim..]);
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
        self.values.len() / self.dim - self.start
    }

    /// Capacity in rows.
    pub(super) fn capacity(&self) -> usize {
        self.values.capacity() / self.dim
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
        if self.capacity() < rows {
            self.close_gap();
            let more = rows * self.dim - self.values.len();
            memory::reserve_exact(&mut self.values, more)?;
            self.count();
        }
        Ok(())
    }

    /// Appends rows of `dim` values: all of them or none.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn push<'a>(
        &mut self,
        rows: impl ExactSizeIterator<Item = Floats<'a>>,
    ) -> Result<(), CacheError> {
        let new = rows.len() * self.dim;
        if self.values.capacity() - self.values.len() < new {
            self.close_gap();
            memory::reserve_exact(&mut self.values, new)?;
            self.count();
        }
        let mut at = self.values.len();
        self.values.resize(at + new, 0);
        for row in rows {
            row.narrow(self.level, &mut self.values[at..at + self.dim]);
            at += self.dim;
        }
        Ok(())
    }

    /// Drops the oldest rows, and frees memory beyond `spare` rows.
    pub(super) fn drop_front(&mut self, rows: usize, spare: usize) {
        self.start += rows;
        let most = (self.len() + spare) * self.dim;
        if self.values.capacity() > most {
            self.close_gap();
            self.values.shrink_to(most);
            self.count();
        }
    }

    /// Moves the rows to the front of the buffer.
    fn close_gap(&mut self) {
        self.values.drain(..self.start * self.dim);
        self.start = 0;
    }

    /// Reports the allocated bytes to the budget.
    fn count(&mut self) {
        self.lease.set(self.allocated_bytes());
    }

    /// Drops the newest rows until `rows` are left.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.values.truncate((self.start + rows) * self.dim);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.values.capacity() * size_of::<u16>()
    }

    /// Rows `first..first + n` as bit patterns.
    pub(super) fn bits(&self, first: usize, n: usize) -> &[u16] {
        let at = (self.start + first) * self.dim;
        &self.values[at..at + n * self.dim]
    }

    /// Rows `first..first + out.len() / dim`, decoded into `out`.
    pub(super) fn read(&self, first: usize, out: &mut [f32]) {
        widen_rows(self.level, self.bits(first, out.len() / self.dim), out);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn rows_stay_in_order_and_are_counted() {
        let budget = Budget::unlimited();
        let mut rows = Rows::new(16, Level::Portable, &budget);
        let mut model = VecDeque::new();
        let mut next = 0.0;
        for round in 0..200 {
            let pushed: Vec<[f32; 16]> = (0..round % 7).map(|i| [next + i as f32; 16]).collect();
            next = (next + pushed.len() as f32) % 2000.0;
            rows.push(pushed.iter().map(Floats::from)).unwrap();
            model.extend(pushed);
            let gone = (round * 5 % 7).min(model.len());
            rows.drop_front(gone, round % 3);
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

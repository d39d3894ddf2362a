//! Uncompressed tokens: a queue of f16 rows, oldest first.

use half::f16;
use half::slice::HalfFloatSliceExt;
use std::collections::VecDeque;

/// Rows for which memory is taken at once.
const SPARE_ROWS: usize = 4;

/// A queue of vectors of `dim` values kept as f16.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    dim: usize,
    values: VecDeque<f16>,
}

impl Rows {
    pub(super) fn new(dim: usize) -> Self {
        Self { dim, values: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() / self.dim
    }

    pub(super) fn push(&mut self, row: &[f32]) {
        // By an eighth, as these rows are the dearest of the cache and doubling would waste half of them.
        if self.values.capacity() - self.values.len() < self.dim {
            self.values.reserve_exact((self.len() / 8).max(SPARE_ROWS) * self.dim);
        }
        self.values.extend(row.iter().map(|&v| f16::from_f32(v)));
    }

    /// Row `i` as f32.
    pub(super) fn read(&self, i: usize, out: &mut [f32]) {
        self.read_many(i, out);
    }

    /// Drops the oldest row.
    pub(super) fn pop_front(&mut self) {
        self.values.drain(..self.dim);
    }

    /// Gives spare memory back where there is much of it: after keys have waited for their mean.
    pub(super) fn release(&mut self) {
        let spare = (self.len() / 8).max(SPARE_ROWS);
        if self.values.capacity() > (self.len() + 2 * spare) * self.dim {
            self.values.shrink_to((self.len() + spare) * self.dim);
        }
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows * self.dim);
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.values.capacity() * size_of::<f16>()
    }

    /// Rows `first..first + out.len() / dim`, decoded into `out`.
    pub(super) fn read_many(&self, first: usize, out: &mut [f32]) {
        let (front, back) = self.values.as_slices();
        let start = first * self.dim;
        let split = front.len().saturating_sub(start).min(out.len());
        let (head, tail) = out.split_at_mut(split);
        if !head.is_empty() {
            front[start..start + split].convert_to_f32_slice(head);
        }
        let start = start.saturating_sub(front.len());
        back[start..start + tail.len()].convert_to_f32_slice(tail);
    }
}

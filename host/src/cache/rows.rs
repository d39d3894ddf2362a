//! Uncompressed tokens: a queue of f16 rows, oldest first.

use half::f16;
use half::slice::HalfFloatSliceExt;
use std::collections::VecDeque;

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
        self.values.extend(row.iter().map(|&v| f16::from_f32(v)));
    }

    /// Row `i` as f32.
    pub(super) fn read(&self, i: usize, out: &mut [f32]) {
        for (to, from) in out.iter_mut().zip(self.values.range(i * self.dim..(i + 1) * self.dim)) {
            *to = from.to_f32();
        }
    }

    /// Drops the oldest row.
    pub(super) fn pop_front(&mut self) {
        self.values.drain(..self.dim);
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

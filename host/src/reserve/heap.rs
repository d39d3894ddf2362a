//! The same vector on the heap, for systems without an interface for address space. It keeps its memory.

use bytemuck::Pod;
use std::ops::{Deref, DerefMut, Range};

/// A vector with a fixed largest length.
#[derive(Clone, Debug)]
pub(crate) struct Table<T> {
    capacity: usize,
    elements: Vec<T>,
}

impl<T: Pod> Table<T> {
    /// An empty table for at most `capacity` elements.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, elements: Vec::new() }
    }

    /// Bytes held, wherever the ranges are: no part is given back.
    pub(crate) fn held_in(&self, _: impl Iterator<Item = Range<usize>>) -> usize {
        self.elements.capacity() * size_of::<T>()
    }

    /// Sets the length. New elements are zeros.
    ///
    /// # Panics
    /// If the length is above the capacity.
    pub(crate) fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity, "a table of {} elements has no {len}", self.capacity);
        self.elements.resize(len, T::zeroed());
    }

    /// Makes elements zeros.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        self[range].fill(T::zeroed());
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}

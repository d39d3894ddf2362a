//! Things that a ring holds ready, so that all its memory is taken when the cache is made.
//!
//! A page that leaves the ring goes back to the shelf of its tier, and the next page of that tier comes
//! from there. Other caches have empty shelves, and their pages come from the allocator.

use std::sync::Arc;

/// Empty pages of one tier.
#[derive(Debug)]
pub(super) struct Shelf<T> {
    pages: Vec<Arc<T>>,
    /// Number of pages of the tier, on the shelf and in use, that a ring has. 0 without a ring.
    most: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), most: 0 }
    }
}

impl<T> Clone for Shelf<T> {
    /// The copy has no pages of its own yet.
    fn clone(&self) -> Self {
        Self { pages: Vec::new(), most: self.most }
    }
}

impl<T> Shelf<T> {
    /// Sets the number of pages of the ring's tier.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Number of pages on the shelf.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// True if there are `pages` more pages, or the tier needs none.
    pub(super) fn has(&self, pages: usize) -> bool {
        self.most == 0 || self.pages.len() >= pages
    }

    /// Number of pages that a tier lacks, which uses `used` pages of its own.
    pub(super) fn missing(&self, used: usize) -> usize {
        self.most.saturating_sub(used + self.pages.len())
    }

    /// Fills the shelf with what `make` makes, for a tier that uses `used` pages of its own.
    pub(super) fn fill(&mut self, used: usize, make: impl FnMut() -> T) {
        let more = self.missing(used);
        self.pages.reserve_exact(self.most.saturating_sub(self.pages.len()));
        self.pages.extend(std::iter::repeat_with(make).take(more).map(Arc::new));
    }

    /// Takes an empty page.
    pub(super) fn take(&mut self) -> Option<Arc<T>> {
        self.pages.pop()
    }

    /// Takes back a page of a tier that uses `used` other pages. A page that a fork shares stays with the
    /// fork.
    pub(super) fn give(&mut self, mut page: Arc<T>, used: usize, blank: impl FnOnce(&mut T)) {
        if self.pages.len() + used < self.most
            && let Some(own) = Arc::get_mut(&mut page)
        {
            blank(own);
            self.pages.push(page);
        }
    }

    /// Bytes of the list of these pages.
    pub(super) fn list_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Arc<T>>()
    }
}

//! A vector in reserved address space. It grows without a copy, and gives memory back by pages of the system,
//! so the bytes that it holds are the bytes that are resident.
#![expect(unsafe_code, reason = "elements lie at addresses of a reservation")]

use super::region::Region;
#[cfg(unix)]
use super::unix::page_bytes;
#[cfg(windows)]
use super::windows::page_bytes;
use bytemuck::Pod;
use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// A vector with a fixed largest length, in address space that is reserved when the first element comes.
#[derive(Debug)]
pub(crate) struct Table<T> {
    capacity: usize,
    len: usize,
    /// Bytes that are committed, from the first on: whole pages.
    held: usize,
    region: Option<Region>,
    elements: PhantomData<T>,
}

impl<T: Pod> Table<T> {
    /// An empty table for at most `capacity` elements.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, len: 0, held: 0, region: None, elements: PhantomData }
    }

    /// Bytes of the system's pages that some ranges of elements touch. The ranges are in ascending order.
    pub(crate) fn held_in(&self, ranges: impl Iterator<Item = Range<usize>>) -> usize {
        let (page, size) = (page_bytes(), size_of::<T>());
        let (mut held, mut from) = (0, 0);
        for range in ranges {
            let end = (range.end * size).next_multiple_of(page);
            held += end - from.max(range.start * size / page * page);
            from = end;
        }
        held
    }

    /// Sets the length. New elements are zeros.
    ///
    /// # Panics
    /// If the length is above the capacity.
    pub(crate) fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity, "a table of {} elements has no {len}", self.capacity);
        if len < self.len {
            self[len..].fill(T::zeroed());
        }
        self.hold(len * size_of::<T>());
        self.len = len;
    }

    /// Commits at least the first `bytes` bytes. Ends the process if the system lacks memory, as `Vec` does.
    fn hold(&mut self, bytes: usize) {
        if bytes <= self.held {
            return;
        }
        let all = Layout::array::<T>(self.capacity).unwrap_or(Layout::new::<T>());
        let end = bytes.next_multiple_of(page_bytes());
        let region = self.region.take().or_else(|| Region::new(all.size()));
        let Some(region) = region.filter(|region| region.commit(self.held..end)) else {
            handle_alloc_error(all)
        };
        (self.held, self.region) = (end, Some(region));
    }

    /// Makes elements zeros, and gives their whole pages back.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        let (size, page) = (size_of::<T>(), page_bytes());
        let start = (range.start * size).next_multiple_of(page).min(range.end * size);
        let end = (range.end * size / page * page).max(start);
        self[range.start..start.div_ceil(size)].fill(T::zeroed());
        self[end / size..range.end].fill(T::zeroed());
        if let Some(region) = self.region.as_ref() {
            // SAFETY: the elements are Copy and borrowed by nobody, as `self` is mutable.
            unsafe { region.discard(start..end) };
            if !region.commit(start..end) {
                handle_alloc_error(Layout::new::<T>());
            }
        }
    }
}

impl<T: Pod> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.region {
            // SAFETY: the first `len` elements are committed and are zeros or what was written, both of which
            // are values of any `Pod` type. A page is aligned for any `T` that is no larger than a line.
            Some(region) => unsafe { std::slice::from_raw_parts(region.base().cast(), self.len) },
            None => &[],
        }
    }
}

impl<T: Pod> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &self.region {
            // SAFETY: as in `deref`; `self` is mutable, so this is the only reference.
            Some(region) => unsafe { std::slice::from_raw_parts_mut(region.base().cast(), self.len) },
            None => &mut [],
        }
    }
}

impl<T: Pod> Clone for Table<T> {
    /// A copy. Pages of zeros stay untouched, and so take no memory.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.capacity);
        copy.resize(self.len);
        let step = (page_bytes() / size_of::<T>()).max(1);
        for (to, from) in copy.chunks_mut(step).zip(self.chunks(step)) {
            if bytemuck::cast_slice::<T, u8>(from).iter().any(|byte| *byte != 0) {
                to.copy_from_slice(from);
            }
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_are_whole_pages() {
        let each = page_bytes() / size_of::<u32>();
        let table = Table::<u32>::new(64 * each);
        assert_eq!((table.len(), table.held_in(std::iter::empty())), (0, 0));
        for len in [1, each, 5 * each + 3] {
            assert_eq!(table.held_in(std::iter::once(0..len)), (4 * len).next_multiple_of(page_bytes()));
        }
        let (one, pages) = (0..1, 5 * each - 1..6 * each);
        assert_eq!(table.held_in([one, pages].into_iter()), 3 * page_bytes());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_table_does_not_hold_is_not_resident() {
        use std::os::unix::fs::FileExt;
        let page = page_bytes();
        let resident = |table: &Table<u32>| {
            let region = table.region.as_ref().expect("a region");
            let mut entries = vec![0; region.bytes() / page * size_of::<u64>()];
            let file = std::fs::File::open("/proc/self/pagemap").expect("a list of pages");
            let at = region.base() as u64 / page as u64 * size_of::<u64>() as u64;
            file.read_exact_at(&mut entries, at).expect("an entry for each page");
            // The top bit of an entry says that the page is in memory.
            page * entries
                .as_chunks::<8>()
                .0
                .iter()
                .filter(|entry| u64::from_ne_bytes(**entry) >> 63 == 1)
                .count()
        };
        let mut table = Table::<u32>::new(page * 16);
        table.resize(page * 8);
        assert_eq!(resident(&table), 0, "nothing was touched");
        table.fill(1);
        assert_eq!(resident(&table), 32 * page);
        table.forget(page..page * 2);
        assert_eq!(resident(&table), 28 * page);
        assert_eq!(resident(&table.clone()), 28 * page, "pages of zeros are not copied");
        table.forget(page..page * 8);
        assert_eq!(resident(&table), 4 * page);
    }
}

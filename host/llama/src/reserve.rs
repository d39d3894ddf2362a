//! Memory in reserved address space. It grows without a copy, and gives memory back by pages of the system.
//! So the bytes that it holds are the bytes that are resident.

#![allow(unsafe_code, reason = "memory comes from the system by address")]

use crate::os;
use half::f16;
use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use tqkv_simd::page::Line;

/// A reservation of address space.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is memory that it alone owns.
unsafe impl Send for Region {}
// SAFETY: as above; a shared reference gives only an address.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves bytes, rounded up to pages. None if the system has no such address space.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(os::page_bytes())?;
        NonNull::new(os::reserve(bytes)).map(|base| Self { base, bytes })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes a range usable, rounded to pages. False if it is too long or the system lacks memory.
    pub(crate) fn commit(&self, range: Range<usize>) -> bool {
        let page = os::page_bytes();
        let (start, end) = (range.start / page * page, range.end.next_multiple_of(page));
        // SAFETY: the range is checked to lie in the reservation.
        end <= self.bytes && start <= end && unsafe { os::commit(self.base().add(start), end - start) }
    }

    /// Gives the memory of the whole pages in a range back. They are zeros when they are committed again.
    ///
    /// # Safety
    /// Nothing refers to the range, and nothing reads it before it is committed again.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) {
        let page = os::page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end.min(self.bytes) / page * page);
        if start < end {
            // SAFETY: the range lies in the reservation; the caller keeps this function's contract.
            unsafe { os::discard(self.base().add(start), end - start) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` reserved exactly this range, and the owner is gone.
        unsafe { os::release(self.base(), self.bytes) };
    }
}

/// Types of which zeros are a value, and which need no drop.
///
/// # Safety
/// All bytes 0 are a valid value.
pub(crate) unsafe trait Zeros: Copy {}
// SAFETY: a number.
unsafe impl Zeros for u32 {}
// SAFETY: a struct of 16 bits that may be any.
unsafe impl Zeros for f16 {}
// SAFETY: a struct of 64 bytes that may be any.
unsafe impl Zeros for Line {}

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

impl<T: Zeros> Table<T> {
    /// An empty table for at most `capacity` elements.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, len: 0, held: 0, region: None, elements: PhantomData }
    }

    /// Bytes held: whole pages of the system.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held
    }

    /// Sets the length. New elements are zeros.
    ///
    /// # Panics
    /// If the length is above the capacity.
    pub(crate) fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity, "a table of {} elements has no {len}", self.capacity);
        if len < self.len {
            // SAFETY: all bytes 0 are a value of `T`.
            let zero = unsafe { std::mem::zeroed() };
            self[len..].fill(zero);
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
        let end = bytes.next_multiple_of(os::page_bytes());
        let region = self.region.take().or_else(|| Region::new(all.size()));
        let Some(region) = region.filter(|region| region.commit(self.held..end)) else {
            handle_alloc_error(all)
        };
        (self.held, self.region) = (end, Some(region));
    }

    /// Gives the pages past the last element back.
    pub(crate) fn shrink(&mut self) {
        let end = (self.len * size_of::<T>()).next_multiple_of(os::page_bytes());
        if let Some(region) = self.region.as_ref().filter(|_| end < self.held) {
            // SAFETY: no element lies in these pages, and `hold` commits them before one does.
            unsafe { region.discard(end..self.held) };
            self.held = end;
        }
    }

    /// Makes elements zeros, and gives their whole pages back.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        // SAFETY: all bytes 0 are a value of `T`.
        let zero = unsafe { std::mem::zeroed() };
        let (size, page) = (size_of::<T>(), os::page_bytes());
        let start = (range.start * size).next_multiple_of(page).min(range.end * size);
        let end = (range.end * size / page * page).max(start);
        self[range.start..start.div_ceil(size)].fill(zero);
        self[end / size..range.end].fill(zero);
        if let Some(region) = self.region.as_ref() {
            // SAFETY: the elements are Copy and borrowed by nobody, as `self` is mutable.
            unsafe { region.discard(start..end) };
            if !region.commit(start..end) {
                handle_alloc_error(Layout::new::<T>());
            }
        }
    }
}

impl<T: Zeros> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.region {
            // SAFETY: the first `len` elements are committed and are zeros or what was written. A page is
            // aligned for any `T`.
            Some(region) => unsafe { std::slice::from_raw_parts(region.base().cast(), self.len) },
            None => &[],
        }
    }
}

impl<T: Zeros> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &self.region {
            // SAFETY: as in `deref`; `self` is mutable, so this is the only reference.
            Some(region) => unsafe { std::slice::from_raw_parts_mut(region.base().cast(), self.len) },
            None => &mut [],
        }
    }
}

impl<T: Zeros> Clone for Table<T> {
    /// A copy. Pages of zeros stay untouched, and so take no memory.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.capacity);
        copy.resize(self.len);
        let step = (os::page_bytes() / size_of::<T>()).max(1);
        for (to, from) in copy.chunks_mut(step).zip(self.chunks(step)) {
            // SAFETY: `T` has no padding, so each byte has a value.
            let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
            if bytes.iter().any(|byte| *byte != 0) {
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
    fn a_table_grows_shrinks_and_forgets_like_a_vector_of_zeros() {
        let page = os::page_bytes();
        let each = page / size_of::<u32>();
        let (mut table, mut wanted) = (Table::<u32>::new(64 * each), Vec::new());
        assert_eq!((table.len(), table.held_bytes()), (0, 0));
        for (step, len) in
            [1, each, 5 * each + 3, 40 * each, 7, 9 * each, 0, 64 * each].into_iter().enumerate()
        {
            table.resize(len);
            wanted.resize(len, 0);
            assert_eq!(*table, *wanted, "step {step}: new elements are zeros");
            let mark = |i: usize| (i + step + 1) as u32;
            table.iter_mut().enumerate().for_each(|(i, x)| *x = mark(i));
            wanted.iter_mut().enumerate().for_each(|(i, x)| *x = mark(i));
            let (from, to) = (len / 3, len / 2 + len / 4);
            table.forget(from..to);
            wanted[from..to].fill(0);
            assert_eq!(*table, *wanted, "step {step}: forgotten elements are zeros");
            assert_eq!(*table.clone(), *wanted, "step {step}: a copy is equal");
            table.shrink();
            assert_eq!(table.held_bytes(), (4 * len).next_multiple_of(page), "step {step}");
            assert_eq!(*table, *wanted, "step {step}: shrinking changes nothing");
        }
    }

    #[test]
    #[should_panic(expected = "a table of 8 elements has no 9")]
    fn a_table_refuses_more_than_its_capacity() {
        Table::<f16>::new(8).resize(9);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_table_does_not_hold_is_not_resident() {
        let page = os::page_bytes();
        let resident = |table: &Table<u32>| {
            let region = table.region.as_ref().expect("a region");
            let mut pages = vec![0u8; region.bytes() / page];
            // SAFETY: the range is one mapping, and there is a byte for each of its pages.
            let done = unsafe { libc::mincore(region.base().cast(), region.bytes(), pages.as_mut_ptr()) };
            assert_eq!(done, 0);
            page * pages.iter().filter(|page| **page & 1 == 1).count()
        };
        let mut table = Table::<u32>::new(page * 16);
        table.resize(page * 8);
        assert_eq!(resident(&table), 0, "nothing was touched");
        table.fill(1);
        assert_eq!((resident(&table), table.held_bytes()), (32 * page, 32 * page));
        table.forget(page..page * 2);
        assert_eq!(resident(&table), 28 * page);
        assert_eq!(resident(&table.clone()), 28 * page, "pages of zeros are not copied");
        table.resize(page);
        table.shrink();
        assert_eq!((resident(&table), table.held_bytes()), (4 * page, 4 * page));
    }
}

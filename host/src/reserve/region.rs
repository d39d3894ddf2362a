//! A reservation of address space, whose pages are committed and given back by range.
#![expect(unsafe_code, reason = "memory comes from the system by address")]

#[cfg(unix)]
use super::unix::{self as os, page_bytes};
#[cfg(windows)]
use super::windows::{self as os, page_bytes};
use std::ops::Range;
use std::ptr::NonNull;

/// A reservation of address space.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is memory that it alone owns.
unsafe impl Send for Region {}
// SAFETY: as above; a shared reference gives only an address.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves bytes, rounded up to pages. None if the system has no such address space.
    pub fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(page_bytes())?;
        NonNull::new(os::reserve(bytes)).map(|base| Self { base, bytes })
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size of the reservation in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes a range usable, rounded to pages. False if it is too long or the system lacks memory.
    pub fn commit(&self, range: Range<usize>) -> bool {
        let page = page_bytes();
        let (start, end) = (range.start / page * page, range.end.next_multiple_of(page));
        // SAFETY: the range is checked to lie in the reservation.
        end <= self.bytes && start <= end && unsafe { os::commit(self.base().add(start), end - start) }
    }

    /// Gives the memory of all complete pages in a range back. They are zeros when they are committed again.
    ///
    /// # Safety
    /// Nothing refers to the range, and nothing reads it before it is committed again.
    pub unsafe fn discard(&self, range: Range<usize>) {
        let page = page_bytes();
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

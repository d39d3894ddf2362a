//! Linux, macOS and other Unix systems, by the crate rustix.
#![expect(unsafe_code, reason = "functions of the system take addresses")]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::null_mut;

/// Bytes of a page of memory.
pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Maps anonymous memory at an address, or anywhere for null. Null if it fails.
///
/// # Safety
/// Nothing uses the memory at that address.
unsafe fn map(at: *mut u8, bytes: usize, flags: MapFlags) -> *mut u8 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let flags = flags | MapFlags::NORESERVE;
    let flags = MapFlags::PRIVATE | flags;
    // SAFETY: the caller keeps this function's contract.
    let base = unsafe { mmap_anonymous(at.cast(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    base.map_or(null_mut(), |base| base.cast())
}

/// Reserves address space; null if it fails.
pub(super) fn reserve(bytes: usize) -> *mut u8 {
    // SAFETY: a mapping at any free address touches no other memory.
    let base = unsafe { map(null_mut(), bytes, MapFlags::empty()) };
    #[cfg(target_os = "linux")]
    if !base.is_null() {
        // A huge page would make parts resident that nobody touched.
        // SAFETY: the range was mapped above. If the call fails, the system has no huge pages.
        let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, rustix::mm::Advice::LinuxNoHugepage) };
    }
    base
}

/// Does nothing: the system gives memory to a reserved range when it is touched.
///
/// # Safety
/// The range is reserved.
pub(super) unsafe fn commit(_: *mut u8, _: usize) -> bool {
    true
}

/// Gives the memory of a range back.
///
/// # Safety
/// The range is reserved, begins and ends with a page, and nothing refers to it.
pub(super) unsafe fn discard(at: *mut u8, bytes: usize) {
    // Only Linux promises that the pages read as zeros afterwards.
    #[cfg(target_os = "linux")]
    // SAFETY: the caller keeps this function's contract.
    if unsafe { rustix::mm::madvise(at.cast(), bytes, rustix::mm::Advice::LinuxDontNeed) }.is_ok() {
        return;
    }
    // SAFETY: the caller keeps this function's contract; the new mapping takes the place of the old one.
    unsafe { map(at, bytes, MapFlags::FIXED) };
}

/// Ends a reservation.
///
/// # Safety
/// The range is one reservation from its start to its end, and nothing refers to it.
pub(super) unsafe fn release(at: *mut u8, bytes: usize) {
    // SAFETY: the caller keeps this function's contract.
    let _ = unsafe { munmap(at.cast(), bytes) };
}

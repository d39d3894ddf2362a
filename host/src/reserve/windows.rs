//! Windows, by the crate windows-sys.
#![expect(unsafe_code, reason = "functions of the system take addresses")]

use std::mem::zeroed;
use std::ptr::null;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_DECOMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree,
};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};

/// Bytes of a page of memory.
pub(super) fn page_bytes() -> usize {
    // SAFETY: the struct has only numbers and pointers, so zeros are valid; the system fills it.
    unsafe {
        let mut info: SYSTEM_INFO = zeroed();
        GetSystemInfo(&raw mut info);
        info.dwPageSize as usize
    }
}

/// Reserves address space; null if it fails.
pub(super) fn reserve(bytes: usize) -> *mut u8 {
    // SAFETY: a reservation at any free address touches no other memory.
    unsafe { VirtualAlloc(null(), bytes, MEM_RESERVE, PAGE_READWRITE) }.cast()
}

/// Makes a range usable; false if the system lacks memory.
///
/// # Safety
/// The range is reserved.
pub(super) unsafe fn commit(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller keeps this function's contract. Pages that are committed already stay as they are.
    bytes == 0 || !unsafe { VirtualAlloc(at.cast(), bytes, MEM_COMMIT, PAGE_READWRITE) }.is_null()
}

/// Gives the memory of a range back.
///
/// # Safety
/// The range is reserved, begins and ends with a page, and nothing refers to it.
pub(super) unsafe fn discard(at: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller keeps this function's contract.
        unsafe { VirtualFree(at.cast(), bytes, MEM_DECOMMIT) };
    }
}

/// Ends a reservation.
///
/// # Safety
/// The range is one reservation from its start to its end, and nothing refers to it.
pub(super) unsafe fn release(at: *mut u8, _: usize) {
    // SAFETY: the caller keeps this function's contract; with this flag the size must be 0.
    unsafe { VirtualFree(at.cast(), 0, MEM_RELEASE) };
}

//! Windows, by the crate windows-sys.

#![allow(unsafe_code, reason = "functions of the system take addresses")]

use std::ffi::{CStr, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_DECOMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree,
};
use windows_sys::Win32::System::SystemInformation::{
    GetSystemInfo, GlobalMemoryStatusEx, MEMORYSTATUSEX, SYSTEM_INFO,
};

/// File names of the library with the functions of ggml: of builds by MSVC or clang, then of builds by MinGW.
const LIBRARIES: [&CStr; 2] = [c"ggml-base.dll", c"libggml-base.dll"];

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: the struct has only numbers and pointers, so zeros are valid; the system fills it.
    unsafe {
        let mut info: SYSTEM_INFO = zeroed();
        GetSystemInfo(&raw mut info);
        info.dwPageSize as usize
    }
}

/// Reserves address space; null if it fails.
pub(crate) fn reserve(bytes: usize) -> *mut u8 {
    // SAFETY: a reservation at any free address touches no other memory.
    unsafe { VirtualAlloc(null(), bytes, MEM_RESERVE, PAGE_READWRITE) }.cast()
}

/// Makes a range usable; false if the system lacks memory.
///
/// # Safety
/// The range is reserved.
pub(crate) unsafe fn commit(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller keeps this function's contract. Pages that are committed already stay as they are.
    bytes == 0 || !unsafe { VirtualAlloc(at.cast(), bytes, MEM_COMMIT, PAGE_READWRITE) }.is_null()
}

/// Gives the memory of a range back.
///
/// # Safety
/// The range is reserved, begins and ends with a page, and nothing refers to it.
pub(crate) unsafe fn discard(at: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller keeps this function's contract.
        unsafe { VirtualFree(at.cast(), bytes, MEM_DECOMMIT) };
    }
}

/// Ends a reservation.
///
/// # Safety
/// The range is one whole reservation, and nothing refers to it.
pub(crate) unsafe fn release(at: *mut u8, _: usize) {
    // SAFETY: the caller keeps this function's contract; with this flag the size must be 0.
    unsafe { VirtualFree(at.cast(), 0, MEM_RELEASE) };
}

/// Free memory and total memory of the machine, in bytes.
pub(crate) fn memory() -> (usize, usize) {
    // SAFETY: the struct has only numbers, so zeros are valid; the system fills it.
    let status = unsafe {
        let mut status: MEMORYSTATUSEX = zeroed();
        status.dwLength = size_of::<MEMORYSTATUSEX>() as u32;
        GlobalMemoryStatusEx(&raw mut status);
        status
    };
    (status.ullAvailPhys as usize, status.ullTotalPhys as usize)
}

/// The loaded library with the functions of ggml; the program itself, as null, where there is none.
pub(crate) fn ggml_base() -> *mut c_void {
    // SAFETY: the strings end in NUL; the function loads nothing.
    let handles = LIBRARIES.into_iter().map(|name| unsafe { GetModuleHandleA(name.as_ptr().cast()) });
    handles.into_iter().find(|handle| !handle.is_null()).unwrap_or(null_mut())
}

/// Address of a function in the library, or in the program for null.
pub(crate) fn function(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both handles are those of loaded modules, and the string ends in NUL.
    unsafe {
        let module = if library.is_null() { GetModuleHandleA(null()) } else { library };
        GetProcAddress(module, name.as_ptr().cast()).map(|function| function as *mut c_void)
    }
}

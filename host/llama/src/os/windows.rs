//! Windows, by the crate windows-sys.

#![allow(unsafe_code, reason = "functions of the system take addresses")]

use std::ffi::{CStr, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

/// File names of the library with the functions of ggml: of builds by MSVC or clang, then of builds by MinGW.
const LIBRARIES: [&CStr; 2] = [c"ggml-base.dll", c"libggml-base.dll"];

/// Free memory of the machine, in bytes.
pub(crate) fn free_memory() -> usize {
    // SAFETY: the struct has only numbers, so zeros are valid; the system fills it.
    let status = unsafe {
        let mut status: MEMORYSTATUSEX = zeroed();
        status.dwLength = size_of::<MEMORYSTATUSEX>() as u32;
        GlobalMemoryStatusEx(&raw mut status);
        status
    };
    status.ullAvailPhys as usize
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

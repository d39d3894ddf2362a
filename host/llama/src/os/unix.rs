//! Linux and macOS, by the crate libc.

#![allow(unsafe_code, reason = "functions of the system take addresses")]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// Free memory of the machine, in bytes; all of its memory where the system does not say what is free.
pub(crate) fn free_memory() -> usize {
    available().unwrap_or_else(|| {
        // SAFETY: `sysconf` only reads constants of the system.
        let numbers = unsafe { [libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)] };
        numbers.into_iter().map(|number| usize::try_from(number).unwrap_or(0)).product()
    })
}

/// `MemAvailable` of Linux, in bytes.
fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<usize>().ok().map(|kib| kib << 10)
}

/// The loaded libggml-base, also where the program does not export its symbols. Null where it has no file of
/// its own.
#[cfg(target_os = "linux")]
pub(crate) fn ggml_base() -> *mut c_void {
    tqkv::unstable::threads::library(c"ggml-base").map_or(null_mut(), |library| library.handle())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn ggml_base() -> *mut c_void {
    [c"libggml-base.dylib", c"@rpath/libggml-base.dylib"]
        .into_iter()
        .find_map(|name| {
            // SAFETY: the string ends in NUL; RTLD_NOLOAD loads nothing, so no code of the library runs.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            (!library.is_null()).then_some(library)
        })
        .unwrap_or(null_mut())
}

/// Address of a function in the library, or in any library whose symbols the program exports.
pub(crate) fn function(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the string ends in NUL; the handle is that of a loaded library or RTLD_DEFAULT.
    let address = unsafe {
        let own = if library.is_null() { null_mut() } else { libc::dlsym(library, name.as_ptr()) };
        if own.is_null() { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } else { own }
    };
    (!address.is_null()).then_some(address)
}

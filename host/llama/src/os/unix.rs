//! Linux and macOS, by the crate libc.

#![allow(unsafe_code, reason = "functions of the system take addresses")]

use std::ffi::{CStr, CString, c_void};
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
pub(crate) fn ggml_base() -> *mut c_void {
    let Some(path) = loaded() else { return null_mut() };
    // SAFETY: the string ends in NUL; RTLD_NOLOAD loads nothing, so no code of the library runs.
    unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// Path of the loaded libggml-base.
#[cfg(target_os = "linux")]
fn loaded() -> Option<CString> {
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> std::ffi::c_int {
        // SAFETY: dl_iterate_phdr passes an entry that is valid during the call, and the pointer to `found`
        // below.
        unsafe {
            let name = (*info).dlpi_name;
            if !name.is_null() {
                let name = CStr::from_ptr(name);
                if name.to_bytes().windows(9).any(|part| part == b"ggml-base") {
                    *found.cast::<Option<CString>>() = Some(name.to_owned());
                    return 1;
                }
            }
        }
        0
    }
    let mut found: Option<CString> = None;
    // SAFETY: `visit` takes the pointer for an `Option<CString>`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

#[cfg(not(target_os = "linux"))]
fn loaded() -> Option<CString> {
    ["libggml-base.dylib", "@rpath/libggml-base.dylib"].into_iter().find_map(|name| {
        let name = CString::new(name).ok()?;
        // SAFETY: as in `ggml_base`.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!library.is_null()).then_some(name)
    })
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

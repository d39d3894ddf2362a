//! Linux and macOS, by the crate libc.

#![allow(unsafe_code, reason = "functions of the system take addresses")]

use libc::{MAP_ANON, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: `sysconf` only reads constants of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps anonymous memory at an address, or anywhere for null. Null if it fails.
///
/// # Safety
/// Nothing uses the memory at that address.
unsafe fn map(at: *mut u8, bytes: usize, flags: c_int) -> *mut u8 {
    // SAFETY: the caller keeps this function's contract.
    let base = unsafe {
        let flags = MAP_PRIVATE | MAP_ANON | MAP_NORESERVE | flags;
        libc::mmap(at.cast(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0)
    };
    if base == MAP_FAILED { null_mut() } else { base.cast() }
}

/// Reserves address space; null if it fails.
pub(crate) fn reserve(bytes: usize) -> *mut u8 {
    // SAFETY: a mapping at any free address touches no other memory.
    let base = unsafe { map(null_mut(), bytes, 0) };
    #[cfg(target_os = "linux")]
    if !base.is_null() {
        // A huge page would make parts resident that nobody touched.
        // SAFETY: the range was mapped above. If the call fails, the system has no huge pages.
        unsafe { libc::madvise(base.cast(), bytes, libc::MADV_NOHUGEPAGE) };
    }
    base
}

/// Does nothing: the system gives memory to a reserved range when it is touched.
///
/// # Safety
/// The range is reserved.
pub(crate) unsafe fn commit(_: *mut u8, _: usize) -> bool {
    true
}

/// Gives the memory of a range back.
///
/// # Safety
/// The range is reserved, begins and ends with a page, and nothing refers to it.
pub(crate) unsafe fn discard(at: *mut u8, bytes: usize) {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        // Only Linux promises that the pages read as zeros afterwards.
        if !cfg!(target_os = "linux") || libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) != 0 {
            map(at, bytes, libc::MAP_FIXED);
        }
    }
}

/// Ends a reservation.
///
/// # Safety
/// The range is one whole reservation, and nothing refers to it.
pub(crate) unsafe fn release(at: *mut u8, bytes: usize) {
    // SAFETY: the caller keeps this function's contract.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// Free memory and total memory of the machine, in bytes.
pub(crate) fn memory() -> (usize, usize) {
    // SAFETY: `sysconf` only reads constants of the system.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let total = usize::try_from(pages).unwrap_or(0) * page_bytes();
    (available().unwrap_or(total), total)
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
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
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

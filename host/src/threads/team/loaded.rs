//! Libraries that the process has loaded, and their functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{NonNull, null};

/// A loaded library.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

/// The first loaded library whose file name has this part; the program itself if the part is empty.
pub fn library(part: &CStr) -> Option<Library> {
    let path = if part.is_empty() { None } else { Some(path(part)?) };
    let name = path.as_ref().map_or(null(), |path| path.as_ptr());
    // SAFETY: the string ends in NUL, or is null for the program; RTLD_NOLOAD loads nothing, so no code of a library runs.
    NonNull::new(unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }).map(Library)
}

impl Library {
    /// Address of a function as the library finds it: among the symbols that the process exports, in itself, or in a library that it needs.
    pub fn function(self, name: &CStr) -> Option<*mut c_void> {
        [libc::RTLD_DEFAULT, self.0.as_ptr()].into_iter().find_map(|place| {
            // SAFETY: the string ends in NUL; the handle is RTLD_DEFAULT, or that of a library that is loaded.
            let address = unsafe { libc::dlsym(place, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        })
    }

    /// Address of the library, as functions of C take it.
    pub fn handle(self) -> *mut c_void {
        self.0.as_ptr()
    }
}

/// Number of libraries that the process has loaded so far.
pub(in crate::threads) fn loads() -> u64 {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, loads: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes an entry that is valid during the call, and the pointer to `loads` below.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0_u64;
    // SAFETY: `visit` takes the pointer for a number, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut loads).cast()) };
    loads
}

/// Path of a loaded library whose file name has this part.
fn path(part: &CStr) -> Option<CString> {
    struct Search<'a> {
        part: &'a [u8],
        found: Option<CString>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes an entry that is valid during the call, and the pointer to `search` below.
        unsafe {
            let name = (*info).dlpi_name;
            let search = &mut *search.cast::<Search<'_>>();
            if !name.is_null() {
                let name = CStr::from_ptr(name);
                let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                if file.windows(search.part.len()).any(|part| part == search.part) {
                    search.found = Some(name.to_owned());
                    return 1;
                }
            }
        }
        0
    }
    let mut search = Search { part: part.to_bytes(), found: None };
    // SAFETY: `visit` takes the pointer for the search, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_a_part_of_its_file_name() {
        let c = library(c"libc.so").expect("the C library");
        assert!(c.function(c"malloc").is_some() && c.function(c"no_such_function").is_none());
        assert!(!c.handle().is_null());
        assert!(library(c"no-such-library").is_none());
        let program = library(c"").expect("the program itself");
        assert!(program.function(c"malloc").is_some() && program.function(c"no_such_function").is_none());
        assert!(loads() > 0);
    }
}

//! From a C program's pointers and lengths to references, with every check that can be made: null, alignment, length,
//! overlap. What cannot be checked, that a pointer is good for its length, is the contract of every entry point.

use crate::error::{Failure, TqkvStatus};
use std::ffi::{CStr, c_char};

/// Types of which every bit pattern is a value.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for usize {}
impl Plain for f32 {}
impl Plain for half::f16 {}
impl Plain for half::bf16 {}
impl<T> Plain for *const T {}

/// Refuses what no slice called `what` can be.
fn check<T>(what: &str, pointer: *const T, len: usize) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::new(TqkvStatus::TqkvNullPointer, format!("{what} is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    if len > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::argument(format!("{what} has {len} values, more than memory can hold")));
    }
    Ok(())
}

/// Values to read, not yet a slice.
#[derive(Clone, Copy)]
pub(crate) struct In<T> {
    what: &'static str,
    pointer: *const T,
    len: usize,
}

/// Values to write, not yet a slice.
#[derive(Clone, Copy)]
pub(crate) struct Out<T> {
    what: &'static str,
    pointer: *mut T,
    len: usize,
}

impl<T: Plain> In<T> {
    pub(crate) fn new(what: &'static str, pointer: *const T, len: usize) -> Result<Self, Failure> {
        check(what, pointer, len)?;
        Ok(Self { what, pointer, len })
    }

    /// The slice.
    ///
    /// # Safety
    /// The values can be read, and nothing writes them for as long as `'a` lasts.
    pub(crate) unsafe fn get<'a>(self) -> &'a [T] {
        // SAFETY: `new` checked null, alignment and size; readable by the caller's promise; every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl<T> Out<T> {
    pub(crate) fn new(what: &'static str, pointer: *mut T, len: usize) -> Result<Self, Failure> {
        check(what, pointer, len)?;
        Ok(Self { what, pointer, len })
    }

    /// How many values there is room for.
    pub(crate) fn len(self) -> usize
    where
        T: Copy,
    {
        self.len
    }

    /// Refuses an input that shares bytes with it: slices of both may not exist.
    pub(crate) fn apart_from<U>(self, input: In<U>) -> Result<Self, Failure> {
        // Neither end overflows: `check` bounds sizes by half of the address space.
        let (from, to) = (self.pointer.addr(), input.pointer.addr());
        let (from_end, to_end) =
            (from.saturating_add(self.len * size_of::<T>()), to.saturating_add(input.len * size_of::<U>()));
        if from < to_end && to < from_end {
            return Err(Failure::argument(format!("{} and {} overlap", input.what, self.what)));
        }
        Ok(self)
    }

    /// Writes the first value.
    ///
    /// # Safety
    /// There is one, it can be written, and nothing else reads or writes it during the call.
    pub(crate) unsafe fn write(self, value: T) {
        // SAFETY: `new` checked null and alignment; writable by the caller's promise.
        unsafe { self.pointer.write(value) }
    }
}

impl<T: Plain> Out<T> {
    /// The slice.
    ///
    /// # Safety
    /// The values can be written, and nothing else reads or writes them for as long as `'a` lasts.
    pub(crate) unsafe fn get<'a>(self) -> &'a mut [T] {
        // SAFETY: `new` checked null, alignment and size; writable by the caller's promise; every bit pattern is a value.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

/// What a handle points to.
///
/// # Safety
/// If it is not null, a `T` is there for as long as `'a` lasts, and changes in no other way than by its own methods.
pub(crate) unsafe fn handle<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check(what, pointer, 1)?;
    // SAFETY: not null, aligned; there by the caller's promise.
    Ok(unsafe { &*pointer })
}

/// Text at `pointer`.
///
/// # Safety
/// If it is not null, bytes that end with a zero are there, and nothing writes them for as long as `'a` lasts.
pub(crate) unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    check(what, pointer, 1)?;
    // SAFETY: not null; it ends with a zero by the caller's promise.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// Structs beyond this are none: the size was not set.
const MAX_STRUCT: usize = 4096;

/// Refuses sizes that no version of a struct has.
fn check_struct_size(what: &str, size: usize, first: usize) -> Result<(), Failure> {
    if (first..=MAX_STRUCT).contains(&size) {
        return Ok(());
    }
    Err(Failure::argument(format!("{what} has {size} bytes, expected {first} or more: pass sizeof")))
}

/// Writes a struct of the program's header, which may be older or newer: what it lacks is left out, what only it has is
/// zero.
///
/// # Safety
/// If `pointer` is not null, `size` bytes can be written there, and nothing else reads or writes them during the call.
pub(crate) unsafe fn write_struct<T: Copy>(
    what: &str,
    pointer: *mut T,
    size: usize,
    first: usize,
    value: &T,
) -> Result<(), Failure> {
    check(what, pointer, 1)?;
    check_struct_size(what, size, first)?;
    let bytes = pointer.cast::<u8>();
    // SAFETY: not null; `size` bytes are writable by the caller's promise, and no more are written.
    unsafe {
        bytes.write_bytes(0, size);
        bytes.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), size.min(size_of::<T>()));
    }
    Ok(())
}

/// Reads a struct of the program's header, which may be older or newer: what it lacks stays as in `value`; what only it
/// has must be zero, as this library would not heed it. The first field is the size.
///
/// # Safety
/// If `pointer` is not null, a `size_t` is there and as many bytes as it says, and nothing writes them during the call.
/// Any bytes make a `T`.
pub(crate) unsafe fn read_struct<T: Copy>(
    what: &str,
    pointer: *const T,
    first: usize,
    value: &mut T,
) -> Result<(), Failure> {
    check(what, pointer, 1)?;
    // SAFETY: not null, aligned; the size is there by the caller's promise.
    let size = unsafe { pointer.cast::<usize>().read() };
    check_struct_size(what, size, first)?;
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes are readable by the caller's promise; any make a `T`, by his promise too.
    let unknown = unsafe {
        std::ptr::from_mut(value).cast::<u8>().copy_from_nonoverlapping(pointer.cast(), known);
        std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known)
    };
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Failure::argument(format!("{what} sets what a later version of the library knows")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_of_bytes() {
        let mut memory = [0_f32; 8];
        let start = memory.as_mut_ptr();
        let apart = |from: usize, len: usize, to: usize, to_len: usize| {
            let input = In::new("in", start.wrapping_add(from).cast_const(), len)?;
            Out::new("out", start.wrapping_add(to), to_len)?.apart_from(input)
        };
        assert!(apart(0, 4, 4, 4).is_ok() && apart(4, 4, 0, 4).is_ok() && apart(0, 0, 0, 8).is_ok());
        assert!(apart(0, 5, 4, 4).is_err() && apart(0, 8, 2, 1).is_err());
        assert!(apart(1, isize::MAX as usize / 4, 4, 1).is_err());
        let bytes = Out::new("bytes", start.cast::<u8>().wrapping_add(15), 1).unwrap();
        assert!(bytes.apart_from(In::new("in", start.cast_const(), 4).unwrap()).is_err());
    }

    #[test]
    fn sizes_and_alignment_are_checked_before_a_slice_exists() {
        let memory = [0_f32; 2];
        let start = memory.as_ptr();
        // SAFETY: two values are there.
        assert_eq!(unsafe { In::new("x", start, 2).unwrap().get() }, [0.0; 2]);
        assert!(In::new("x", start.wrapping_byte_add(1), 1).is_err());
        assert!(In::new("x", start, usize::MAX / 2).is_err());
        assert!(In::<f32>::new("x", std::ptr::null(), 0).is_err());
    }

    /// A struct and what a later version makes of it.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Old {
        size: usize,
        a: usize,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct New {
        size: usize,
        a: usize,
        b: usize,
    }

    const FIRST: usize = size_of::<Old>();
    const LATER: usize = size_of::<New>();

    #[test]
    fn an_old_program_meets_a_new_library() {
        let mut theirs = Old::default();
        let ours = New { size: FIRST, a: 5, b: 6 };
        // SAFETY: as many bytes are there as the size says.
        unsafe { write_struct("s", (&raw mut theirs).cast::<New>(), FIRST, FIRST, &ours) }.unwrap();
        assert_eq!(theirs, Old { size: FIRST, a: 5 });
        let mut read = New { size: 0, a: 0, b: 9 };
        // SAFETY: as many bytes are there as the size says.
        unsafe { read_struct("s", (&raw const theirs).cast::<New>(), FIRST, &mut read) }.unwrap();
        assert_eq!(read, New { size: FIRST, a: 5, b: 9 });
    }

    #[test]
    fn a_new_program_meets_an_old_library() {
        let mut theirs = New { size: 1, a: 1, b: 1 };
        let ours = Old { size: LATER, a: 5 };
        // SAFETY: as many bytes are there as the size says.
        unsafe { write_struct("s", (&raw mut theirs).cast::<Old>(), LATER, FIRST, &ours) }.unwrap();
        assert_eq!(theirs, New { size: LATER, a: 5, b: 0 });
        let mut read = Old::default();
        // SAFETY: as many bytes are there as the size says.
        unsafe { read_struct("s", (&raw const theirs).cast::<Old>(), FIRST, &mut read) }.unwrap();
        assert_eq!(read, ours);
        theirs.b = 1;
        // SAFETY: as many bytes are there as the size says.
        assert!(unsafe { read_struct("s", (&raw const theirs).cast::<Old>(), FIRST, &mut read) }.is_err());
    }
}

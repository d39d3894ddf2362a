//! Turns pointers and lengths of a C program into references, with every check that is possible: null,
//! alignment, length, overlap. The contract of [`Call::new`] covers the rest, and each entry point discharges
//! it once.

use crate::error::{Failure, TqkvStatus, guard, guard_quietly};
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use tqkv::paged::Line;

/// Types of which every bit pattern is a value.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for i64 {}
impl Plain for usize {}
impl Plain for f32 {}
impl Plain for f64 {}
impl Plain for half::f16 {}
impl Plain for half::bf16 {}
impl<T> Plain for *const T {}
impl Plain for Line {}

/// Refuses an address and a length that no slice can have. `what` names the argument.
fn check<T>(what: &str, pointer: *const T, len: usize) -> Result<(), Failure> {
    check_address(what, pointer.addr(), len, size_of::<T>(), align_of::<T>())
}

/// The same check for values of any size and alignment, at an address in any memory.
pub(crate) fn check_address(
    what: &str,
    address: usize,
    len: usize,
    bytes: usize,
    align: usize,
) -> Result<(), Failure> {
    if address == 0 {
        return Err(Failure::new(TqkvStatus::TqkvNullPointer, format!("{what} is null")));
    }
    if !address.is_multiple_of(align) {
        return Err(Failure::argument(format!("{what} is not aligned to {align} bytes")));
    }
    if len > isize::MAX as usize / bytes {
        return Err(Failure::argument(format!("{what} has {len} values, more than memory can hold")));
    }
    Ok(())
}

/// Limit on the pointers of one call that are checked against each other.
const MOST_SPANS: usize = 16;

/// A range of bytes that a call reads or writes.
#[derive(Clone, Copy, Default)]
struct Span {
    what: &'static str,
    from: usize,
    to: usize,
    is_written: bool,
}

/// A call of a C program, which turns the passed pointers into references.
///
/// The references end with the call. A written range overlaps no other range of the call, so references obey
/// Rust's aliasing rules.
pub(crate) struct Call {
    spans: RefCell<([Span; MOST_SPANS], usize)>,
}

impl Call {
    /// # Safety
    /// Until the call ends, each pointer that its methods are given is null, or valid for that method:
    ///
    /// * Values to read exist in the passed number, and nothing writes them.
    /// * Room for values can be written, and nothing else reads or writes it.
    /// * A handle came from this library, is not freed, and only calls of this library use it.
    /// * Text ends with a zero.
    pub(crate) unsafe fn new() -> Self {
        Self { spans: RefCell::default() }
    }

    /// Runs the body of an entry point.
    pub(crate) fn run(self, body: impl FnOnce(&Self) -> Result<(), Failure>) -> TqkvStatus {
        guard(|| body(&self))
    }

    /// Refuses a range that no slice can have, and one that overlaps another range of the call if either is
    /// written.
    fn claim<T>(
        &self,
        what: &'static str,
        pointer: *const T,
        len: usize,
        is_written: bool,
    ) -> Result<(), Failure> {
        check(what, pointer, len)?;
        // The end does not overflow: `check` limits a size to half of the address space, and the addition
        // saturates.
        let from = pointer.addr();
        let span = Span { what, from, to: from.saturating_add(len * size_of::<T>()), is_written };
        let (spans, count) = &mut *self.spans.borrow_mut();
        let meets =
            |other: &&Span| (other.is_written || is_written) && span.from < other.to && other.from < span.to;
        if let Some(other) = spans[..*count].iter().find(meets) {
            return Err(Failure::argument(format!("{} and {what} overlap", other.what)));
        }
        let place = spans.get_mut(*count);
        *place.ok_or_else(|| Failure::argument(format!("{what}: too many pointers")))? = span;
        *count += 1;
        Ok(())
    }

    /// Values to read.
    pub(crate) fn slice<T: Plain>(
        &self,
        what: &'static str,
        pointer: *const T,
        len: usize,
    ) -> Result<&[T], Failure> {
        self.claim(what, pointer, len, false)?;
        // SAFETY: the contract of `new` for values to read. Null, alignment and size are checked, nothing
        // that the call writes overlaps them, and every bit pattern is a value.
        Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
    }

    /// Room for values.
    #[expect(clippy::mut_from_ref, reason = "`claim` has refused what another reference has")]
    pub(crate) fn room<T: Plain>(
        &self,
        what: &'static str,
        pointer: *mut T,
        len: usize,
    ) -> Result<&mut [T], Failure> {
        self.claim(what, pointer, len, true)?;
        // SAFETY: the contract of `new` for room. Null, alignment and size are checked, no other reference of
        // the call overlaps it, and every bit pattern is a value.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
    }

    /// Room for one value.
    #[expect(clippy::mut_from_ref, reason = "`claim` has refused what another reference has")]
    pub(crate) fn place<T>(
        &self,
        what: &'static str,
        pointer: *mut T,
    ) -> Result<&mut MaybeUninit<T>, Failure> {
        self.claim(what, pointer, 1, true)?;
        // SAFETY: the contract of `new` for room. Null and alignment are checked, and no other reference of
        // the call overlaps it.
        Ok(unsafe { &mut *pointer.cast() })
    }

    /// Writes a new handle to a place, or null if `make` fails.
    pub(crate) fn give<T>(
        &self,
        what: &'static str,
        place: *mut *mut T,
        make: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(), Failure> {
        let place = self.place(what, place)?;
        place.write(std::ptr::null_mut());
        let made = Box::new(make()?);
        place.write(Box::into_raw(made));
        Ok(())
    }

    /// The object of a handle. A handle may be passed several times: its object changes only behind its lock,
    /// or never.
    pub(crate) fn handle<T: Sync>(&self, what: &str, pointer: *const T) -> Result<&T, Failure> {
        check(what, pointer, 1)?;
        // SAFETY: the contract of `new` for handles. Null and alignment are checked.
        Ok(unsafe { &*pointer })
    }

    /// Text in UTF-8 that ends with a zero.
    pub(crate) fn text(&self, what: &'static str, pointer: *const c_char) -> Result<&str, Failure> {
        check(what, pointer, 1)?;
        // SAFETY: the contract of `new` for text. Null is checked.
        let bytes = unsafe { CStr::from_ptr(pointer) };
        self.claim(what, pointer, bytes.count_bytes() + 1, false)?;
        bytes.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
    }
}

/// Frees a handle from [`Call::give`]; null is accepted.
///
/// # Safety
/// `pointer` is null or came from [`Call::give`], is not freed, and no call uses it.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: `give` made it with `Box::into_raw`, and it is freed once.
        guard_quietly((), || drop(unsafe { Box::from_raw(pointer) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        // SAFETY: every test passes its own memory, with its true length.
        unsafe { Call::new() }
    }

    #[test]
    fn overlap_is_of_bytes() {
        let mut memory = [0_f32; 8];
        let start = memory.as_mut_ptr();
        let apart = |from: usize, len: usize, to: usize, to_len: usize| {
            let call = call();
            call.slice("in", start.wrapping_add(from).cast_const(), len)?;
            call.room("out", start.wrapping_add(to), to_len).map(|_| ())
        };
        assert!(apart(0, 4, 4, 4).is_ok() && apart(4, 4, 0, 4).is_ok() && apart(0, 0, 0, 8).is_ok());
        assert!(apart(0, 5, 4, 4).is_err() && apart(0, 8, 2, 1).is_err());
        let bytes = start.cast::<u8>().wrapping_add(15);
        let call = call();
        call.slice("in", start.cast_const(), 4).unwrap();
        call.slice("again", start.cast_const(), 8).unwrap();
        assert!(call.room("bytes", bytes, 1).is_err() && call.place("place", bytes).is_err());
    }

    #[test]
    fn what_is_written_overlaps_nothing_whichever_comes_first() {
        let mut memory = [0_f32; 8];
        let (start, call) = (memory.as_mut_ptr(), call());
        call.room("out", start, 4).unwrap().fill(1.0);
        assert!(call.slice("in", start.cast_const(), 1).is_err() && call.room("more", start, 8).is_err());
        assert_eq!(call.slice("in", start.wrapping_add(4).cast_const(), 4).unwrap(), [0.0; 4]);
    }

    #[test]
    fn sizes_and_alignment_are_checked_before_a_slice_exists() {
        let memory = [0_f32; 2];
        let (start, call) = (memory.as_ptr(), call());
        assert_eq!(call.slice("x", start, 2).unwrap(), [0.0; 2]);
        assert!(call.slice("x", start.wrapping_byte_add(1), 1).is_err());
        assert!(call.slice("x", start, usize::MAX / 2).is_err());
        assert!(call.slice::<f32>("x", std::ptr::null(), 0).is_err());
    }
}

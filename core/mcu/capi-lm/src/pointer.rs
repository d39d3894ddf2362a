//! Turns pointers and lengths of a C program into references, with every check that is possible: null,
//! alignment, size.

use crate::TqkvLmStatus::{self, *};
use core::ops::Range;

/// A pointer that is neither null nor misaligned.
pub(crate) fn input<T>(pointer: *const T) -> Result<*const T, TqkvLmStatus> {
    if pointer.is_null() {
        Err(TqkvLmNullPointer)
    } else if pointer.is_aligned() {
        Ok(pointer)
    } else {
        Err(TqkvLmMisaligned)
    }
}

/// Like [`input`], for a pointer that is written.
pub(crate) fn output<T>(pointer: *mut T) -> Result<*mut T, TqkvLmStatus> {
    input(pointer).map(<*const T>::cast_mut)
}

/// Makes a slice of `count` values.
///
/// # Safety
/// The values can be read for as long as `'a` lasts, and nothing writes them; or the pointer is null.
pub(crate) unsafe fn region<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T], TqkvLmStatus> {
    let pointer = input(pointer)?;
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(TqkvLmLength);
    }
    // SAFETY: not null, aligned, no larger than memory, and readable by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// True if the range `bytes` and the `count` bytes at `other` do not overlap.
pub(crate) fn is_apart(bytes: Range<*const u8>, other: *const u8, count: usize) -> bool {
    let (start, end) = (other.addr(), other.addr().saturating_add(count));
    end <= bytes.start.addr() || bytes.end.addr() <= start
}

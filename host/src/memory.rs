//! Allocations whose size depends on the caller's input. Failure is an error here, where Rust's own
//! collections abort the process.
//!
//! Small allocations of fixed size are not covered.

use crate::error::CacheError;

#[cfg(test)]
thread_local! {
    /// Requests of this thread that a test makes fail.
    pub(crate) static FAULTS: crate::cache::tests::Faults = crate::cache::tests::Faults::default();
}

fn refused<T>(values: usize) -> CacheError {
    CacheError::Memory { bytes: values.saturating_mul(size_of::<T>()) }
}

/// Fails if a test asks for it, unless a list with room for `_free` values needs no memory for `_more`.
fn check_faults(_free: usize, _more: usize, _refused: impl FnOnce() -> CacheError) -> Result<(), CacheError> {
    #[cfg(test)]
    if _free < _more {
        FAULTS.with(|faults| faults.check()).map_err(|_| _refused())?;
    }
    Ok(())
}

/// Makes an empty list with room for `len` values.
pub(crate) fn list<T>(len: usize) -> Result<Vec<T>, CacheError> {
    check_faults(0, len, || refused::<T>(len))?;
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| refused::<T>(len))?;
    Ok(list)
}

/// Makes `len` copies of a value.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, CacheError> {
    let mut list = list(len)?;
    list.resize(len, value);
    Ok(list)
}

/// Collects what an iterator makes, `len` values at most.
pub(crate) fn collected<T>(len: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>, CacheError> {
    let mut list = list(len)?;
    list.extend(values.take(len));
    Ok(list)
}

/// Makes room for `more` values at the end.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), CacheError> {
    check_faults(list.capacity() - list.len(), more, || refused::<T>(more))?;
    list.try_reserve(more).map_err(|_| refused::<T>(list.len().saturating_add(more)))
}

/// Allocates this many bytes in one piece and frees them. For work that allocates in many small pieces.
pub(crate) fn check(bytes: usize) -> Result<(), CacheError> {
    list::<u8>(bytes).map(|_| ())
}

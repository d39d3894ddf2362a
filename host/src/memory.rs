//! Memory that a caller's size asks for, and that may not be had: an error, where Rust's own collections end the process.
//!
//! What a call needs beside that is small and of a fixed size, and is not asked for here.

use crate::error::CacheError;

fn refused<T>(values: usize) -> CacheError {
    CacheError::Memory { bytes: values.saturating_mul(size_of::<T>()) }
}

/// An empty list with room for so many.
pub(crate) fn list<T>(len: usize) -> Result<Vec<T>, CacheError> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| refused::<T>(len))?;
    Ok(list)
}

/// So many copies of a value.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, CacheError> {
    let mut list = list(len)?;
    list.resize(len, value);
    Ok(list)
}

/// What an iterator makes, which is at most `len`.
pub(crate) fn collected<T>(len: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>, CacheError> {
    let mut list = list(len)?;
    list.extend(values.take(len));
    Ok(list)
}

/// Room for so many more.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), CacheError> {
    list.try_reserve(more).map_err(|_| refused::<T>(list.len().saturating_add(more)))
}

/// Room for just so many more.
pub(crate) fn reserve_exact<T>(list: &mut Vec<T>, more: usize) -> Result<(), CacheError> {
    list.try_reserve_exact(more).map_err(|_| refused::<T>(list.len().saturating_add(more)))
}

/// Whether the system has so many bytes, asked in one piece and given back: for work that takes them in many small pieces.
pub(crate) fn check(bytes: usize) -> Result<(), CacheError> {
    list::<u8>(bytes).map(|_| ())
}

//! Little-endian fields of a chunk.

use crate::error::CacheError;
use crate::memory;
use bytemuck::{Pod, Zeroable};

/// The bits of a NaN, which mark an unset field of a spec.
pub(super) const NO_NUMBER: u32 = 0x7fc0_0000;

/// Numbers whose little-endian memory is their stored form.
pub(super) trait Stored: Pod + Zeroable {
    /// Swaps bytes where the machine is big-endian.
    fn little_endian(self) -> Self;
}

macro_rules! stored {
    ($($int:ty),*) => {$(
        impl Stored for $int {
            fn little_endian(self) -> Self {
                self.to_le()
            }
        }
    )*};
}
stored!(u8, u16, u64, i64);

impl Stored for f32 {
    fn little_endian(self) -> Self {
        Self::from_bits(self.to_bits().to_le())
    }
}

impl Stored for f64 {
    fn little_endian(self) -> Self {
        Self::from_bits(self.to_bits().to_le())
    }
}

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, CacheError> {
    Err(CacheError::Snapshot(why.into()))
}

/// Appends numbers.
pub(super) fn put<T: Stored>(bytes: &mut Vec<u8>, values: &[T]) {
    for value in values {
        bytes.extend_from_slice(bytemuck::bytes_of(&value.little_endian()));
    }
}

/// Appends a count.
pub(super) fn put_count(bytes: &mut Vec<u8>, count: usize) {
    put(bytes, &[count as u64]);
}

/// Takes numbers from the front of a chunk.
pub(super) struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes `count` times `size` bytes.
    pub(super) fn bytes(&mut self, count: usize, size: usize) -> Result<&'a [u8], CacheError> {
        let split = count.checked_mul(size).and_then(|bytes| self.0.split_at_checked(bytes));
        let Some((taken, rest)) = split else { return refused("fields longer than their chunk") };
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn values<T: Stored>(&mut self, count: usize) -> Result<Vec<T>, CacheError> {
        let bytes = self.bytes(count, size_of::<T>())?;
        let values = bytes.chunks_exact(size_of::<T>());
        memory::collected(count, values.map(|value| bytemuck::pod_read_unaligned::<T>(value).little_endian()))
    }

    /// Takes a count, and refuses one above `most`.
    pub(super) fn count(&mut self, what: &str, most: usize) -> Result<usize, CacheError> {
        let count = self.values::<u64>(1)?.first().copied().unwrap_or_default();
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => refused(format!("{count} {what}: expected at most {most}")),
        }
    }

    /// Refuses bytes that are left over.
    pub(super) fn end(&self) -> Result<(), CacheError> {
        if self.0.is_empty() { Ok(()) } else { refused("a chunk longer than its fields") }
    }
}

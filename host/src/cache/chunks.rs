//! Chunks of a stream, each a length, a payload of little-endian fields, and its CRC-32. Snapshots are made
//! of them.

use crate::error::CacheError;
use crate::memory;
use bytemuck::{Pod, Zeroable};
use std::io::{self, Read, Write};

/// Numbers whose little-endian memory is their stored form.
pub(crate) trait StoredNumber: Pod + Zeroable {
    /// Swaps bytes where the machine is big-endian.
    fn little_endian(self) -> Self;
}

macro_rules! stored {
    ($($int:ty),*) => {$(
        impl StoredNumber for $int {
            fn little_endian(self) -> Self {
                self.to_le()
            }
        }
    )*};
}
stored!(u8, u16, u32, u64, i64);

impl StoredNumber for f32 {
    fn little_endian(self) -> Self {
        Self::from_bits(self.to_bits().to_le())
    }
}

pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T, CacheError> {
    Err(CacheError::Snapshot(why.into()))
}

/// Appends numbers.
pub(crate) fn put<T: StoredNumber>(bytes: &mut Vec<u8>, values: &[T]) {
    for value in values {
        bytes.extend_from_slice(bytemuck::bytes_of(&value.little_endian()));
    }
}

/// Appends a count.
pub(crate) fn put_count(bytes: &mut Vec<u8>, count: usize) {
    put(bytes, &[count as u64]);
}

/// Takes numbers from the front of a chunk.
pub(crate) struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes `count` times `size` bytes.
    pub(crate) fn bytes(&mut self, count: usize, size: usize) -> Result<&'a [u8], CacheError> {
        let split = count.checked_mul(size).and_then(|bytes| self.0.split_at_checked(bytes));
        let Some((taken, rest)) = split else { return refused("fields longer than their chunk") };
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn values<T: StoredNumber>(&mut self, count: usize) -> Result<Vec<T>, CacheError> {
        let bytes = self.bytes(count, size_of::<T>())?;
        let values = bytes.chunks_exact(size_of::<T>());
        memory::collected(count, values.map(|value| bytemuck::pod_read_unaligned::<T>(value).little_endian()))
    }

    /// Takes a count, and refuses one above `most`.
    pub(crate) fn count(&mut self, what: &str, most: usize) -> Result<usize, CacheError> {
        let count = self.values::<u64>(1)?.first().copied().unwrap_or_default();
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => refused(format!("{count} {what}: expected at most {most}")),
        }
    }

    /// Refuses bytes that are left over.
    pub(crate) fn end(&self) -> Result<(), CacheError> {
        if self.0.is_empty() { Ok(()) } else { refused("a chunk longer than its fields") }
    }
}

/// Writes a chunk.
pub(crate) fn write_chunk(writer: &mut dyn Write, payload: &[u8]) -> io::Result<()> {
    writer.write_all(&(payload.len() as u64).to_le_bytes())?;
    writer.write_all(payload)?;
    writer.write_all(&crc32fast::hash(payload).to_le_bytes())
}

/// Fills `bytes`, or refuses a stream that ends before.
pub(crate) fn read(reader: &mut dyn Read, bytes: &mut [u8]) -> Result<(), CacheError> {
    reader.read_exact(bytes).or_else(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => refused("cut short"),
        _ => refused(error.to_string()),
    })
}

/// Reads a chunk of at most `most` bytes. Memory grows with the bytes that arrive, whatever the stored length
/// is.
pub(crate) fn read_chunk(reader: &mut dyn Read, payload: &mut Vec<u8>, most: u64) -> Result<(), CacheError> {
    let mut length = [0; 8];
    read(reader, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > most {
        return refused(format!("a chunk of {length} bytes is not valid: expected at most {most}"));
    }
    payload.clear();
    let got = reader.take(length).read_to_end(payload).or_else(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => Err(CacheError::Memory { bytes: length as usize }),
        _ => refused(error.to_string()),
    })?;
    if (got as u64) < length {
        return refused("cut short");
    }
    let mut crc = [0; 4];
    read(reader, &mut crc)?;
    if u32::from_le_bytes(crc) == crc32fast::hash(payload) {
        Ok(())
    } else {
        refused("damaged (CRC-32 does not match)")
    }
}

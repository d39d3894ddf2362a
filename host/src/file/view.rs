//! Random access to the blocks of a `.tqk` file in memory.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bytes::Bytes;
use super::layout::{CHUNK_HEAD, CRC};
use super::reader::{check_chunk, header_of_file};
use super::{FileError, Header};

/// A `.tqk` file as a slice: gives any block by its index.
///
/// Opening reads no chunk: it checks the header, and that the length is exactly what the header implies. The
/// CRC-32 of a chunk is checked when one of its blocks is first read. [`Self::verify`] checks all remaining
/// chunks. Threads may share a view freely.
#[derive(Debug)]
pub struct TqkView<B> {
    bytes: B,
    header: Header,
    block_bytes: usize,
    verified: Vec<AtomicBool>,
}

impl TqkView<Bytes> {
    /// Maps the file at `path`. See [`Bytes::open`] for what must not happen to the file meanwhile.
    ///
    /// # Errors
    /// Errors of opening, and those of [`Self::new`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        Self::new(Bytes::open(path)?)
    }
}

impl<B: AsRef<[u8]>> TqkView<B> {
    /// Views a whole file. Cost: O(number of chunks).
    ///
    /// # Errors
    /// A fault of the header, a truncated file, or trailing bytes.
    pub fn new(bytes: B) -> Result<Self, FileError> {
        let (header, block_bytes) = header_of_file(bytes.as_ref(), bytes.as_ref().len() as u64)?;
        // The length fits, so there are fewer chunks than bytes in memory.
        let verified = (0..header.num_chunks()).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { bytes, header, block_bytes, verified })
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns block `index`.
    ///
    /// # Errors
    /// [`FileError::OutOfBounds`], or a damaged chunk on first access.
    pub fn block(&self, index: u64) -> Result<&[u8], FileError> {
        if index >= self.header.count {
            return Err(FileError::OutOfBounds { index, count: self.header.count });
        }
        let per = u64::from(self.header.blocks_per_chunk);
        let at = (index % per) as usize * self.block_bytes;
        Ok(&self.chunk(index / per)?[at..at + self.block_bytes])
    }

    /// Returns the blocks of chunk `chunk`, back to back.
    ///
    /// # Errors
    /// [`FileError::OutOfBounds`], or a damaged chunk on first access.
    pub fn chunk(&self, chunk: u64) -> Result<&[u8], FileError> {
        let Some(verified) = usize::try_from(chunk).ok().and_then(|c| self.verified.get(c)) else {
            return Err(FileError::OutOfBounds {
                index: chunk.saturating_mul(u64::from(self.header.blocks_per_chunk)),
                count: self.header.count,
            });
        };
        let Range { start, end } = self.header.chunk_range(chunk, self.block_bytes);
        let bytes = &self.bytes.as_ref()[start as usize..end as usize];
        // Relaxed is enough: the flag guards no other write, and a second check does no harm.
        if !verified.load(Ordering::Relaxed) {
            check_chunk(&self.header, bytes, chunk)?;
            verified.store(true, Ordering::Relaxed);
        }
        Ok(&bytes[CHUNK_HEAD..bytes.len() - CRC])
    }

    /// Checks every chunk. Cost: O(bytes).
    ///
    /// # Errors
    /// The first damaged chunk.
    pub fn verify(&self) -> Result<(), FileError> {
        (0..self.header.num_chunks()).try_for_each(|chunk| self.chunk(chunk).map(|_| ()))
    }
}

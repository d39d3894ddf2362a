//! The bytes of an input file, memory-mapped.
//!
//! Not for files that another program is still writing: see the contract of [`Bytes::open`]. Not for pipes
//! and devices, whose length is unknown: [`super::Reader`] reads those in pieces. [`super::TqkView`] gives
//! access to the blocks.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use memmap2::Mmap;

use crate::mmap::map_file;

/// A whole file as one slice.
#[derive(Debug)]
pub enum Bytes {
    /// A memory map. Pages are read when first touched.
    Mapped(Mmap),
    /// Bytes in memory: an empty file, which cannot be mapped, or bytes that the caller has read.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps the regular file at `path`.
    ///
    /// The file must not be shortened or rewritten in place while the value exists. On most systems a
    /// shortened map ends the process with a bus error. This crate never changes files in place: it renames
    /// finished files, so readers of the old file keep the old bytes.
    ///
    /// # Errors
    /// `InvalidInput` for what is no regular file, otherwise those of opening and mapping.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        // Checked by name first, because opening a pipe waits for its writer.
        let meta = fs::metadata(path)?;
        if meta.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        Ok(Self::Mapped(map_file(&file)?))
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

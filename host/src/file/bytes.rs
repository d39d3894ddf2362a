//! The bytes of an input file: memory-mapped where the system can, read into memory otherwise.
//!
//! Not for files that another program is still writing: see the contract on [`Bytes::open`]. The
//! reader above it is [`super::TqkView`].

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memmap2::Mmap;

use crate::mmap::map_file;

/// A whole file as one slice.
#[derive(Debug)]
pub enum Bytes {
    /// A memory map: pages are read when first touched.
    Mapped(Mmap),
    /// Read into memory: pipes, devices and empty files, which cannot be mapped.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Opens `path`; a regular file is mapped, anything else is read to its end.
    ///
    /// The file must not be shortened or rewritten in place while the value lives: a shortened map
    /// ends the process with a bus error on most systems. Files that this crate writes are never
    /// changed in place (they are renamed into place when whole), so readers of the old file keep
    /// the old bytes.
    ///
    /// # Errors
    /// Those of opening, mapping and reading.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        if !meta.is_file() || meta.len() == 0 {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            return Ok(Self::Owned(bytes));
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

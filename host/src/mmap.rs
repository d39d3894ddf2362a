//! The one place that maps files into memory.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

/// Maps a whole file read-only.
pub(crate) fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: `Mmap::map` requires that the file is not truncated or written while it is mapped. The mapping is
    // private to this process, read-only and short-lived, and the bytes are parsed as untrusted input; a file that
    // is changed by someone else at the same time is outside what any reader of it can promise.
    unsafe { Mmap::map(&file) }
}

/// Maps `len` bytes of an unnamed file from `offset` on, for reading.
///
/// The caller only reads ranges that were written before and are never written again.
pub(crate) fn map_segment(file: &File, offset: u64, len: usize) -> io::Result<Mmap> {
    // SAFETY: the mapped file must not be truncated or written under a reader. The file has no name, so no one else
    // can open it; it only grows; and its owner writes each range once, before handing it out for reading.
    unsafe { MmapOptions::new().offset(offset).len(len).map(file) }
}

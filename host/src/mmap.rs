//! The one place that maps files into memory.
#![expect(unsafe_code, reason = "a memory map is only as constant as its file")]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a whole file read-only.
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: `Mmap::map` requires that nobody shortens or rewrites the file while it is mapped. This crate
    // never does so to any file: outputs are written to a temporary file and renamed. `Bytes::open` passes
    // the same duty on to the caller's other programs. The map is read-only and read as plain bytes, every
    // value of which is valid.
    unsafe { Mmap::map(file) }
}

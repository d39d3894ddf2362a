//! The one place that maps files into memory.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// Maps a whole file read-only.
pub(crate) fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: `Mmap::map` requires that the file is not truncated or written while it is mapped. The mapping is
    // private to this process, read-only and short-lived, and the bytes are parsed as untrusted input; a file that
    // is changed by someone else at the same time is outside what any reader of it can promise.
    unsafe { Mmap::map(&file) }
}

//! The file behind the cold tier: pages appended once, read through a memory map.
//!
//! Unix only: other systems do not promise that a map sees what is written to its file later.

use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tqkv_simd::page::Line;

/// Bytes mapped at once. The kernel bounds the number of mappings of a process, so pages share.
const SEGMENT: u64 = 64 << 20;

/// An unnamed file that grows by segments; clones share it.
#[derive(Clone, Debug)]
pub(super) struct SpillFile {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    segments: u64,
    /// Write position in the last segment.
    used: u64,
    current: Option<Arc<Mmap>>,
}

/// Lines in the file, readable for as long as this lives.
#[derive(Clone, Debug)]
pub(super) struct Spilled {
    segment: Arc<Mmap>,
    start: usize,
    len: usize,
}

impl Spilled {
    /// The lines: mappings begin on memory pages and hold whole lines, so they are aligned.
    pub(super) fn lines(&self) -> &[Line] {
        bytemuck::cast_slice(&self.segment[self.start..self.start + self.len])
    }
}

impl SpillFile {
    /// Creates the file in `folder`; it is removed from the folder at once.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        if !cfg!(unix) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a spill file needs a Unix system"));
        }
        let file = tempfile::tempfile_in(folder)?;
        let inner = Inner { file, segments: 0, used: SEGMENT, current: None };
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// Appends lines (at most one segment).
    pub(super) fn append(&self, lines: &[Line]) -> io::Result<Spilled> {
        let bytes: &[u8] = bytemuck::cast_slice(lines);
        let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let len = bytes.len() as u64;
        if len > SEGMENT {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a page is larger than a segment"));
        }
        if inner.used + len > SEGMENT {
            inner.add_segment()?;
        }
        let start = inner.used;
        let at = (inner.segments - 1) * SEGMENT + start;
        inner.file.seek(SeekFrom::Start(at))?;
        inner.file.write_all(bytes)?;
        inner.used += len;
        let segment = inner.current.clone().ok_or(io::ErrorKind::NotFound)?;
        Ok(Spilled { segment, start: start as usize, len: bytes.len() })
    }
}

impl Inner {
    fn add_segment(&mut self) -> io::Result<()> {
        let offset = self.segments * SEGMENT;
        self.file.set_len(offset + SEGMENT)?;
        self.current = Some(Arc::new(crate::mmap::map_segment(&self.file, offset, SEGMENT as usize)?));
        self.segments += 1;
        self.used = 0;
        Ok(())
    }
}

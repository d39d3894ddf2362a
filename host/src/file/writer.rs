//! Writing a `.tqk` file as a stream of blocks.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use super::atomic::{AtomicFile, Existing};
use super::flush::flush;
use super::layout::CHUNK_HEAD;
use super::{FileError, Header};

/// Writes blocks one by one. Holds one chunk in memory.
///
/// The header is zeros until [`Self::finish`] knows the count, so the magic of an unfinished file is wrong
/// and readers refuse it.
#[derive(Debug)]
pub struct Writer<W: Write + Seek> {
    out: W,
    header: Header,
    block_bytes: usize,
    /// The chunk that is being filled, with its head.
    chunk: Vec<u8>,
}

impl Writer<AtomicFile> {
    /// Starts a file that appears at `path` on [`Self::commit`], and never in part. It replaces an existing
    /// file. To keep an existing file, use [`Self::new`] over an [`AtomicFile`] with [`Existing::Refuse`].
    ///
    /// # Errors
    /// Errors of [`Self::new`] and of [`AtomicFile::create`].
    pub fn create(path: impl AsRef<Path>, header: Header) -> Result<Self, FileError> {
        header.check()?;
        Self::new(AtomicFile::create(path, Existing::Replace)?, header)
    }

    /// Finishes the file and renames it into place. Returns the number of blocks.
    ///
    /// # Errors
    /// Errors of writing, syncing and renaming. Nothing stays then.
    pub fn commit(self) -> Result<u64, FileError> {
        let (file, count) = self.finish()?;
        file.commit()?;
        Ok(count)
    }
}

impl<W: Write + Seek> Writer<W> {
    /// Starts a file at the beginning of `out`. `header.count` is ignored; the writer counts blocks itself.
    ///
    /// # Errors
    /// A header that the format cannot carry, or an error of writing.
    pub fn new(mut out: W, mut header: Header) -> Result<Self, FileError> {
        header.count = 0;
        let block_bytes = header.check()?;
        out.write_all(&vec![0; header.byte_len()])?;
        let chunk = Vec::with_capacity(CHUNK_HEAD + header.blocks_per_chunk as usize * block_bytes);
        let mut writer = Self { out, header, block_bytes, chunk };
        writer.begin_chunk();
        Ok(writer)
    }

    /// Appends one block.
    ///
    /// # Errors
    /// [`FileError::BlockLength`], or an error of writing.
    pub fn push(&mut self, block: &[u8]) -> Result<(), FileError> {
        if block.len() != self.block_bytes {
            return Err(FileError::BlockLength { expected: self.block_bytes, found: block.len() });
        }
        self.chunk.extend_from_slice(block);
        self.header.count += 1;
        if self.blocks_in_chunk() == self.header.blocks_per_chunk {
            self.end_chunk()?;
        }
        Ok(())
    }

    /// Writes the last chunk and the header. Returns the sink and the number of blocks.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> Result<(W, u64), FileError> {
        if self.blocks_in_chunk() > 0 {
            self.end_chunk()?;
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&self.header.to_bytes()?)?;
        flush(&mut self.out)?;
        Ok((self.out, self.header.count))
    }

    fn blocks_in_chunk(&self) -> u32 {
        // It is at most `blocks_per_chunk`, which is a u32.
        ((self.chunk.len() - CHUNK_HEAD) / self.block_bytes) as u32
    }

    fn begin_chunk(&mut self) {
        self.chunk.clear();
        self.chunk.extend(self.header.count.to_le_bytes());
        self.chunk.extend([0; 4]);
    }

    fn end_chunk(&mut self) -> Result<(), FileError> {
        let blocks = self.blocks_in_chunk();
        self.chunk[8..CHUNK_HEAD].copy_from_slice(&blocks.to_le_bytes());
        self.out.write_all(&self.chunk)?;
        self.out.write_all(&crc32fast::hash(&self.chunk).to_le_bytes())?;
        self.begin_chunk();
        Ok(())
    }
}

//! `.tqk` files as objects of a store: S3 and the like, a folder, memory.
//!
//! [`TqkObject`] fetches by range the chunks that hold the requested blocks. [`put_object`] writes the result
//! of a [`Writer`](super::Writer) in memory, or any other bytes, complete or not at all. The stores are those
//! of the crate [`object_store`]. Its futures run on any executor, but those of network stores need tokio.
//! Caches use [`KvCache::save_object`](crate::cache::KvCache::save_object).
//!
//! Nothing is cached: a second call fetches again. For local files use [`TqkView`](super::TqkView), which
//! maps them.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};

use super::header::MAX_HEADER;
use super::layout::{CHUNK_HEAD, CRC};
use super::reader::{check_chunk, header_of_file};
use super::{FileError, Header};

/// Bytes per request. A larger object is sent in several parts.
const PART: usize = 16 << 20;

/// A `.tqk` file in a store: any blocks by their index.
///
/// Opening fetches at most a little over 4 KiB. It checks the header, and that the file has exactly the
/// length that the header implies. If the store has entity tags, reads fail once the object was replaced.
#[derive(Clone, Debug)]
pub struct TqkObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    e_tag: Option<String>,
    header: Header,
    block_bytes: usize,
}

impl TqkObject {
    /// Reads the header, in one request.
    ///
    /// # Errors
    /// A fault of the header, a truncated file, or trailing bytes. [`FileError::Io`] is an error of the
    /// store.
    pub async fn open(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self, FileError> {
        let range = GetOptions::new().with_range(Some(0..MAX_HEADER as u64));
        let found = store.get_opts(&path, range).await.map_err(io::Error::from)?;
        let (len, e_tag) = (found.meta.size, found.meta.e_tag.clone());
        let front = found.bytes().await.map_err(io::Error::from)?;
        let (header, block_bytes) = header_of_file(&front, len)?;
        Ok(Self { store, path, e_tag, header, block_bytes })
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Fetches blocks, back to back. One request fetches the chunks that hold them, and the CRC-32 of each
    /// chunk is checked. A range wastes nothing if both ends are multiples of [`Header::blocks_per_chunk`].
    ///
    /// # Errors
    /// [`FileError::OutOfBounds`], a damaged chunk, or [`FileError::Io`] for an error of the store.
    pub async fn blocks(&self, range: Range<u64>) -> Result<Vec<u8>, FileError> {
        let count = self.header.count;
        if range.start > range.end || range.end > count {
            return Err(FileError::OutOfBounds { index: range.end.max(range.start), count });
        }
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let per = u64::from(self.header.blocks_per_chunk);
        let chunks = range.start / per..(range.end - 1) / per + 1;
        let fetched = self.fetch(chunks.clone()).await?;
        let mut blocks = Vec::with_capacity(fetched.len());
        let full = CHUNK_HEAD + per as usize * self.block_bytes + CRC;
        for (index, chunk) in chunks.clone().zip(fetched.chunks(full)) {
            check_chunk(&self.header, chunk, index)?;
            blocks.extend_from_slice(&chunk[CHUNK_HEAD..chunk.len() - CRC]);
        }
        let wanted = (range.end - range.start) as usize * self.block_bytes;
        blocks.drain(..(range.start - chunks.start * per) as usize * self.block_bytes);
        blocks.truncate(wanted);
        Ok(blocks)
    }

    /// Fetches neighbouring chunks in their stored form.
    async fn fetch(&self, chunks: Range<u64>) -> Result<Vec<u8>, FileError> {
        let start = self.header.chunk_range(chunks.start, self.block_bytes).start;
        let end = self.header.chunk_range(chunks.end - 1, self.block_bytes).end;
        let options = GetOptions::new().with_range(Some(start..end)).with_if_match(self.e_tag.clone());
        let failed = |error| match error {
            object_store::Error::Precondition { .. } => {
                io::Error::other(format!("{} was replaced since it was opened", self.path))
            }
            error => io::Error::from(error),
        };
        let found = self.store.get_opts(&self.path, options).await.map_err(failed)?;
        let bytes = found.bytes().await.map_err(io::Error::from)?;
        if bytes.len() as u64 != end - start {
            let (found, asked) = (bytes.len() as u64, end - start);
            let missing = asked.saturating_sub(found);
            return Err(FileError::Truncated(format!("{missing} of {asked} bytes are")));
        }
        Ok(bytes.into())
    }
}

/// Writes an object, which appears complete or not at all and replaces an existing one. Up to 16 MiB go in
/// one request, larger objects in parts of 16 MiB. If the future is dropped before the end, the store's rule
/// for unfinished uploads cleans up.
///
/// # Errors
/// An error of the store. No part of the object stays then.
pub async fn put_object(store: &dyn ObjectStore, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
    if bytes.len() <= PART {
        store.put(path, bytes.into()).await?;
        return Ok(());
    }
    let mut upload = store.put_multipart(path).await?;
    let sent = send(&mut *upload, &bytes).await;
    if sent.is_err() {
        // The first error matters more than a failed clean-up.
        let _ = upload.abort().await;
    }
    sent
}

async fn send(upload: &mut dyn MultipartUpload, bytes: &[u8]) -> io::Result<()> {
    for part in bytes.chunks(PART) {
        upload.put_part(PutPayload::from(part.to_vec())).await?;
    }
    upload.complete().await?;
    Ok(())
}

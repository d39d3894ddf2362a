//! `.tqk` files as objects of a store: S3 and the like, a folder, memory.
//!
//! [`TqkObject`] fetches by range the chunks that hold the blocks which are asked for. [`put_object`] writes
//! what a [`Writer`](super::Writer) has made in memory, or any other bytes, whole or not at all. The stores
//! are those of the crate [`object_store`]; its futures run on whatever drives them, and those of its network
//! stores need tokio. Caches go there and back by
//! [`KvCache::save_object`](crate::cache::KvCache::save_object).
//!
//! Nothing is kept: who asks twice fetches twice. Not for files of this machine, which
//! [`TqkView`](super::TqkView) maps.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};

use super::header::MAX_HEADER;
use super::reader::{check_chunk, header_of_file};
use super::{CHUNK_HEAD, CRC, FileError, Header};

/// Bytes that are sent at once; of more, each part is a request of its own.
const PART: usize = 16 << 20;

/// A `.tqk` file in a store: any blocks by their index.
///
/// Opening fetches a little over 4 KiB at most and checks the header and that the length is exactly what it
/// implies. Should the object be replaced, reading it is an error from then on, where the store has entity
/// tags.
#[derive(Clone, Debug)]
pub struct TqkObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    e_tag: Option<String>,
    header: Header,
    block_bytes: usize,
}

impl TqkObject {
    /// Reads the header; one request.
    ///
    /// # Errors
    /// Anything wrong with the header, truncation, trailing bytes; [`FileError::Io`] is what the store says.
    pub async fn open(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self, FileError> {
        let range = GetOptions::new().with_range(Some(0..MAX_HEADER as u64));
        let found = store.get_opts(&path, range).await.map_err(io::Error::from)?;
        let (len, e_tag) = (found.meta.size, found.meta.e_tag.clone());
        let front = found.bytes().await.map_err(io::Error::from)?;
        let (header, block_bytes) = header_of_file(&front, len)?;
        Ok(Self { store, path, e_tag, header, block_bytes })
    }

    /// What the file says about its blocks.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Blocks, back to back. One request fetches the chunks that hold them, each of which is checked by its
    /// CRC-32; a range that begins and ends at multiples of [`Header::blocks_per_chunk`] wastes nothing.
    ///
    /// # Errors
    /// [`FileError::OutOfBounds`], a damaged chunk, or what the store says, in [`FileError::Io`].
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

    /// Neighbouring chunks as they are stored.
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
            let found = bytes.len();
            return Err(FileError::Truncated(format!(
                "of {} bytes asked for all but {found} are",
                end - start
            )));
        }
        Ok(bytes.into())
    }
}

/// Writes an object, which appears whole or not at all and replaces one that is there: in one request up to
/// 16 MiB, in parts of as many above. Where the future is dropped in between, the store's rule for unfinished
/// uploads cleans up.
///
/// # Errors
/// What the store says; nothing of the object stays then.
pub async fn put_object(store: &dyn ObjectStore, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
    if bytes.len() <= PART {
        store.put(path, bytes.into()).await?;
        return Ok(());
    }
    let mut upload = store.put_multipart(path).await?;
    let sent = send(&mut *upload, &bytes).await;
    if sent.is_err() {
        // What came before failed already, and says more than that cleaning up did too.
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

//! The bytes of a model's files. They are mapped, or read piece by piece if the model is larger than the
//! memory it may take.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::ModelError;
use tqkv::file::Bytes;

/// How the files of a model are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Mapped while the model exists. Weights are read in place. Under memory pressure the system may drop
    /// pages and read them again. The files must not change during this time.
    #[default]
    Mapped,
    /// Read layer by layer, the next one during the computation of the current one. At most two layers are in
    /// memory.
    Streamed,
}

/// A file of a model.
#[derive(Debug)]
pub(crate) struct TensorSource {
    pub(crate) name: String,
    pub(crate) len: u64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Whole(Arc<Bytes>),
    Pieces { path: PathBuf, file: Mutex<File> },
}

/// A piece of a file, in memory.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    bytes: Arc<Bytes>,
    range: Range<usize>,
}

impl TensorSource {
    /// Opens the regular file at `path`.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: path.to_owned(), source };
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        // This refuses anything that is no regular file, for mapped files as well.
        let len = std::fs::metadata(path).map_err(io)?;
        if access == Access::Streamed && len.is_file() {
            let file = Mutex::new(File::open(path).map_err(io)?);
            return Ok(Self { name, len: len.len(), data: Data::Pieces { path: path.to_owned(), file } });
        }
        let bytes = Bytes::open(path).map_err(io)?;
        Ok(Self { name, len: bytes.as_ref().len() as u64, data: Data::Whole(Arc::new(bytes)) })
    }

    /// Makes a source from bytes in memory.
    pub(crate) fn in_memory(name: &str, bytes: &[u8]) -> Self {
        let data = Data::Whole(Arc::new(Bytes::Owned(bytes.to_vec())));
        Self { name: name.to_owned(), len: bytes.len() as u64, data }
    }

    /// The first `len` bytes at most. A file in memory gives all of its bytes.
    pub(crate) fn head(&self, len: u64) -> Result<Cow<'_, [u8]>, ModelError> {
        match &self.data {
            Data::Whole(bytes) => Ok(Cow::Borrowed(bytes.as_ref().as_ref())),
            Data::Pieces { .. } => Ok(Cow::Owned(self.read(0..len.min(self.len))?)),
        }
    }

    /// A piece of the file.
    pub(crate) fn chunk(&self, range: Range<u64>) -> Result<Chunk, ModelError> {
        if range.start > range.end || range.end > self.len {
            return Err(self.bad(format!("bytes {range:?} of a file of {} were asked for", self.len)));
        }
        match &self.data {
            // The file is in memory, so both ends fit in `usize`.
            Data::Whole(bytes) => {
                Ok(Chunk { bytes: Arc::clone(bytes), range: range.start as usize..range.end as usize })
            }
            Data::Pieces { .. } => self.read(range).map(Chunk::from),
        }
    }

    /// An error about this file.
    pub(crate) fn bad(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Weights { file: self.name.clone(), reason: reason.into() }
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<u8>, ModelError> {
        let Data::Pieces { path, file } = &self.data else { return Ok(Vec::new()) };
        let io = |source| ModelError::Io { path: path.clone(), source };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(range.start)).map_err(io)?;
        // Files are streamed because memory is short, so a failed allocation is an error.
        let (len, mut bytes) = ((range.end - range.start) as usize, Vec::new());
        bytes.try_reserve_exact(len).map_err(|_| io(std::io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(len, 0);
        file.read_exact(&mut bytes).map_err(io)?;
        Ok(bytes)
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), bytes: Arc::new(Bytes::Owned(bytes)) }
    }
}

impl Chunk {
    /// A part of this piece.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let (start, end) = (self.range.start + range.start, self.range.start + range.end);
        assert!(start <= end && end <= self.range.end, "a part of the piece");
        Self { bytes: Arc::clone(&self.bytes), range: start..end }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes.as_ref().as_ref()[self.range.clone()]
    }
}

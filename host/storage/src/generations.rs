//! The bases of a folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tqkv::file::{AtomicFile, Existing};

use crate::basis::{Basis, BasisId};
use crate::codec::StorageCodec;
use crate::error::StorageError;
use crate::shape::Shape;

/// The file that names the newest basis.
const NEWEST: &str = "newest";

/// A folder of bases of one model: `NAME.tqb` for each generation, and `newest` with the name of the last.
/// Files of older generations stay, because chunks name them. Chunks that were written before the first
/// basis are read as well.
#[derive(Debug)]
pub struct Generations {
    folder: PathBuf,
    model: String,
    shape: Shape,
    /// Codecs that were asked for. The first has no basis.
    known: Vec<StorageCodec>,
}

impl Generations {
    /// Opens a folder, and makes it if it does not exist.
    ///
    /// # Errors
    /// Errors of the system, and of [`StorageCodec::new`].
    pub fn open(folder: impl AsRef<Path>, model: &str, shape: Shape) -> Result<Self, StorageError> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        let known = vec![StorageCodec::new(shape.clone(), None)?];
        Ok(Self { folder: folder.to_owned(), model: model.to_owned(), shape, known })
    }

    fn path(&self, id: BasisId) -> PathBuf {
        self.folder.join(format!("{id}.tqb"))
    }

    /// Writes a basis, which is the newest then. Its file is complete before it is named.
    ///
    /// # Errors
    /// A basis of another model or shape, and errors of writing.
    pub fn add(&self, basis: &Basis) -> Result<(), StorageError> {
        basis.check(&self.model, &self.shape)?;
        basis.save(self.path(basis.id()))?;
        let mut file = AtomicFile::create(self.folder.join(NEWEST), Existing::Replace)?;
        writeln!(file, "{}", basis.id())?;
        Ok(file.commit()?)
    }

    /// The codec of the newest basis, or without one.
    ///
    /// # Errors
    /// The errors of [`Generations::of`], and a file `newest` that names none.
    pub fn newest(&mut self) -> Result<&StorageCodec, StorageError> {
        let name = match fs::read_to_string(self.folder.join(NEWEST)) {
            Ok(name) => name,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(&self.known[0]),
            Err(error) => return Err(error.into()),
        };
        let id = BasisId::parse(name.trim_end()).ok_or_else(|| {
            StorageError::basis("the file 'newest' names no basis: expected 64 hexadecimal digits")
        })?;
        self.named(id)
    }

    /// The codec that decodes a chunk: of the basis that the chunk names.
    ///
    /// # Errors
    /// Bytes that are no chunk of this shape, and a basis that is not in the folder, is damaged, or does not
    /// fit.
    pub fn of(&mut self, chunk: &[u8]) -> Result<&StorageCodec, StorageError> {
        match self.known[0].wanted(chunk)? {
            Some(id) => self.named(id),
            None => Ok(&self.known[0]),
        }
    }

    fn named(&mut self, id: BasisId) -> Result<&StorageCodec, StorageError> {
        let known = self.known.iter().position(|codec| codec.basis().is_some_and(|basis| basis.id() == id));
        let at = match known {
            Some(at) => at,
            None => {
                self.known.push(self.load(id)?);
                self.known.len() - 1
            }
        };
        Ok(&self.known[at])
    }

    fn load(&self, id: BasisId) -> Result<StorageCodec, StorageError> {
        let path = self.path(id);
        let basis = Basis::load(&path).map_err(|error| match error {
            StorageError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                StorageError::Basis(format!("{} is not there, and a chunk needs it", path.display()))
            }
            error => error,
        })?;
        if basis.id() != id {
            return Err(StorageError::Basis(format!("{} holds {}", path.display(), basis.id())));
        }
        basis.check(&self.model, &self.shape)?;
        StorageCodec::new(self.shape.clone(), Some(Arc::new(basis)))
    }
}

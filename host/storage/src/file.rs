//! The bytes of a basis.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use half::f16;
use sha2::{Digest, Sha256};
use tqkv::file::{AtomicFile, Existing};

use crate::basis::{Basis, BasisId};
use crate::columns::Columns;
use crate::error::StorageError;
use crate::frame::Frame;
use crate::marks::Marks;
use crate::parse::ByteReader;
use crate::shape::{Join, Shape};

pub(crate) const MAGIC: [u8; 8] = *b"\x89TQB\r\n\x1a\n";
/// Version 1 has no marks, version 2 has them.
const VERSIONS: [u16; 2] = [1, 2];
/// The largest file that is read. The largest models without shared KV heads have a basis of 2 GB.
const MOST: u64 = 8 << 30;
const DIGEST: usize = 32;

impl Basis {
    pub(crate) fn new(
        shape: Shape,
        join: Join,
        model: &str,
        (tokens, marks): (u64, Marks),
        frames: Vec<Frame>,
    ) -> Self {
        let mut basis =
            Self { shape, join, model: model.to_owned(), tokens, marks, frames, id: BasisId([0; 32]) };
        basis.id = BasisId(Sha256::digest(basis.body()).into());
        basis
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.body();
        out.extend_from_slice(&self.id.0);
        out
    }

    /// The bytes without the digest.
    fn body(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let has_marks = self.marks.iter().len() > 0;
        for field in [VERSIONS[usize::from(has_marks)], self.join.code()] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&(self.model.len() as u32).to_le_bytes());
        out.extend_from_slice(self.model.as_bytes());
        out.extend_from_slice(&self.tokens.to_le_bytes());
        if has_marks {
            self.marks.write(&mut out);
        }
        out.extend_from_slice(&self.shape.to_bytes());
        for frame in &self.frames {
            push_f16s(frame.mean.iter().map(|x| f16::from_f32(*x)), &mut out);
            frame.scales.as_flattened().iter().for_each(|scale| out.extend_from_slice(&scale.to_le_bytes()));
            for part in &frame.columns {
                push_f16s(part.scales.iter().copied(), &mut out);
                out.extend(part.entries().map(i8::cast_unsigned));
            }
        }
        out
    }

    /// Reads a file that [`Basis::save`] wrote.
    ///
    /// # Errors
    /// Errors of reading, a file of more than 8 GiB, and the errors of [`Basis::from_bytes`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, StorageError> {
        let (file, mut bytes) = (File::open(path)?, Vec::new());
        // A file with another magic is not read further: it may have no end.
        (&file).take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
        if bytes == MAGIC {
            (&file).take(MOST).read_to_end(&mut bytes)?;
        }
        if bytes.len() as u64 > MOST {
            return Err(StorageError::basis(format!("longer than {MOST} bytes")));
        }
        Self::from_bytes(&bytes)
    }

    /// Writes the file, complete or not at all.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), StorageError> {
        let mut file = AtomicFile::create(path, Existing::Replace)?;
        file.write_all(&self.to_bytes())?;
        Ok(file.commit()?)
    }

    /// Reads the bytes of [`Basis::to_bytes`].
    ///
    /// # Errors
    /// [`StorageError::Bytes`]: another magic, version or digest, or fields that contradict each other.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StorageError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(StorageError::basis(
                "not a basis (the first 8 bytes must be 89 54 51 42 0d 0a 1a 0a)",
            ));
        }
        let Some((body, digest)) = bytes.split_last_chunk::<DIGEST>() else {
            return Err(StorageError::basis("truncated: shorter than a digest"));
        };
        let mut rest = ByteReader::new(body, "basis");
        rest.take(MAGIC.len())?;
        let version = rest.u16()?;
        if !VERSIONS.contains(&version) {
            return Err(StorageError::basis(format!("version {version}; expected 1 or 2")));
        }
        let found: [u8; DIGEST] = Sha256::digest(body).into();
        if found != *digest {
            return Err(StorageError::basis("damaged (SHA-256 does not match)"));
        }
        let join = Join::from_code(rest.u16()?);
        let name = rest.u32()? as usize;
        let model = String::from_utf8(rest.take(name)?.to_vec())
            .map_err(|_| StorageError::basis("the model's name is no UTF-8"))?;
        let tokens = rest.u64()?;
        let marks = if version == VERSIONS[1] { marks(&mut rest)? } else { Marks::default() };
        let shape = Shape::parse(&mut rest)?;
        shape.check_join(join).map_err(|error| StorageError::basis(error.to_string()))?;
        let frames = (0..shape.num_layers / join.layers())
            .map(|_| frame(&mut rest, &shape, join))
            .collect::<Result<_, _>>()?;
        if !rest.rest().is_empty() {
            return Err(StorageError::basis(format!("{} bytes too many", rest.rest().len())));
        }
        Ok(Self { shape, join, model, tokens, marks, frames, id: BasisId(*digest) })
    }
}

fn marks(bytes: &mut ByteReader<'_>) -> Result<Marks, StorageError> {
    let marks = Marks::parse(bytes)?.filter(|marks| marks.iter().len() > 0);
    marks.ok_or_else(|| StorageError::basis("the hashes of its text do not ascend, or there are none"))
}

fn frame(bytes: &mut ByteReader<'_>, shape: &Shape, join: Join) -> Result<Frame, StorageError> {
    let mean = f16s(bytes, join.layers() * shape.key_values())?.into_iter().map(f16::to_f32).collect();
    let mut scales = vec![[0.0; 2]; join.layers()];
    for scales in &mut scales {
        *scales = bytes.u32s()?.map(f32::from_bits);
    }
    let mut columns = Vec::new();
    for dim in shape.parts(join) {
        let scales = f16s(bytes, dim)?;
        let entries: Vec<i8> = bytes.take(dim * dim)?.iter().map(|x| x.cast_signed()).collect();
        columns.push(Columns::new(scales, &entries));
    }
    if scales.as_flattened().iter().any(|scale| !scale.is_normal() || *scale < 0.0) {
        return Err(StorageError::basis("a scale is not a positive number"));
    }
    Ok(Frame { mean, scales, columns })
}

fn push_f16s(values: impl Iterator<Item = f16>, out: &mut Vec<u8>) {
    values.for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
}

fn f16s(bytes: &mut ByteReader<'_>, count: usize) -> Result<Vec<f16>, StorageError> {
    let values: Vec<f16> =
        bytes.take(2 * count)?.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x)).collect();
    if values.iter().all(|x| x.is_finite()) {
        return Ok(values);
    }
    Err(StorageError::basis("a number is not finite"))
}

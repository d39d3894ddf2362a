//! The file of a learner: the sums that a basis is made of, so that bases of several texts can be made later.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use tqkv::file::{AtomicFile, Existing};

use crate::error::StorageError;
use crate::learn::{FrameMoments, Learner};
use crate::marks::Marks;
use crate::parse::ByteReader;
use crate::shape::{Join, Shape};

const MAGIC: [u8; 8] = *b"\x89TQA\r\n\x1a\n";
const VERSION: u16 = 1;
/// The largest file that is read.
const MOST: u64 = 64 << 30;
const DIGEST: usize = 32;

impl Learner {
    /// Writes the sums, complete or not at all. [`Learner::load`] and [`Learner::merge`] add them to others.
    ///
    /// Size: 8 bytes for each pair of values that share a basis, about four times the basis.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), StorageError> {
        let body = self.body();
        let mut file = AtomicFile::create(path, Existing::Replace)?;
        file.write_all(&body)?;
        file.write_all(&Sha256::digest(&body))?;
        Ok(file.commit()?)
    }

    fn body(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for field in [VERSION, self.join.code()] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.tokens.to_le_bytes());
        self.marks.write(&mut out);
        out.extend_from_slice(&self.shape.to_bytes());
        for FrameMoments { sums, products } in &self.moments {
            let rows = products.iter().flat_map(|products| {
                let dim = products.len().isqrt();
                // The products are symmetric.
                (0..dim).flat_map(move |row| &products[row * dim..=row * (dim + 1)])
            });
            sums.iter().chain(rows).for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
        }
        out
    }

    /// Reads a file of [`Learner::save`].
    ///
    /// # Errors
    /// Errors of reading. [`StorageError::Bytes`]: another magic, version or digest, or fields that
    /// contradict each other.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, StorageError> {
        let (file, mut bytes) = (File::open(path)?, Vec::new());
        // A file with another magic is not read further: it may have no end.
        (&file).take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
        if bytes == MAGIC {
            (&file).take(MOST).read_to_end(&mut bytes)?;
        }
        Self::from_bytes(&bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, StorageError> {
        let bad = |why: String| StorageError::Bytes { kind: "moments", why };
        if !bytes.starts_with(&MAGIC) {
            return Err(bad("not moments (the first 8 bytes must be 89 54 51 4d 0d 0a 1a 0a)".into()));
        }
        let (body, digest) = bytes
            .split_last_chunk::<DIGEST>()
            .ok_or_else(|| bad("truncated: shorter than a digest".into()))?;
        let mut rest = ByteReader::new(body, "moments");
        rest.take(MAGIC.len())?;
        let version = rest.u16()?;
        if version != VERSION {
            return Err(bad(format!("version {version}; expected {VERSION}")));
        }
        if <[u8; DIGEST]>::from(Sha256::digest(body)) != *digest {
            return Err(bad("damaged (SHA-256 does not match)".into()));
        }
        let (join, tokens) = (Join::from_code(rest.u16()?), rest.u64()?);
        let marks =
            Marks::parse(&mut rest)?.ok_or_else(|| bad("the hashes of its text do not ascend".into()))?;
        let shape = Shape::parse(&mut rest).map_err(|error| bad(error.to_string()))?;
        let mut learner = Self::new(shape, join).map_err(|error| bad(error.to_string()))?;
        (learner.tokens, learner.marks) = (tokens, marks);
        for FrameMoments { sums, products } in &mut learner.moments {
            read(&mut rest, sums)?;
            for products in products {
                let dim = products.len().isqrt();
                for row in 0..dim {
                    read(&mut rest, &mut products[row * dim..=row * (dim + 1)])?;
                    (0..row).for_each(|column| products[column * dim + row] = products[row * dim + column]);
                }
            }
        }
        if !rest.rest().is_empty() {
            return Err(bad(format!("{} bytes too many", rest.rest().len())));
        }
        let mut sums = learner
            .moments
            .iter()
            .flat_map(|moments| moments.sums.iter().chain(moments.products.iter().flatten()));
        if !sums.all(|sum| sum.is_finite()) {
            return Err(bad("a sum is not finite".into()));
        }
        drop(sums);
        Ok(learner)
    }
}

fn read(bytes: &mut ByteReader<'_>, sums: &mut [f64]) -> Result<(), StorageError> {
    let raw = bytes.take(8 * sums.len())?.as_chunks().0;
    sums.iter_mut().zip(raw).for_each(|(sum, raw)| *sum = f64::from_le_bytes(*raw));
    Ok(())
}

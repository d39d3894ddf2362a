//! A row at a head dim and a layer: encodes vectors to blocks and decodes them.

use crate::format::{Format, Layer, Rotated};
use crate::product::{Product, Sketched};
use crate::rotation::RotationKind;
use crate::rows::{Row, RowKind};
use crate::runs::ScaledRuns;
use crate::scalar::Scalar;
use crate::split::{Channels, Split};
use crate::turbo::Turbo;
use crate::uniform::{OfTensor, Uniform, ZeroPoint};
use std::sync::Arc;
use tqkv_core::{DecodeError, EncodeError, HEAD_DIMS};

/// Why a row has no coder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The row has no blocks of this head dim.
    #[error("{row} has no blocks of head dim {dim}; expected {accepted}", accepted = accepted(.row))]
    HeadDim {
        /// The row.
        row: &'static str,
        /// The head dim.
        dim: usize,
    },
    /// A Hadamard transform needs a power of two as the head dim.
    #[error("{row} at head dim {dim} has no Hadamard transform: expected powers of two, or a dense rotation")]
    Rotation {
        /// The row.
        row: &'static str,
        /// The head dim.
        dim: usize,
    },
}

fn accepted(row: &str) -> String {
    let row = crate::ROWS.iter().find(|r| r.name() == row);
    let dims = HEAD_DIMS.into_iter().filter(|&dim| row.is_some_and(|row| row.block_bytes(dim).is_some()));
    dims.map(|dim| dim.to_string()).collect::<Vec<_>>().join(", ")
}

/// A [`Row`] at a head dim, with the matrices of one layer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Coder {
    row: Row,
    dim: usize,
    block_bytes: usize,
    format: Coding,
}

/// The format of a row; those that can do more than code are known by type.
#[derive(Clone, Debug)]
enum Coding {
    Product(Arc<Product>),
    Split(Arc<Split>),
    Other(Arc<dyn Format>),
}

fn other(format: impl Format + 'static) -> Coding {
    Coding::Other(Arc::new(format))
}

impl Coding {
    fn format(&self) -> &dyn Format {
        match self {
            Self::Product(format) => &**format,
            Self::Split(format) => &**format,
            Self::Other(format) => &**format,
        }
    }
}

impl Coder {
    /// The coder of layer `layer`, whose rotation has the seed `seed + 1000 * layer`. `rotation` replaces the
    /// row's own. It has no effect on rows without a choice ([`Row::has_rotations`]).
    ///
    /// Cost: about 4 d^3 operations for a dense rotation.
    ///
    /// # Errors
    /// A head dim without blocks, or a rotation that the row does not have.
    pub fn new(
        row: Row,
        dim: usize,
        (seed, layer): (u64, usize),
        rotation: Option<RotationKind>,
    ) -> Result<Self, ReferenceError> {
        let bad_dim = ReferenceError::HeadDim { row: row.name(), dim };
        let bad_rotation = ReferenceError::Rotation { row: row.name(), dim };
        let rotation = rotation.filter(|_| row.has_rotations());
        let block_bytes = row.block_bytes(dim).ok_or(bad_dim.clone())?;
        let layer = Layer { dim, seed, layer, rotation };
        let format = match *row.kind() {
            RowKind::Scalar(form) => Scalar::new(form, layer).map(other),
            RowKind::Product(form) => Product::new(form, layer).map(|f| Coding::Product(Arc::new(f))),
            RowKind::Split(form) => Split::new(form, layer).map(|f| Coding::Split(Arc::new(f))),
            RowKind::Turbo { bits } => Some(other(Turbo::new(bits))),
            RowKind::Uniform { bits, is_rotated: false } => Some(other(Uniform { bits })),
            RowKind::Uniform { bits, .. } => Rotated::new(Uniform { bits }, layer).map(other),
            RowKind::ZeroPoint => Rotated::new(ZeroPoint, layer).map(other),
            RowKind::Floats(floats) => Some(other(floats)),
            RowKind::OfTensor => Some(other(OfTensor { scale: 1.0 })),
            RowKind::Fp4(form) => Some(other(form)),
            RowKind::RotatedRuns => Rotated::new(ScaledRuns, layer).map(other),
        };
        let format = format.ok_or(if rotation.is_some() { bad_rotation } else { bad_dim })?;
        Ok(Self { row, dim, block_bytes, format })
    }

    /// The row.
    pub fn row(&self) -> Row {
        self.row
    }

    /// Coordinates per vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Encodes `x`, `[dim]`, into `block`. Writes nothing on an error.
    ///
    /// # Errors
    /// NaN or infinities, a norm too large for its field, or wrong lengths.
    pub fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        if x.len() != self.dim || block.len() != self.block_bytes {
            return Err(EncodeError::WrongLength);
        }
        if !x.iter().all(|x| x.is_finite()) {
            return Err(EncodeError::NonFinite);
        }
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        self.format.format().encode(&x, block)
    }

    /// Decodes `block` into `out`, `[dim]`. Writes nothing on an error.
    ///
    /// # Errors
    /// A norm that is NaN or infinite, or wrong lengths.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        if out.len() != self.dim || block.len() != self.block_bytes {
            return Err(DecodeError::WrongLength);
        }
        let x = self.format.format().decode(block)?;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x as f32);
        Ok(())
    }

    /// The coder with what its format learns from `vectors`, `[n, dim]`: the channels, or the scale of the tensor, for
    /// which these vectors stand. Other rows stay the same.
    pub fn learn(&self, vectors: &[f32]) -> Self {
        let format = match &self.format {
            Coding::Split(split) => {
                Coding::Split(Arc::new(split.with_channels(Channels::learn(vectors, self.dim))))
            }
            Coding::Other(format) => {
                let largest = vectors.iter().fold(0.0, |largest, x| f32::max(largest, x.abs()));
                Coding::Other(format.of_tensor(largest.into()).unwrap_or_else(|| format.clone()))
            }
            Coding::Product(_) => return self.clone(),
        };
        Self { format, ..self.clone() }
    }

    /// Prepares a query for [`Coder::score`]. `None` for rows without an estimator, and for another length.
    pub fn sketch(&self, query: &[f32]) -> Option<Sketched> {
        let Coding::Product(product) = &self.format else { return None };
        let query: Vec<f64> = query.iter().map(|&q| f64::from(q)).collect();
        (query.len() == self.dim).then(|| product.sketch(&query))
    }

    /// Estimates the dot product of a sketched query and the vector of `block`, without decoding it. The
    /// estimate is unbiased.
    ///
    /// # Errors
    /// A block of another length, or norms that are NaN or infinite. For a row without an estimator every
    /// length is wrong.
    pub fn score(&self, query: &Sketched, block: &[u8]) -> Result<f64, DecodeError> {
        match &self.format {
            Coding::Product(product) if block.len() == self.block_bytes => product.score(query, block),
            _ => Err(DecodeError::WrongLength),
        }
    }
}

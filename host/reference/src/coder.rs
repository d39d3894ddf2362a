//! A row at a head dim and a layer: encodes vectors to blocks and decodes them.

use crate::product::{Product, Sketched};
use crate::rotation::RotationKind;
use crate::rows::{Kind, Row};
use crate::scalar::Scalar;
use crate::split::{Channels, Split};
use crate::turbo::Turbo;
use crate::uniform::{Floats, Uniform};
use half::f16;
use std::sync::Arc;
use tqkv_core::{DecodeError, EncodeError, HEAD_DIMS};

/// Why a row has no coder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The row has no blocks of this head dim.
    #[error("{row} has no blocks of head dim {dim}; accepted are {accepted}", accepted = accepted(.row))]
    HeadDim {
        /// The row.
        row: &'static str,
        /// The head dim.
        dim: usize,
    },
    /// A Hadamard transform needs a power of two as the head dim.
    #[error(
        "{row} at head dim {dim} has no Hadamard transform: accepted are powers of two, or a dense rotation"
    )]
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

/// Encodes and decodes one format. Lengths and finiteness are checked before.
pub(crate) trait Format: std::fmt::Debug + Send + Sync {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError>;
    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError>;

    /// The same format with other channels, if it has channels.
    fn with_channels(&self, _: &Channels) -> Option<Arc<dyn Format>> {
        None
    }

    /// The estimator that reads blocks without decoding them, if the format has one.
    fn product(&self) -> Option<&Product> {
        None
    }
}

/// A [`Row`] at a head dim, with the matrices of one layer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Coder {
    row: Row,
    dim: usize,
    block_bytes: usize,
    format: Arc<dyn Format>,
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
        let format: Option<Arc<dyn Format>> = match *row.kind() {
            Kind::Scalar(form) => Scalar::new(form, layer).map(|f| Arc::new(f) as _),
            Kind::Product(form) => Product::new(form, layer).map(|f| Arc::new(f) as _),
            Kind::Split(form) => Split::new(form, layer).map(|f| Arc::new(f) as _),
            Kind::Turbo { bits } => Some(Arc::new(Turbo::new(bits))),
            Kind::Uniform { bits } => Some(Arc::new(Uniform { bits })),
            Kind::Floats => Some(Arc::new(Floats)),
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
        self.format.encode(&x, block)
    }

    /// Decodes `block` into `out`, `[dim]`. Writes nothing on an error.
    ///
    /// # Errors
    /// A norm that is NaN or infinite, or wrong lengths.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        if out.len() != self.dim || block.len() != self.block_bytes {
            return Err(DecodeError::WrongLength);
        }
        let x = self.format.decode(block)?;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x as f32);
        Ok(())
    }

    /// The coder with the channels learned from `vectors`, `[n, dim]`. Rows without channels stay the same.
    pub fn learn(&self, vectors: &[f32]) -> Self {
        if !self.row.has_channels() {
            return self.clone();
        }
        let format = self.format.with_channels(&Channels::learn(vectors, self.dim));
        Self { format: format.unwrap_or_else(|| self.format.clone()), ..self.clone() }
    }

    /// Prepares a query for [`Coder::score`]. `None` for rows without an estimator, and for another length.
    pub fn sketch(&self, query: &[f32]) -> Option<Sketched> {
        let query: Vec<f64> = query.iter().map(|&q| f64::from(q)).collect();
        self.format.product().filter(|_| query.len() == self.dim).map(|product| product.sketch(&query))
    }

    /// Estimates the dot product of a sketched query and the vector of `block`, without decoding it. The
    /// estimate is unbiased.
    ///
    /// # Errors
    /// A block of another length, or norms that are NaN or infinite. For a row without an estimator every
    /// length is wrong.
    pub fn score(&self, query: &Sketched, block: &[u8]) -> Result<f64, DecodeError> {
        let product = self.format.product().filter(|_| block.len() == self.block_bytes);
        product.ok_or(DecodeError::WrongLength)?.score(query, block)
    }
}

/// The inputs from which the matrices of a coder are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    pub(crate) dim: usize,
    pub(crate) seed: u64,
    pub(crate) layer: usize,
    pub(crate) rotation: Option<RotationKind>,
}

/// How a norm is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    F16,
    F32,
}

impl Norm {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Stores a norm and returns the value that the bytes stand for.
    pub(crate) fn store(self, norm: f64, bytes: &mut [u8]) -> Result<f64, EncodeError> {
        let stored = match self {
            Self::F16 => {
                let stored = f16::from_f32(norm as f32);
                bytes.copy_from_slice(&stored.to_le_bytes());
                stored.to_f64()
            }
            Self::F32 => {
                bytes.copy_from_slice(&(norm as f32).to_le_bytes());
                f64::from(norm as f32)
            }
        };
        if stored.is_finite() { Ok(stored) } else { Err(EncodeError::OutOfRange) }
    }

    /// Reads a norm from the front of `bytes`.
    pub(crate) fn load<'a>(self, bytes: &mut &'a [u8]) -> Result<f64, DecodeError> {
        let (norm, rest): (&'a [u8], &'a [u8]) = bytes.split_at(self.bytes());
        *bytes = rest;
        let norm = match *norm {
            [a, b] => f16::from_le_bytes([a, b]).to_f64(),
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            _ => f64::NAN,
        };
        if norm.is_finite() { Ok(norm) } else { Err(DecodeError::NonFiniteScale) }
    }
}

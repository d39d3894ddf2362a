//! The common part of all formats: bytes and vectors become each other, and norms are stored.

use crate::rotation::{Rotation, RotationKind};
use half::f16;
use std::sync::Arc;
use tqkv_core::{DecodeError, EncodeError};

/// Encodes and decodes one format. Lengths and finiteness are checked before.
pub(crate) trait Format: std::fmt::Debug + Send + Sync {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError>;
    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError>;

    /// The format with the scale of a tensor whose largest magnitude is `largest`. `None` if it has no such scale.
    fn of_tensor(&self, _largest: f64) -> Option<Arc<dyn Format>> {
        None
    }
}

/// A format of rotated vectors.
#[derive(Debug)]
pub(crate) struct Rotated<F> {
    rotation: Rotation,
    format: F,
}

impl<F> Rotated<F> {
    /// `None` if the head dim is no power of two.
    pub(crate) fn new(format: F, Layer { dim, seed, layer, .. }: Layer) -> Option<Self> {
        Some(Self { rotation: Rotation::new(RotationKind::Hadamard, dim, seed, layer)?, format })
    }
}

impl<F: Format> Format for Rotated<F> {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        self.format.encode(&self.rotation.apply(x), block)
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        Ok(self.rotation.invert(&self.format.decode(block)?))
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

//! Views of one block in the caller's memory: its scale and codes, without decoding.

use crate::code::CodecId;
use crate::error::{DecodeError, EncodeError, ShapeError};
use crate::machine::block_io;

/// A block of a rotated codec (`i8`, `s*`, `n*`) read in place.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BlockView<'a> {
    id: CodecId,
    dim: usize,
    bytes: &'a [u8],
}

impl<'a> BlockView<'a> {
    /// Views `bytes` as one block.
    ///
    /// # Errors
    /// The codec has no single scale (`f16`, ggml), the head dim is not supported, or the length is not the
    /// codec's block size.
    pub fn new(id: CodecId, dim: usize, bytes: &'a [u8]) -> Result<Self, BlockError> {
        let expected = id.block_bytes(dim).ok_or(BlockError::Shape(ShapeError::UnsupportedHeadDim))?;
        if !id.layout().has_one_scale() {
            return Err(BlockError::Shape(ShapeError::UnsupportedCodec));
        }
        if bytes.len() != expected {
            return Err(BlockError::Decode(DecodeError::WrongLength));
        }
        Ok(Self { id, dim, bytes })
    }

    /// The stored scale.
    pub fn scale(&self) -> f32 {
        block_io::split(self.bytes).0.to_f32()
    }

    /// The code of coordinate `i` (rotated domain), or `None` if `i` is not below the head dim.
    pub fn code(&self, i: usize) -> Option<u8> {
        if i >= self.dim {
            return None;
        }
        let bits = self.id.bits() as usize;
        let (_, codes) = block_io::split(self.bytes);
        let low = *codes.get(bits * i / 8)?;
        // A code may straddle two bytes; the last code never needs the byte past the end.
        let high = codes.get(bits * i / 8 + 1).copied().unwrap_or(0);
        let both = u16::from_le_bytes([low, high]) >> (bits * i % 8);
        Some((both & ((1u16 << bits) - 1)) as u8)
    }

    /// All codes in order.
    pub fn codes(&self) -> impl Iterator<Item = u8> + '_ {
        (0..self.dim).filter_map(|i| self.code(i))
    }
}

/// Why bytes cannot be viewed as a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BlockError {
    /// The codec does not support the head dim, or has no single scale.
    Shape(ShapeError),
    /// The length is wrong.
    Decode(DecodeError),
    /// The block to be written does not fit the format.
    Encode(EncodeError),
}

impl core::fmt::Display for BlockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Shape(error) => error.fmt(f),
            Self::Decode(error) => error.fmt(f),
            Self::Encode(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for BlockError {}

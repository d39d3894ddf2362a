//! Views of one block in caller memory: what is in it, without decoding.

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
    /// Looks at `bytes` as one block.
    ///
    /// # Errors
    /// The codec has no single scale (`f16`, ggml), the head dim is unsupported, or the length is
    /// not the codec's.
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

    /// Code of coordinate `i` (rotated domain), or `None` past the head dim.
    pub fn code(&self, i: usize) -> Option<u8> {
        if i >= self.dim {
            return None;
        }
        let bits = self.id.bits() as usize;
        let (_, codes) = block_io::split(self.bytes);
        let low = *codes.get(bits * i / 8)?;
        // A code may straddle two bytes; the last code never needs the one past the end.
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
    /// Codec and head dim do not go together, or the codec has no single scale.
    Shape(ShapeError),
    /// The length is wrong.
    Decode(DecodeError),
    /// What would be written does not fit the format.
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

//! The codebooks of codecs.

use super::codebook::{Codebook, Exact};
use super::{CodecId, Levels};

/// Bits of a code, and whether it is nested, of codecs that have a codebook.
const fn family(id: CodecId) -> Option<(usize, bool)> {
    match id.levels() {
        Levels::LloydMax => Some((id.bits() as usize, false)),
        Levels::Nested => Some((id.bits() as usize, true)),
        Levels::Values | Levels::Codes(_) | Levels::Trellis(_) => None,
    }
}

impl Codebook {
    /// The codebook of a codec that has one, for constants. At run time, [`CodecId::codebook`] refers to one
    /// table.
    ///
    /// # Panics
    /// The head dim is unsupported.
    pub const fn of(id: CodecId, dim: usize) -> Option<Self> {
        match family(id) {
            Some((bits, is_nested)) => Some(Self::known(dim, bits, is_nested)),
            None => None,
        }
    }

    /// [`Codebook::of`], solved again: for the test and the writer of the table.
    pub const fn solve(id: CodecId, dim: usize) -> Option<Self> {
        match family(id) {
            Some((bits, is_nested)) => Some(Self::solve_half(dim, bits, is_nested)),
            None => None,
        }
    }
}

impl Exact {
    /// Solves for the codebook of a codec that has one, in some microseconds; `None` for others and for
    /// unsupported head dims.
    pub fn solve(id: CodecId, dim: usize) -> Option<Self> {
        let (bits, is_nested) = family(id).filter(|_| crate::is_supported_head_dim(dim))?;
        Some(Self::solve_half(dim, bits, is_nested))
    }
}

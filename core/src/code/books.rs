//! The codebooks of codecs.

use super::codebook::{Codebook, Exact, MAX_BITS};
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
    /// The codebook of a codec that has one, for constants. At run time, [`CodecId::codebook`] returns a
    /// reference to one shared table.
    ///
    /// # Panics
    /// The head dim is not supported.
    pub const fn of(id: CodecId, dim: usize) -> Option<Self> {
        match family(id) {
            Some((bits, is_nested)) => Some(Self::known(dim, bits, is_nested)),
            None => None,
        }
    }

    /// [`Codebook::of`], solved again, for the test and for the writer of the table.
    pub const fn solve(id: CodecId, dim: usize) -> Option<Self> {
        match family(id) {
            Some((bits, is_nested)) => Some(Self::solve_half(dim, bits, is_nested)),
            None => None,
        }
    }
}

impl Exact {
    /// Solves for the Lloyd-Max quantiser of `bits` bits, 1 to 5, in a few microseconds. Returns `None` for
    /// other widths and for head dims that are not supported. No codec has the quantiser of one bit.
    pub fn lloyd_max(dim: usize, bits: usize) -> Option<Self> {
        let supported = crate::is_supported_head_dim(dim) && (1..=MAX_BITS).contains(&bits);
        supported.then(|| Self::solve_half(dim, bits, false))
    }

    /// Solves for the codebook of a codec that has one, in a few microseconds. Returns `None` for other
    /// codecs and for head dims that are not supported.
    pub fn solve(id: CodecId, dim: usize) -> Option<Self> {
        let (bits, is_nested) = family(id).filter(|_| crate::is_supported_head_dim(dim))?;
        Some(Self::solve_half(dim, bits, is_nested))
    }
}

//! The layout of the bytes of a block: all that a reader of blocks must know of a codec.

use super::ggml;
use super::trellis::Plain;
use crate::head_dim::is_supported_head_dim;
use crate::machine::block_io::{self, SCALE_BYTES};

/// The layout of the bytes of a block. Readers of blocks, lines or threads match on it and name every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Layout {
    /// f16 values and nothing else.
    F16,
    /// One scale, then codes of `bits` bits side by side, least significant bit first.
    Dense {
        /// Bits of a code.
        bits: u8,
    },
    /// One scale, then one signed byte per coordinate.
    Bytes,
    /// Runs of 32 coordinates, each with its scale and its codes. Codes are signed bytes, or two nibbles per
    /// byte that are 16 coordinates apart.
    Runs {
        /// Bits of a code, 4 or 8.
        bits: u8,
    },
    /// One scale, then bit planes: the coded bits, then the plain bits.
    Planes(Plain),
}

/// The most by which a search for the scale stretches a vector that has one large coordinate.
const SEARCH_SLACK: f32 = 1.3;
/// The least of the largest levels of the quarters, in sigmas.
const LARGEST_OF_QUARTERS: f32 = 2.0;
/// The most by which a search exceeds the norm.
const LONGEST_RAW: f32 = 2.5;

impl Layout {
    /// Bits of one code, without scales; half rates are rounded down.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F16 => 16,
            Self::Dense { bits } | Self::Runs { bits } => bits as u32,
            Self::Bytes => 8,
            Self::Planes(plain) => match plain {
                Plain::Bits(bits) => 1 + bits as u32,
                Plain::PairOfThree => 2,
                Plain::PairOfSix => 3,
                Plain::Quarters(_) => 1 + plain.planes() as u32,
            },
        }
    }

    /// Bytes of one block, or `None` if the layout does not support the head dim.
    pub const fn block_bytes(self, dim: usize) -> Option<usize> {
        if !is_supported_head_dim(dim) {
            return None;
        }
        match self {
            Self::F16 => Some(2 * dim),
            Self::Dense { bits } => Some(SCALE_BYTES + dim * bits as usize / 8),
            Self::Bytes => Some(SCALE_BYTES + dim),
            Self::Runs { .. } if !dim.is_multiple_of(ggml::RUN) => None,
            Self::Runs { bits } => Some(dim / ggml::RUN * (SCALE_BYTES + ggml::RUN * bits as usize / 8)),
            // Quarters are rotated by themselves and read in words of eight bytes.
            Self::Planes(Plain::Quarters(_)) if !dim.is_power_of_two() || dim < 64 => None,
            Self::Planes(plain) => Some(SCALE_BYTES + plain.body_bytes(dim)),
        }
    }

    /// Returns true if every scale, or every value of `f16`, is finite.
    #[inline(always)]
    pub(crate) fn has_finite_scales(self, block: &[u8]) -> bool {
        let stride = match self {
            Self::F16 => SCALE_BYTES,
            Self::Runs { bits } => SCALE_BYTES + ggml::RUN * usize::from(bits) / 8,
            Self::Dense { .. } | Self::Bytes | Self::Planes(_) => {
                return block_io::split(block).0.is_finite();
            }
        };
        block.chunks(stride).all(|run| block_io::split(run).0.is_finite())
    }

    /// The largest scale, or value of `f16`, that a vector of norm 1 may need. `spread` is the largest
    /// coordinate of such a vector in the domain where it is encoded. Codes stand for `levels` times `unit`.
    pub(crate) fn largest_scale(self, spread: f32, levels: &[i8], unit: f32) -> f32 {
        match self {
            Self::F16 => spread,
            Self::Bytes | Self::Runs { bits: 8 } => spread / (127.0 * unit),
            Self::Runs { .. } => spread / 8.0,
            // Twice the preserving scale of one large coordinate: weights may ask for all of it.
            Self::Planes(Plain::Quarters(_)) => 2.0 * spread / LARGEST_OF_QUARTERS,
            Self::Dense { .. } | Self::Planes(_) => {
                let (mut least, mut largest) = (f32::INFINITY, 0.0);
                for level in levels {
                    let level = f32::from(level.unsigned_abs()) * unit;
                    (least, largest) = (f32::min(least, level), f32::max(largest, level));
                }
                // A scale is longest if one coordinate holds all of the vector; the largest level then stands
                // for it. The unbiased scale is at most twice the preserving one, which the smallest level
                // bounds.
                f32::max(f32::min(SEARCH_SLACK * spread / largest, 2.0 / least), LONGEST_RAW)
            }
        }
    }

    /// Returns true if a block begins with one scale for all its codes.
    pub const fn has_one_scale(self) -> bool {
        match self {
            Self::Dense { .. } | Self::Bytes | Self::Planes(_) => true,
            Self::F16 | Self::Runs { .. } => false,
        }
    }
}

/// The [`super::form::Form`] of a layout.
macro_rules! form {
    (F16) => {
        form::Halves
    };
    (Dense { bits: $bits:literal }) => {
        form::Dense<$bits>
    };
    (Bytes) => {
        form::Bytes
    };
    (Runs { bits: $bits:literal }) => {
        form::Runs<$bits>
    };
    (Planes(Plain::Quarters($($widths:tt)*))) => {
        form::Quarters
    };
    (Planes($($plain:tt)*)) => {
        form::Planes
    };
}
pub(super) use form;

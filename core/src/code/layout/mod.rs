//! How the bytes of a block lie: what a reader of blocks needs to know of a codec.

pub(super) mod affine;
pub(super) mod float8;

use super::ggml;
use super::trellis::Plain;
use crate::head_dim::is_supported_head_dim;
use crate::machine::block_io::{self, SCALE_BYTES};

/// How the bytes of a block lie. Readers of blocks, lines or threads match on it, and name every case.
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
    /// One scale, then a signed byte a coordinate.
    Bytes,
    /// Runs of 32 coordinates, each its scale and its codes: signed bytes, or two nibbles a byte, 16
    /// coordinates apart.
    Runs {
        /// Bits of a code, 4 or 8.
        bits: u8,
    },
    /// A step and a minimum, then codes of 4 bits side by side.
    Affine,
    /// One scale, then e4m3 numbers.
    Floats,
    /// One scale, then bit planes: of coded bits, and of the plain bits beside them.
    Planes(Plain),
}

/// Most by which a search for the scale stretches a vector that has one large coordinate.
const SEARCH_SLACK: f32 = 1.3;
/// Most by which a search goes above the norm.
const LONGEST_RAW: f32 = 2.5;

impl Layout {
    /// Bits of one code, scales not counted; half rates rounded down.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F16 => 16,
            Self::Dense { bits } | Self::Runs { bits } => bits as u32,
            Self::Bytes | Self::Floats => 8,
            Self::Affine => 4,
            Self::Planes(plain) => match plain {
                Plain::Bits(bits) => 1 + bits as u32,
                Plain::PairBit => 1,
                Plain::PairOfThree => 2,
                Plain::PairOfSix => 3,
            },
        }
    }

    /// Bytes of one block, or `None` where the layout does not support the head dim.
    pub const fn block_bytes(self, dim: usize) -> Option<usize> {
        if !is_supported_head_dim(dim) {
            return None;
        }
        match self {
            Self::F16 => Some(2 * dim),
            Self::Dense { bits } => Some(SCALE_BYTES + dim * bits as usize / 8),
            Self::Bytes | Self::Floats => Some(SCALE_BYTES + dim),
            Self::Affine => Some(2 * SCALE_BYTES + dim / 2),
            Self::Runs { .. } if !dim.is_multiple_of(ggml::RUN) => None,
            Self::Runs { bits } => Some(dim / ggml::RUN * (SCALE_BYTES + ggml::RUN * bits as usize / 8)),
            Self::Planes(plain) => Some(SCALE_BYTES + plain.body_bytes(dim)),
        }
    }

    /// Whether every scale, or every value of `f16`, is finite.
    #[inline(always)]
    pub(crate) fn has_finite_scales(self, block: &[u8]) -> bool {
        let stride = match self {
            Self::F16 => SCALE_BYTES,
            Self::Runs { bits } => SCALE_BYTES + ggml::RUN * usize::from(bits) / 8,
            Self::Affine => {
                let (step, rest) = block_io::split(block);
                return step.is_finite() && block_io::split(rest).0.is_finite();
            }
            Self::Dense { .. } | Self::Bytes | Self::Floats | Self::Planes(_) => {
                return block_io::split(block).0.is_finite();
            }
        };
        block.chunks(stride).all(|run| block_io::split(run).0.is_finite())
    }

    /// The largest scale, or value of `f16`, that a vector of norm 1 may need: `spread` is the largest
    /// coordinate of such a vector where it is encoded, and codes stand for `levels` times `unit`.
    pub(crate) fn largest_scale(self, spread: f32, levels: &[i8], unit: f32) -> f32 {
        match self {
            Self::F16 | Self::Affine => spread,
            Self::Floats => spread / float8::LARGEST,
            Self::Bytes | Self::Runs { bits: 8 } => spread / (127.0 * unit),
            Self::Runs { .. } => spread / 8.0,
            Self::Dense { .. } | Self::Planes(_) => {
                let (mut least, mut largest) = (f32::INFINITY, 0.0);
                for level in levels {
                    let level = f32::from(level.unsigned_abs()) * unit;
                    (least, largest) = (f32::min(least, level), f32::max(largest, level));
                }
                // A scale is longest where all of the vector is in one coordinate, which the largest level
                // stands for; but the unbiased one is at most twice the preserving one, which the least
                // levels bound.
                f32::max(f32::min(SEARCH_SLACK * spread / largest, 2.0 / least), LONGEST_RAW)
            }
        }
    }

    /// Whether a block begins with the one scale of all its codes.
    pub const fn has_one_scale(self) -> bool {
        match self {
            Self::Dense { .. } | Self::Bytes | Self::Floats | Self::Planes(_) => true,
            Self::F16 | Self::Runs { .. } | Self::Affine => false,
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
    (Affine) => {
        layout::affine::Affine
    };
    (Floats) => {
        layout::float8::Floats
    };
    (Planes($($plain:tt)*)) => {
        form::Planes
    };
}
pub(super) use form;

//! The scale to store, from the moments of a vector and its codes, and the stored one read back.

use super::math::{Real, clamp_exponent, from_f16, reciprocal_root};
use super::tables;
use crate::block_io::SCALE_BYTES;
use crate::codebook::sqrt;
use crate::error::DecodeError;
use crate::scale::ScaleMode;

/// Constants of a codec with so many integer levels a sigma.
#[derive(Clone, Copy)]
pub(super) struct Units {
    level: Real,
    forward: Real,
    root: Real,
}

impl Units {
    pub(super) const fn new(unit: f64, dim: usize) -> Self {
        Self {
            level: Real::from_f64(unit),
            forward: tables::forward_unit(unit, dim),
            root: Real::from_f64(unit * sqrt(dim as f64)),
        }
    }
}

/// Sums over coordinates.
#[derive(Clone, Copy)]
pub(super) struct Moments {
    /// Of y times integer level, positive.
    pub(super) cross: Real,
    /// Of squared integer levels.
    pub(super) energy: u32,
}

impl Moments {
    /// The scale to store. `norm` is |x|, `assumed` the scale for which the codes were chosen.
    pub(super) fn scale(self, mode: ScaleMode, norm: Real, assumed: Real, units: Units) -> Real {
        let energy = Real { mantissa: self.energy.max(1), exponent: 0 };
        match mode {
            ScaleMode::Raw => assumed,
            ScaleMode::Unbiased => {
                norm.normalised().times(norm.times(units.forward).over(self.cross).normalised())
            }
            ScaleMode::Preserving => norm.normalised().times(inverse_root(energy).times(units.root)),
            ScaleMode::Mmse => self.cross.over(energy).normalised().times(units.level),
        }
    }
}

/// The scale that a block stores, over 2^exponent and normalised, and whether it is negative.
///
/// # Errors
/// It is NaN or infinite.
#[inline(always)]
pub(super) fn stored(head: [u8; SCALE_BYTES], exponent: i32) -> Result<(Real, bool), DecodeError> {
    let (significand, octave) = from_f16(u16::from_le_bytes(head)).ok_or(DecodeError::NonFiniteScale)?;
    let scale = Real { mantissa: significand.unsigned_abs(), exponent: octave - clamp_exponent(exponent) };
    Ok((scale.normalised(), significand < 0))
}

/// 1 / sqrt of an integer above 0, normalised.
#[inline]
pub(super) fn inverse_root(integer: Real) -> Real {
    let zeros = integer.mantissa.leading_zeros() & !1 & 31;
    // The root is of a fraction of 2^32.
    Real { mantissa: reciprocal_root(integer.mantissa << zeros), exponent: (zeros / 2) as i32 - 46 }
        .normalised()
}

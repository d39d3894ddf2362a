//! The scale to store, computed from the moments of a vector and its codes; and the stored scale read back.

use super::math::{Real, clamp_exponent, from_f16, reciprocal_root};
use super::tables;
use crate::code::codebook::sqrt;
use crate::code::scale::ScaleMode;
use crate::error::DecodeError;
use crate::machine::block_io::SCALE_BYTES;

/// Constants of a codec: `unit` is the number of integer levels per sigma.
#[derive(Clone, Copy)]
pub(super) struct Units {
    level: Real,
    forward: Real,
    root: Real,
    unbounded: Real,
}

impl Units {
    /// `unbounded` is the ratio of unbiased scale and norm up to which the bound need not be computed.
    pub(super) const fn new(unit: f64, dim: usize, unbounded: f64) -> Self {
        Self {
            level: Real::from_f64(unit),
            forward: tables::forward_unit(unit, dim),
            root: Real::from_f64(unit * sqrt(dim as f64)),
            unbounded: Real::from_f64(unbounded),
        }
    }
}

/// Sums over coordinates.
#[derive(Clone, Copy)]
pub(super) struct CodeSums<E> {
    /// Sum of y times integer level, positive.
    pub(super) cross: Real,
    /// Sum of squared integer levels; computed only if it is needed.
    pub(super) energy: E,
}

impl<E: Fn() -> u32> CodeSums<E> {
    /// The scale to store. `norm` is |x|, `assumed` the scale for which the codes were chosen.
    #[inline(always)]
    pub(super) fn scale(self, mode: ScaleMode, norm: Real, assumed: Real, units: Units) -> Real {
        let energy = || Real { mantissa: (self.energy)().max(1), exponent: 0 };
        match mode {
            ScaleMode::Raw => assumed,
            ScaleMode::Unbiased => {
                let ratio = norm.times(units.forward).over(self.cross).normalised();
                let scale = norm.normalised().times(ratio);
                if ratio.exceeds(units.unbounded) {
                    bounded(scale, preserving(norm, energy(), units.root))
                } else {
                    scale
                }
            }
            ScaleMode::Preserving => preserving(norm, energy(), units.root),
            ScaleMode::Mmse => self.cross.over(energy()).normalised().times(units.level),
        }
    }
}

/// The scale that gives a block the energy of its vector.
#[inline(never)]
fn preserving(norm: Real, energy: Real, root: Real) -> Real {
    norm.normalised().times(inverse_root(energy).times(root))
}

/// The unbiased scale, but at most twice the scale that preserves the energy. A vector may not decode to more
/// than four times its own energy.
#[cold]
#[inline(never)]
fn bounded(unbiased: Real, preserving: Real) -> Real {
    let (unbiased, most) = (unbiased.normalised(), preserving.shifted(1).normalised());
    if unbiased.exceeds(most) { most } else { unbiased }
}

/// The scale that a block stores, divided by 2^exponent and normalised, and true if it is negative.
///
/// # Errors
/// The scale is NaN or infinite.
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
    // `reciprocal_root` takes a fraction of 2^32.
    Real { mantissa: reciprocal_root(integer.mantissa << zeros), exponent: (zeros / 2) as i32 - 46 }
        .normalised()
}

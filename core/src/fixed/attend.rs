//! Softmax attention in integers, one token after the other.
//!
//! out = sum of 2^(s log2 e) v / sum of 2^(s log2 e). A cubic computes the fraction of the exponent, and a
//! shift the integer part. A new maximum therefore only moves two running references and shifts the sums.
//! There is no table, no second pass and no buffer of scores.

use super::codec::FixedCodec;
use super::kernels::Kernels;
use super::math::{Multiplier, Real, clamp_exponent, exp2_fraction, from_f16, halves, saturate};
use super::tables::{self, Tables};
use super::trellis::Body;
use crate::code::Code;
use crate::error::DecodeError;
use crate::machine::block_io::SCALE_BYTES;

/// log2(e) in Q16.
const LOG2_E: i64 = 94_548;

/// Limit of the sum of weights, so that sums of weight * level stay below 2^31. A level is -128 to 127. Each
/// halving of sums and total rounds down. It may leave a sum larger than 128 totals by 64, so by 128 in all.
const MAX_TOTAL: u32 = (1 << 24) - 2;

const ONE: Real = Real { mantissa: 1 << 31, exponent: -31 };

/// A softmax-weighted sum of values in progress.
///
/// The weight of each token has a relative error below 3e-4, or below 2^-15 of the largest weight if that is
/// more. The value holds `D` words of sums and four more words.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Attention<const D: usize> {
    /// Weights times integer levels.
    values: ValueSums<D>,
    /// Sum of 2^exponent in Q15, times 2^-`denominator_reference`.
    denominator: u32,
    denominator_reference: i32,
}

/// Sums of weight * integer, with a common power of two.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct ValueSums<const D: usize> {
    /// Times 2^-reference.
    pub(super) sums: [i32; D],
    reference: i32,
    /// Sum of the weights in `sums`.
    total: u32,
}

impl<const D: usize> Default for Attention<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize> Attention<D> {
    /// An empty sum.
    pub const fn new() -> Self {
        Self { values: ValueSums::new(), denominator: 0, denominator_reference: i32::MIN / 2 }
    }

    /// Adds a token: its score (from [`FixedCodec::score`]) and its value block. All values of one sum must
    /// come from the same codec.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite; nothing is then added.
    #[inline(never)]
    pub fn add<C: Code, K: Kernels, const N: usize>(
        &mut self,
        codec: &FixedCodec<D, C, K>,
        score: i32,
        value: &[u8; N],
    ) -> Result<(), DecodeError> {
        const { assert!(N == Tables::<D, C>::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        self.add_slice::<C>(codec.kernels, score, value)
    }

    /// [`Self::add`] for a ring.
    #[inline(never)]
    pub(super) fn add_block<C: Code, K: Kernels>(
        &mut self,
        codec: &FixedCodec<D, C, K>,
        score: i32,
        value: &[u8],
    ) -> Result<(), DecodeError> {
        self.add_slice::<C>(codec.kernels, score, value)
    }

    #[inline(always)]
    fn add_slice<C: Code>(
        &mut self,
        kernels: impl Kernels,
        score: i32,
        value: &[u8],
    ) -> Result<(), DecodeError> {
        let Some((head, codes)) = value.split_first_chunk::<SCALE_BYTES>() else { return Ok(()) };
        let (significand, octave) = from_f16(u16::from_le_bytes(*head)).ok_or(DecodeError::NonFiniteScale)?;
        let (whole, power) = self.weigh(score);
        // At most 2^16 * 2^11 >> 12 = 2^15.
        let weight = (power as i32 * significand) >> 12;
        let weight = self.values.aligned(whole + octave, weight, MAX_TOTAL);
        if weight == 0 {
            return Ok(());
        }
        if const { Tables::<D, C>::IS_TRELLIS } {
            Body::<D, C>::lanes(codes, |i, level| self.values.sums[i % D] += weight * level);
        } else if !(const { Tables::<D, C>::IS_INT8 }
            && kernels.add_bytes(weight, codes, &mut self.values.sums).is_some())
        {
            for (sums, bytes) in self
                .values
                .sums
                .as_chunks_mut::<8>()
                .0
                .iter_mut()
                .zip(codes.chunks_exact(Tables::<D, C>::BITS))
            {
                for (two, pair) in
                    sums.as_chunks_mut::<2>().0.iter_mut().zip(Tables::<D, C>::composites(bytes))
                {
                    let (low, high) = halves(pair);
                    two[0] += weight * low;
                    two[1] += weight * high;
                }
            }
        }
        Ok(())
    }

    /// The weight of a score is `power * 2^whole`, with the power in Q15. It is added to the denominator.
    #[inline(always)]
    pub(super) fn weigh(&mut self, score: i32) -> (i32, u32) {
        let exponent = ((i64::from(score) * LOG2_E) >> 16) as i32;
        let (whole, power) = (exponent >> 16, exp2_fraction(exponent as u32 & 0xffff));
        self.add_to_denominator(whole, power);
        (whole, power)
    }

    fn add_to_denominator(&mut self, whole: i32, power: u32) {
        let rise = whole - self.denominator_reference;
        if rise > 0 {
            self.denominator = self.denominator.checked_shr(rise as u32).unwrap_or(0);
            self.denominator_reference = whole;
        }
        let shift = (self.denominator_reference - whole) as u32;
        self.denominator = self.denominator.saturating_add(power.checked_shr(shift).unwrap_or(0));
    }

    /// Writes the weighted mean of the values in multiples of 2^exponent, rounded and saturated, or zeros if
    /// nothing was added. `codec` is the codec that [`Attention::add`] used.
    #[inline(never)]
    pub fn finish<C: Code, K>(mut self, codec: &FixedCodec<D, C, K>, exponent: i32, out: &mut [i16; D]) {
        let sums = &mut self.values.sums;
        let largest = sums.iter().fold(0, |m: u32, v| m.max(v.unsigned_abs()));
        if largest == 0 || self.denominator == 0 {
            out.fill(0);
            return;
        }
        // The transform adds up to D sums.
        let growth = D.next_power_of_two().trailing_zeros();
        let down = (growth + 1).saturating_sub(largest.leading_zeros());
        for sum in sums.iter_mut() {
            *sum >>= down;
        }
        let unit = const { tables::inverse_unit(Tables::<D, C>::UNIT, D) };
        let denominator = Real { mantissa: self.denominator, exponent: self.denominator_reference };
        // Weights are in units of 2^12; their Q15 cancels with that of the denominator.
        let factor =
            ONE.over(denominator).normalised().times(unit).shifted(self.values.reference + 12 + down as i32);
        let multiplier = Multiplier::new::<62>(factor.shifted(-clamp_exponent(exponent)), false);
        codec.rotation.inverse(sums, multiplier, out);
    }

    /// Adds a part of the same mean to `out`: `values` have weights of [`Attention::weigh`] and are not
    /// rotated.
    #[inline(never)]
    pub(super) fn finish_plain(&self, values: &ValueSums<D>, exponent: i32, out: &mut [i16; D]) {
        if self.denominator == 0 {
            return;
        }
        let denominator = Real { mantissa: self.denominator, exponent: self.denominator_reference };
        let factor = ONE.over(denominator).normalised();
        let exponent = factor.exponent + values.reference + 33 - clamp_exponent(exponent);
        // The upper half of a product with 31 bits, below 2^30, then one shift with half a unit.
        let multiplier = if exponent < -30 { 0 } else { i64::from(factor.mantissa >> 1) };
        let down = (-exponent).clamp(0, 30) as u32;
        let (half, up) = ((1_i32 << down) >> 1, 1_i32 << exponent.clamp(0, 17));
        for (out, &sum) in out.iter_mut().zip(&values.sums) {
            let high = ((i64::from(sum) * multiplier) >> 32) as i32;
            let scaled = (high.saturating_add(half) >> down).saturating_mul(up);
            *out = saturate(i32::from(*out).saturating_add(scaled));
        }
    }
}

impl<const D: usize> ValueSums<D> {
    pub(super) const fn new() -> Self {
        Self { sums: [0; D], reference: i32::MIN / 2, total: 0 }
    }

    /// The weight at the reference of the sums. The reference moves if it is too small, and if the sum of all
    /// weights would be above `most`.
    pub(super) fn aligned(&mut self, exponent: i32, weight: i32, most: u32) -> i32 {
        if weight == 0 {
            return 0;
        }
        let mut rise = (exponent - self.reference).max(0);
        let down = |rise: i32, reference: i32| (reference + rise - exponent) as u32;
        let magnitude = |shift: u32| weight.unsigned_abs().checked_shr(shift).unwrap_or(0);
        if (self.total.checked_shr(rise as u32).unwrap_or(0)) + magnitude(down(rise, self.reference)) > most {
            rise += 1;
        }
        if rise > 0 {
            for sum in &mut self.sums {
                *sum >>= rise.min(31);
            }
            self.total = self.total.checked_shr(rise as u32).unwrap_or(0);
            self.reference += rise;
        }
        let magnitude = magnitude(down(0, self.reference)) as i32;
        self.total += magnitude as u32;
        if weight < 0 { -magnitude } else { magnitude }
    }
}

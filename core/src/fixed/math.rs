//! Scalar arithmetic without floats: roots, ratios, f16 and powers of two.
//!
//! Numbers that span many octaves are [`Real`]: a mantissa and a power of two. All of this runs once per
//! vector (or once per token), so it is written to be small; the loops over coordinates are elsewhere. The
//! file also rounds vectors to bytes.

use crate::error::EncodeError;

/// Largest integer level.
pub(super) const LARGEST: i32 = 127;

/// `mantissa * 2^exponent`, not normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct Real {
    pub(super) mantissa: u32,
    pub(super) exponent: i32,
}

impl Real {
    /// A positive constant to 32 bits. `const` evaluation only.
    pub(super) const fn from_f64(mut value: f64) -> Self {
        let mut exponent = 0;
        while value < 2_147_483_648.0 {
            value *= 2.0;
            exponent -= 1;
        }
        while value >= 4_294_967_295.0 {
            value /= 2.0;
            exponent += 1;
        }
        Self { mantissa: value as u32, exponent }
    }

    /// The product; only its upper 32 bits are kept, so normalise first if they matter.
    #[inline]
    pub(super) const fn times(self, other: Self) -> Self {
        Self { mantissa: high(self.mantissa, other.mantissa), exponent: self.exponent + other.exponent + 32 }
    }

    /// Times `2^exponent`.
    #[inline]
    pub(super) const fn shifted(self, exponent: i32) -> Self {
        Self { mantissa: self.mantissa, exponent: self.exponent + exponent }
    }

    /// The same value with the top bit of the mantissa set, unless it is zero.
    #[inline]
    pub(super) const fn normalised(self) -> Self {
        let shift = self.mantissa.leading_zeros() & 31;
        Self { mantissa: self.mantissa << shift, exponent: self.exponent - shift as i32 }
    }

    /// `self / other` to 15 bits or better, by one 32-bit division; `other` is not zero.
    #[inline]
    pub(super) const fn over(self, other: Self) -> Self {
        let (n, d) = (self.normalised(), other.normalised());
        // The divisor keeps 16 bits, rounded. It is never 0; `max` only tells the compiler so.
        let rounded = (d.mantissa >> 16) + (d.mantissa >> 15 & 1);
        let divisor = if rounded == 0 { 1 } else { rounded };
        Self { mantissa: n.mantissa / divisor, exponent: n.exponent - d.exponent - 16 }
    }

    /// Returns true if it is larger than `other`; both are normalised.
    #[inline]
    pub(super) const fn exceeds(self, other: Self) -> bool {
        self.exponent > other.exponent || self.exponent == other.exponent && self.mantissa > other.mantissa
    }

    /// Rounds to `BITS` bits; returns mantissa and exponent. The mantissa may be `2^BITS`.
    #[inline]
    pub(super) const fn rounded<const BITS: u32>(self) -> Self {
        let full = self.normalised();
        let mantissa = (full.mantissa >> (32 - BITS)) + (full.mantissa >> (31 - BITS) & 1);
        Self { mantissa, exponent: full.exponent + (32 - BITS) as i32 }
    }
}

/// Upper half of the 64-bit product.
#[inline]
pub(super) const fn high(a: u32, b: u32) -> u32 {
    ((a as u64 * b as u64) >> 32) as u32
}

/// 2^30 / sqrt(m / 2^32) for m in [2^30, 2^32), relative error below 2^-26.
///
/// Newton's iteration r' = r (3 - m r^2) / 2: three rounds in 16 bits, one in 32.
pub(super) const fn reciprocal_root(m: u32) -> u32 {
    let top = m >> 16;
    // Q15, within 10 % on the full range.
    let mut r = 70_779 - ((top * 5) >> 3);
    let mut round = 0;
    while round < 3 {
        let product = ((r * r) >> 16) * top; // Q30, near 1
        r = (r * (((3 << 30) - product) >> 16)) >> 15;
        round += 1;
    }
    let r = r << 15; // Q30
    let product = high(high(r, r), m); // Q28, near 1
    ((r as u64 * ((3 << 28) - product) as u64) >> 29) as u32
}

/// |x| of a vector, and the numbers derived from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    /// |x| in units of the input.
    pub(super) value: Real,
    /// `y >> shift` has a root mean square in [2^12, 2^13), or less if y has no more bits.
    pub(super) shift: u32,
    /// Converts `y >> shift` to the unit of the quantiser: see [`super::tables`].
    pub(super) reciprocal: i32,
}

impl Norm {
    /// From |x|^2 > 0; `sigma` is the quantiser's unit, below 2^30.
    #[inline]
    pub(super) const fn new(squared: u64, sigma: u32) -> Self {
        let zeros = squared.leading_zeros() & !1 & 63;
        let m = ((squared << zeros) >> 32) as u32;
        let (r, half) = (reciprocal_root(m), zeros >> 1);
        let value = Real { mantissa: high(m, r), exponent: 2 - half as i32 };
        let shift = 19_u32.saturating_sub(half);
        let down = 62 - half - shift;
        let scaled = sigma as u64 * r as u64;
        // `down` is in 31..=43.
        let reciprocal = ((scaled >> (down - 1)) as u32 + 1) >> 1;
        Self { value, shift, reciprocal: reciprocal as i32 }
    }
}

/// A positive number as f16 bits, rounded to nearest, ties to even; 0 if it is too small.
#[inline]
pub(super) const fn to_f16(value: Real) -> Result<u16, EncodeError> {
    if value.mantissa == 0 {
        return Ok(0);
    }
    let Real { mantissa, exponent } = value.normalised();
    let octave = exponent + 31;
    if octave > 15 {
        return Err(EncodeError::OutOfRange);
    }
    // Bits below the significand: 21, or more if the f16 is subnormal.
    let (drop, base) =
        if octave >= -14 { (21, ((octave + 14) as u32) << 10) } else { ((7 - octave) as u32, 0) };
    if drop > 32 {
        return Ok(0);
    }
    let (kept, half) = ((mantissa as u64 >> drop) as u32, (mantissa as u64 >> (drop - 1)) as u32 & 1);
    let sticky = mantissa & (((1_u64 << (drop - 1)) - 1) as u32) != 0;
    let up = half & (sticky as u32 | kept & 1);
    let bits = base + kept + up;
    if bits >= 0x7c00 { Err(EncodeError::OutOfRange) } else { Ok(bits as u16) }
}

/// Significand (below 2048, signed) and exponent of f16 bits, or `None` for NaN and infinities.
#[inline]
pub(super) const fn from_f16(bits: u16) -> Option<(i32, i32)> {
    let (field, fraction) = (bits >> 10 & 31, (bits & 1023) as i32);
    let (significand, exponent) = match field {
        31 => return None,
        0 => (fraction, -24),
        _ => (fraction + 1024, field as i32 - 25),
    };
    Some((if bits >> 15 == 0 { significand } else { -significand }, exponent))
}

/// A multiplier for many numbers of at most 16 bits: `value * m.factor`, rounded, shifted down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiplier {
    /// At most 2^15 in magnitude.
    pub(super) factor: i32,
    /// At most the `LIMIT` of [`Multiplier::new`].
    pub(super) shift: u32,
}

impl Multiplier {
    /// `value` with a sign. `LIMIT` is 30 for products in i32, and 62 for products in i64. A value that is
    /// too large gives 2^15: every result is then zero or saturated. A value that is too small gives 0: every
    /// result is then zero.
    #[inline]
    pub(super) const fn new<const LIMIT: i32>(value: Real, negative: bool) -> Self {
        let Real { mantissa, exponent } = value.rounded::<15>();
        let (factor, shift) = if mantissa == 0 || exponent < -LIMIT {
            (0, 0)
        } else if exponent > 0 {
            (1 << 15, 0)
        } else {
            (mantissa as i32, -exponent as u32)
        };
        Self { factor: if negative { -factor } else { factor }, shift }
    }

    /// Half a unit of the result.
    #[inline(always)]
    pub(super) const fn half(self) -> i32 {
        (1 << self.shift) >> 1
    }
}

/// Clamps to i16.
#[inline(always)]
pub(super) const fn saturate(value: i32) -> i16 {
    if value > i16::MAX as i32 {
        i16::MAX
    } else if value < i16::MIN as i32 {
        i16::MIN
    } else {
        value as i16
    }
}

/// 2^(fraction / 2^16) in Q15, for a fraction below 2^16: 2^15 to 2^16. Relative error below
/// 3e-4 (a test sweeps all inputs).
#[inline]
pub const fn exp2_fraction(fraction: u32) -> u32 {
    // Cubic through both ends: 2^f = 1 + f (a + f (b + f c)), in Q15.
    let f = fraction >> 1;
    let inner = 7_239 + ((2_693 * f) >> 15);
    let middle = 22_836 + ((inner * f) >> 15);
    32_768 + ((middle * f) >> 15)
}

/// Beyond this range every result is zero or saturated. The clamp keeps sums of exponents from overflowing.
#[inline]
pub(super) fn clamp_exponent(exponent: i32) -> i32 {
    exponent.clamp(-1000, 1000)
}

/// The two halves of a composite.
#[inline(always)]
pub(super) const fn halves(composite: i32) -> (i32, i32) {
    let low = composite as i16 as i32;
    (low, (composite - low) >> 16)
}

/// Up to eight bytes, little-endian.
#[inline(always)]
pub(super) fn word(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).enumerate().fold(0, |word, (i, &byte)| word | u64::from(byte) << (8 * i))
}

/// `y` rounded to bytes: `y * 2^-shift * factor * 2^-23`.
#[derive(Clone, Copy)]
pub(super) struct ByteScale {
    shift: u32,
    factor: i32,
}

impl ByteScale {
    /// Maps the `largest` magnitude of y to `code`; `code / largest` may be off by half.
    #[inline]
    pub(super) fn new(largest: u32, target: Real) -> Self {
        let shift = 16_u32.saturating_sub(largest.leading_zeros());
        let Real { mantissa, exponent } = target;
        let left = exponent + 23 + shift as i32;
        let factor = if left >= 0 { mantissa << left.min(31) } else { mantissa >> (-left).min(31) };
        Self { shift, factor: factor as i32 }
    }

    /// The byte of `y`, clamped to +-127.
    #[inline(always)]
    pub(super) fn round(self, y: i32) -> i8 {
        let shifted = (y + ((1 << self.shift) >> 1)) >> self.shift;
        ((shifted * self.factor + (1 << 22)) >> 23).clamp(-LARGEST, LARGEST) as i8
    }
}

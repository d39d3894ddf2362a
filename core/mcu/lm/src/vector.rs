//! Vectors of 16-bit mantissas with one exponent, and shifts that round.

/// Fraction bits of the residual stream.
pub(crate) const RESIDUAL_BITS: i32 = 18;

/// Bits of a number without its leading zeros.
pub(crate) const fn bits_of(value: u32) -> u32 {
    32 - value.leading_zeros()
}

/// `value * 2^exponent`, rounded and saturated.
pub(crate) fn exponent_of(value: i64, exponent: i32) -> i32 {
    let shifted = if exponent >= 0 {
        // Beyond 32 places everything but zero saturates.
        value.saturating_mul(1 << exponent.min(33))
    } else {
        let by = exponent.unsigned_abs().min(62);
        (value + (1 << (by - 1))) >> by
    };
    shifted.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// Adds `sums * 2^exponent` to the residual stream, saturating.
pub(crate) fn add(residual: &mut [i32], sums: &[i32], exponent: i32) {
    let by = exponent + RESIDUAL_BITS;
    if (-31..0).contains(&by) {
        // The same in 32 bits: sums are at most 2^30.
        let before = by.unsigned_abs() - 1;
        for (h, &sum) in residual.iter_mut().zip(sums) {
            *h = h.saturating_add(((sum >> before) + 1) >> 1);
        }
    } else {
        for (h, &sum) in residual.iter_mut().zip(sums) {
            *h = h.saturating_add(exponent_of(i64::from(sum), by));
        }
    }
}

/// The right shift after which the largest magnitude, rounded, has at most `bits` bits.
pub(crate) fn excess(values: &[i32], bits: u32) -> u32 {
    // It has the bits of the largest magnitude. It may have ones that no single value has; occasionally that
    // costs one bit.
    let all = values.iter().fold(0, |all, &v| all | (v ^ (v >> 31)) as u32);
    let down = bits_of(all).saturating_sub(bits);
    // Rounding may carry into one more bit.
    let carries = down > 0 && bits_of((all >> (down - 1)) + 1) > bits + 1;
    down + u32::from(carries)
}

/// A right shift that rounds.
pub(crate) fn shifted(down: u32) -> impl Fn(i32) -> i32 {
    // One more bit on the left is free: excess bits are counted, so doubled values are below 2^31.
    let (up, down) = if down == 0 { (1, 0) } else { (0, down - 1) };
    move |v| (((v << up) >> down) + 1) >> 1
}

/// Writes the upper `bits` bits (without the sign) of the largest value, rounded, to `out`. The other values
/// are shifted by the same amount. Returns the exponent that this adds.
pub(crate) fn mantissas(values: &[i32], bits: u32, out: &mut [i16]) -> i32 {
    let down = excess(values, bits);
    let shifted = shifted(down);
    for (out, &v) in out.iter_mut().zip(values) {
        *out = shifted(v) as i16;
    }
    down as i32
}

/// [`mantissas`] with 15 bits, in place.
pub(crate) fn narrow(values: &mut [i32]) -> i32 {
    let down = excess(values, 15);
    let shifted = shifted(down);
    for v in values {
        *v = shifted(*v);
    }
    down as i32
}

//! Vectors of 16-bit mantissas under one exponent, and shifts that round.

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
        // As below, in 32 bits: sums are at most 2^30.
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

/// The largest magnitude.
fn largest(values: &[i32]) -> u32 {
    // One bit too many for powers of two, which are not worth a branch.
    values.iter().fold(0, |most, &v| most | (v ^ (v >> 31)) as u32)
}

/// Shifts right, rounding; sums that would round to one bit more stay below it.
fn shifted(down: u32, bits: u32) -> impl Fn(i32) -> i32 {
    let most = (1 << bits) - 1;
    move |v| match down.checked_sub(1) {
        Some(before) => (((v >> before) + 1) >> 1).min(most),
        None => v,
    }
}

/// Writes the upper `bits` bits (sign aside) of the largest value, and as many places of the others, to `out`, rounded; returns
/// the exponent that this adds.
pub(crate) fn mantissas(values: &[i32], bits: u32, out: &mut [i16]) -> i32 {
    let down = bits_of(largest(values)).saturating_sub(bits);
    let shifted = shifted(down, bits);
    for (out, &v) in out.iter_mut().zip(values) {
        *out = shifted(v) as i16;
    }
    down as i32
}

/// [`mantissas`] of 15 bits, in place.
pub(crate) fn narrow(values: &mut [i32]) -> i32 {
    let down = bits_of(largest(values)).saturating_sub(15);
    let shifted = shifted(down, 15);
    for v in values {
        *v = shifted(*v);
    }
    down as i32
}

//! The exponential of the softmax: the same bits on every machine.

/// Largest relative error of [`exp`] on [-87, 88].
pub const EXP_ERROR: f32 = 2e-7;

/// Below this the result is 0.
const LEAST: f32 = -87.0;
/// 1.5 * 2^23: adding it rounds to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// e^x for x <= 88 with relative error [`EXP_ERROR`]; 0 below -87 and NaN for NaN. Above 88 the result is
/// undefined; a logit minus the largest logit is never above 0.
///
/// x = k ln 2 + r with |r| <= ln 2 / 2. A polynomial of degree 7 (the coefficients of the Cephes library)
/// then gives e^r. Its terms are added in pairs, because a chain of additions made loops wait. It uses only
/// additions and multiplications that are rounded one by one, so loops over it vectorise without changing a
/// bit.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // The comparison is false for NaN, so NaN passes through.
    let bounded = if x < LEAST { LEAST } else { x };
    let shifted = bounded * core::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = bounded - k * 0.693_359_4;
    let r = r - k * -2.121_944_4e-4;
    let square = r * r;
    let high = 1.987_569_1e-4 * r + 1.398_199_9e-3;
    let middle = 8.333_452e-3 * r + 4.166_579_6e-2;
    let low = 1.666_666_5e-1 * r + 0.5;
    let p = (high * square + middle) * square + low;
    let fraction = p * square + (r + 1.0);
    // The low bits of `shifted` are k; they go to the exponent.
    let power = (shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23;
    let result = fraction * f32::from_bits(power);
    if x < LEAST { 0.0 } else { result }
}

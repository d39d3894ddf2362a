//! The inverse rotation on full words, for sums of many blocks and for large head dims.

use super::math::Multiplier;
use super::transform::{paley, stages};
use crate::head_dim::HeadDim;

/// out = signs * H^T sums * multiplier, rounded and saturated. `sums` is used up.
///
/// |sums| * dim must stay below 2^31. Cost: a transform, and a 64-bit product for each coordinate.
#[inline(always)]
pub(super) fn wide(shape: HeadDim, signs: &[i8], sums: &mut [i32], multiplier: Multiplier, out: &mut [i16]) {
    stages(sums, shape.sylvester(), 1);
    paley(sums, shape.order(), true);
    let half = (1_i64 << multiplier.shift) >> 1;
    for ((out, &sum), &sign) in out.iter_mut().zip(&*sums).zip(signs) {
        let factor = multiplier.factor * i32::from(sign);
        let scaled = (i64::from(sum) * i64::from(factor) + half) >> multiplier.shift;
        *out = scaled.clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16;
    }
}

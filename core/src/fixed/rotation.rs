//! The rotation in integers, in both directions, and its signs.

use super::kernels::Kernels;
use super::math::Multiplier;
use super::sample::Sample;
use super::transform::{paley, stages};
use crate::head_dim::HeadDim;
use crate::rotation::Signs;

/// True if a 64-bit product is cheap: on all targets except ARMv6-M, which has no compare-and-swap.
const LONG_PRODUCTS: bool = cfg!(target_has_atomic = "ptr");

/// H diag(signs) of one head dim and seed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct FixedRotation<const D: usize> {
    /// 1 or -1.
    pub(super) signs: [i8; D],
}

impl<const D: usize> FixedRotation<D> {
    pub(super) const SHAPE: HeadDim = match HeadDim::new(D) {
        Some(shape) => shape,
        None => panic!(
            "unsupported head dim: accepted are n * 2^k with n = 1, 12, 20, 28, 36, multiples of 16, 16 to 1024"
        ),
    };

    pub(super) const fn new(seed: u64) -> Self {
        let (random, mut signs, mut i) = (Signs::from_seed(seed, D), [1; D], 0);
        while i < D {
            if random.is_negative(i) {
                signs[i] = -1;
            }
            i += 1;
        }
        Self { signs }
    }

    /// Computes y = H diag(signs) x. Returns |x|^2 and true if the transform is complete; else the caller
    /// does stride 1.
    #[inline(always)]
    pub(super) fn forward<K: Kernels, T: Sample>(
        &self,
        kernels: K,
        x: &[T; D],
        y: &mut [i32; D],
    ) -> (u64, bool) {
        if Self::SHAPE.order() == 1 {
            // If the kernels leave the work to the portable code, nothing is widened.
            let room;
            let wide = match T::wide(x) {
                Some(wide) => wide,
                None => {
                    room = x.map(|v| v.widen() as i16);
                    &room
                }
            };
            if let Some(squared) = kernels.rotate(wide, &self.signs, y) {
                return (squared, true);
            }
        }
        (self.portable(x, y), false)
    }

    /// Computes y = H diag(signs) x without stride 1; returns |x|^2.
    #[inline(always)]
    fn portable<T: Sample>(&self, x: &[T; D], y: &mut [i32; D]) -> u64 {
        let mut squared = 0;
        let pairs = x.as_chunks::<2>().0.iter().zip(self.signs.as_chunks::<2>().0);
        for (y, (x, signs)) in y.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            let (a, b) = (x[0].widen(), x[1].widen());
            if LONG_PRODUCTS {
                squared += (i64::from(a) * i64::from(a)) as u64;
                squared += (i64::from(b) * i64::from(b)) as u64;
            } else {
                // Two squares of at most 2^30 fit 32 bits.
                squared += u64::from((a * a) as u32 + (b * b) as u32);
            }
            *y = [a * i32::from(signs[0]), b * i32::from(signs[1])];
        }
        paley(y, Self::SHAPE.order(), false);
        stages(y, Self::SHAPE.sylvester(), 2);
        squared
    }

    /// Finishes the transform in place if it is not finished; returns the largest magnitude.
    #[inline(always)]
    pub(super) fn finish(y: &mut [i32; D], finished: bool) -> u32 {
        let mut largest = 0;
        for two in y.as_chunks_mut::<2>().0 {
            if !finished {
                *two = [two[0] + two[1], two[0] - two[1]];
            }
            largest = largest.max(two[0].unsigned_abs()).max(two[1].unsigned_abs());
        }
        largest
    }

    /// out = signs * H^T sums * multiplier, rounded and saturated. `sums` is overwritten.
    ///
    /// |sums| * D must stay below 2^31. Cost: one transform, and a 64-bit product per coordinate.
    #[inline(always)]
    pub(super) fn inverse(&self, sums: &mut [i32; D], multiplier: Multiplier, out: &mut [i16; D]) {
        stages(sums, Self::SHAPE.sylvester(), 1);
        paley(sums, Self::SHAPE.order(), true);
        let half = (1_i64 << multiplier.shift) >> 1;
        for ((out, &sum), &sign) in out.iter_mut().zip(&*sums).zip(&self.signs) {
            let factor = multiplier.factor * i32::from(sign);
            let scaled = (i64::from(sum) * i64::from(factor) + half) >> multiplier.shift;
            *out = scaled.clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16;
        }
    }
}

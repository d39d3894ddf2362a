//! The softmax over pages, and the running sums of the values.

use super::tile::{HEADS, TOKENS, column, row};
use super::values::SliceSums;
use crate::attend::{LOWEST, PARTIAL_HEADER};
use crate::planes::coordinate;
use crate::threads::{Threads, shuffle_xor_f32};

/// Bits of the largest weight of a page as an integer. Its two digits are the low bytes of a float at or above
/// [`BESIDE`].
const WEIGHT_BITS: u32 = 16;

/// What keeps the largest weight from rounding up to a number of 17 bits.
const FIT: f32 = 65_535.0 / 65_536.0;

/// A float at which the low 23 bits of a sum with it are an integer.
const BESIDE: f32 = 8_388_608.0;

/// The exponent bits of a float.
const EXPONENT: u32 = 0x7f80_0000;

/// Smallest exponent of a page's largest weight. Below it the unit does not shrink further, so that units
/// stay normal numbers.
const LEAST: u32 = 30 << 23;

/// Combines the values of the threads of all rows g.
#[inline(always)]
fn over_rows<T: Threads>(value: T::Of<f32>, f: impl Fn(f32, f32) -> f32) -> T::Of<f32> {
    let value = T::zip(value, shuffle_xor_f32::<T>(value, 4), &f);
    let value = T::zip(value, shuffle_xor_f32::<T>(value, 8), &f);
    T::zip(value, shuffle_xor_f32::<T>(value, 16), &f)
}

/// The largest value over the page.
#[inline(always)]
fn largest_of<T: Threads>(values: [T::Of<f32>; TOKENS]) -> T::Of<f32> {
    let mut largest = values[0];
    unroll32!(K => { if K < TOKENS { largest = T::zip(largest, values[K % TOKENS], f32::max); } });
    over_rows::<T>(largest, f32::max)
}

/// A page's weights as integers, and the value of 1.
type Weights<T> = ([<T as Threads>::Of<u32>; TOKENS], <T as Threads>::Of<f32>);

/// The running softmax of the thread's head of a set, and the running sums of its values.
#[derive(Clone, Copy)]
pub(super) struct HeadSoftmax<T: Threads> {
    max: T::Of<f32>,
    /// Sum over the thread's own tokens.
    sum: T::Of<f32>,
    /// Four coordinates of each tile.
    acc: [T::Of<[f32; 4]>; 8],
}

impl<T: Threads> HeadSoftmax<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { max: T::splat(LOWEST), sum: T::splat(0.0), acc: [T::splat([0.0; 4]); 8] }
    }

    /// Takes in the logits of a page, given the scales of its values.
    #[inline(always)]
    pub(super) fn soften<const G: usize>(
        &mut self,
        logits: [T::Of<f32>; TOKENS],
        scales: [T::Of<f32>; TOKENS],
    ) -> Weights<T> {
        let max = T::zip(self.max, largest_of::<T>(logits), f32::max);
        // The maximum settles after a few pages, so a new maximum is rare.
        if T::ballot(T::zip(self.max, max, |old, new| new > old)) != 0 {
            self.rescale::<G>(T::zip(self.max, max, |old, new| T::exp2(old - new)));
        }
        self.max = max;
        let mut weights = [T::splat(0.0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                let weight = T::zip(logits[K % TOKENS], max, |logit, max| T::exp2(logit - max));
                self.sum = T::zip(self.sum, weight, |sum, weight| sum + weight);
                weights[K % TOKENS] = T::zip(weight, scales[K % TOKENS], |weight, scale| weight * scale);
            }
        });
        // The unit is almost a power of two. It is as exact as any other unit, and needs no division.
        let exponent = T::map(largest_of::<T>(weights), |m| u32::max(m.to_bits() & EXPONENT, LEAST));
        let power = |bits: u32| f32::from_bits(bits);
        let steps = T::map(exponent, |e| FIT * power(((253 + WEIGHT_BITS) << 23) - e));
        let mut integers = [T::splat(0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                integers[K % TOKENS] =
                    T::zip(weights[K % TOKENS], steps, |w, steps| T::mul_add(w, steps, BESIDE).to_bits());
            }
        });
        (integers, T::map(exponent, |e| power(e - ((WEIGHT_BITS - 1) << 23)) * (1.0 / FIT)))
    }

    /// Multiplies the running sums by `older`.
    #[inline(always)]
    fn rescale<const G: usize>(&mut self, older: T::Of<f32>) {
        self.sum = T::zip(self.sum, older, |sum, older| sum * older);
        unroll32!(TILE => {
            if TILE < G {
                let acc = &mut self.acc[TILE % 8];
                *acc = T::zip(*acc, older, |acc, older| acc.map(|v| v * older));
            }
        });
    }

    /// Adds a page's sums for the coordinates of slice `slice`, given the units of weights and levels.
    #[inline(always)]
    pub(super) fn add<const SLICE: usize>(
        &mut self,
        slice: usize,
        sums: &SliceSums<T>,
        weight_unit: T::Of<f32>,
        level_unit: f32,
    ) {
        let unit = T::map(weight_unit, |w| w * level_unit);
        unroll32!(TILE => {
            if TILE < SLICE {
                let [upper, lower] = sums[TILE % SLICE];
                let both = T::zip(upper, lower, |upper, lower| (upper, lower));
                let acc = &mut self.acc[(SLICE * slice + TILE) % 8];
                let scaled = T::zip(*acc, unit, |acc, unit| (acc, unit));
                *acc = T::zip(both, scaled, |(upper, lower), (acc, unit)| {
                    let one = |i: usize| T::mul_add((256 * upper[i] + lower[i]) as f32, unit, acc[i]);
                    [one(0), one(1), one(2), one(3)]
                });
            }
        });
    }

    /// Writes the partial results of the chunk's heads below `heads`, which are `bytes` apart. This is set
    /// `set` of `sets`.
    #[inline(always)]
    pub(super) fn write<const G: usize>(
        self,
        format: u32,
        [set, sets]: [usize; 2],
        heads: u32,
        bytes: u32,
        partials: T::Memory,
    ) {
        let head = T::map(column::<T>(), |t| t * sets as u32 + set as u32);
        let sum = over_rows::<T>(self.sum, |a, b| a + b);
        let header = T::zip(self.max, sum, |max, sum| [max.to_bits(), sum.to_bits(), 0, 0]);
        let active = T::map(head, |head| head < heads);
        let place = T::map(head, |head| head * bytes);
        let is_first = T::zip(T::lane(), active, |lane, active| active && lane < HEADS);
        T::store::<4>(partials, place, header, is_first);
        unroll32!(I => {
            // Half a unit belongs to one tile.
            let (tile, i) = (I / 4, I % 4);
            if tile < G {
                let at = T::map(row::<T>(), |g| {
                    let unit = g * (G as u32 / 2) + tile as u32 / 2;
                    coordinate(format, G as u32, unit, (tile % 2 * 4 + i) as u32)
                });
                let offset = T::zip(place, at, |place, at| place + 4 * (PARTIAL_HEADER + at));
                let value = T::map(self.acc[tile % 8], |acc| [acc[i].to_bits()]);
                T::store::<1>(partials, offset, value, active);
            }
        });
    }
}

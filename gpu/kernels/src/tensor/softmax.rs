//! The softmax over pages, and the sums of the values so far.

use super::values::PageSums;
use super::{LEAST, TOKENS, column, row};
use crate::attend::{LOWEST, PARTIAL_HEADER};
use crate::planes::coordinate;
use crate::threads::{Threads, shuffle_f32, shuffle_xor_f32};

/// Largest integer of a weight: its three digits are the mantissa of a float from [`BESIDE`] on.
const LARGEST_WEIGHT: f32 = 8_388_600.0;

/// A float beside which the low 23 bits of others are integers.
const BESIDE: f32 = 8_388_608.0;

/// What the threads of all rows g make of their values.
#[inline(always)]
fn over_rows<T: Threads>(value: T::Of<f32>, f: impl Fn(f32, f32) -> f32) -> T::Of<f32> {
    let value = T::zip(value, shuffle_xor_f32::<T>(value, 4), &f);
    let value = T::zip(value, shuffle_xor_f32::<T>(value, 8), &f);
    T::zip(value, shuffle_xor_f32::<T>(value, 16), &f)
}

/// The largest over the page.
#[inline(always)]
fn largest_of<T: Threads>(values: [T::Of<f32>; TOKENS]) -> T::Of<f32> {
    let mut largest = values[0];
    unroll32!(K => { if K < TOKENS { largest = T::zip(largest, values[K % TOKENS], f32::max); } });
    over_rows::<T>(largest, f32::max)
}

/// The softmax of head t so far, and the sums of all heads.
pub(super) struct Running<T: Threads> {
    max: T::Of<f32>,
    /// Over the thread's own tokens.
    sum: T::Of<f32>,
    acc: [[T::Of<[f32; 4]>; 2]; 4],
}

/// What a page's weights become: integers, and what 1 stands for.
pub(super) struct Weights<T: Threads> {
    pub(super) integers: [T::Of<u32>; TOKENS],
    unit: T::Of<f32>,
}

/// The thread of the same row with softmax values of head `2 pair + t / 2`, of which thread (g, t) has sums; its
/// own softmax values are those of head t.
#[inline(always)]
fn pair_of<T: Threads>(pair: u32) -> T::Of<u32> {
    T::map(T::lane(), |lane| (lane & !3) + 2 * pair + lane % 4 / 2)
}

impl<T: Threads> Running<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { max: T::splat(LOWEST), sum: T::splat(0.0), acc: [[T::splat([0.0; 4]); 2]; 4] }
    }

    /// Takes in the logits of a page whose values have these scales.
    #[inline(always)]
    pub(super) fn soften<const G: usize, const H: usize>(
        &mut self,
        logits: [T::Of<f32>; TOKENS],
        scales: [T::Of<f32>; TOKENS],
    ) -> Weights<T> {
        let max = T::zip(self.max, largest_of::<T>(logits), f32::max);
        let older = T::zip(self.max, max, |old, new| T::exp2(old - new));
        self.max = max;
        self.rescale::<G, H>(older);
        let mut weights = [T::splat(0.0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                let weight = T::zip(logits[K % TOKENS], max, |logit, max| T::exp2(logit - max));
                self.sum = T::zip(self.sum, weight, |sum, weight| sum + weight);
                weights[K % TOKENS] = T::zip(weight, scales[K % TOKENS], |weight, scale| weight * scale);
            }
        });
        let largest = largest_of::<T>(weights);
        let steps = T::map(largest, |m| if m > LEAST { LARGEST_WEIGHT / m } else { 0.0 });
        let mut integers = [T::splat(0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                integers[K % TOKENS] =
                    T::zip(weights[K % TOKENS], steps, |w, steps| T::mul_add(w, steps, BESIDE).to_bits());
            }
        });
        Weights { integers, unit: T::map(largest, |m| m / LARGEST_WEIGHT) }
    }

    /// Multiplies what there is by `older`.
    #[inline(always)]
    fn rescale<const G: usize, const H: usize>(&mut self, older: T::Of<f32>) {
        self.sum = T::zip(self.sum, older, |sum, older| sum * older);
        unroll2!(H / 2, PAIR => {
            let older = shuffle_f32::<T>(older, pair_of::<T>(PAIR as u32));
            unroll32!(U => {
                if U < G / 2 {
                    let acc = &mut self.acc[U % 4][PAIR % 2];
                    *acc = T::zip(*acc, older, |acc, older| acc.map(|v| v * older));
                }
            });
        });
    }

    /// Adds a page's sums; `unit` is that of the levels.
    #[inline(always)]
    pub(super) fn add<const G: usize, const H: usize>(
        &mut self,
        sums: &PageSums<T>,
        weights: &Weights<T>,
        unit: f32,
    ) {
        unroll2!(H / 2, PAIR => {
            let unit = T::map(shuffle_f32::<T>(weights.unit, pair_of::<T>(PAIR as u32)), |w| w * unit);
            unroll32!(U => {
                if U < G / 2 {
                    let [first, second, third] = sums[U % 4][PAIR % 2];
                    let upper = T::zip(first, second, |a, b| {
                        [256 * a[0] + b[0], 256 * a[1] + b[1], 256 * a[2] + b[2], 256 * a[3] + b[3]]
                    });
                    let both = T::zip(upper, third, |upper, third| (upper, third));
                    let acc = &mut self.acc[U % 4][PAIR % 2];
                    let scaled = T::zip(*acc, unit, |acc, unit| (acc, unit));
                    *acc = T::zip(both, scaled, |(upper, third), (acc, unit)| {
                        let one = |i: usize| {
                            let sum = T::mul_add(upper[i] as f32, 256.0, third[i] as f32);
                            T::mul_add(sum, unit, acc[i])
                        };
                        [one(0), one(1), one(2), one(3)]
                    });
                }
            });
        });
    }

    /// Writes the partial results of the chunk's heads below `heads`; `bytes` from one head to the next.
    #[inline(always)]
    pub(super) fn write<const G: usize, const H: usize>(
        self,
        format: u32,
        heads: u32,
        bytes: u32,
        partials: T::Memory,
    ) {
        let sum = over_rows::<T>(self.sum, |a, b| a + b);
        let header = T::zip(self.max, sum, |max, sum| [max.to_bits(), sum.to_bits(), 0, 0]);
        let active = T::map(T::lane(), |lane| lane < u32::min(heads, H as u32));
        T::store::<4>(partials, T::map(T::lane(), |lane| lane % 4 * bytes), header, active);
        unroll2!(H / 2, PAIR => {
            let head = T::map(column::<T>(), |t| 2 * PAIR as u32 + t / 2);
            let active = T::map(head, |head| head < heads);
            unroll32!(I => {
                let (unit, i) = (I as u32 / 4, I as u32 % 4);
                if unit < G as u32 / 2 {
                    let at = T::zip(row::<T>(), column::<T>(), |g, t| {
                        let code = 4 * (i / 2) + 2 * (t % 2) + i % 2;
                        coordinate(format, G as u32, g * (G as u32 / 2) + unit, code)
                    });
                    let offset = T::zip(head, at, |head, at| head * bytes + 4 * (PARTIAL_HEADER + at));
                    let value = T::map(self.acc[I / 4 % 4][PAIR % 2], |acc| [acc[I % 4].to_bits()]);
                    T::store::<1>(partials, offset, value, active);
                }
            });
        });
    }
}

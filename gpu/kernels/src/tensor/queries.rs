//! Query heads as second factors.

use super::tile::{column, row};
use crate::planes::{Bytes, coordinate};
use crate::threads::{Threads, shuffle_f32, shuffle_xor_f32};

/// Largest integer of a query: two signed digits of 8 bits.
const LARGEST_QUERY: f32 = 32_639.0;

/// A float at which the low 16 bits of a sum with it are an integer.
const BESIDE: f32 = 12_582_912.0;

/// Below this, all coordinates of a query count as 0, so that the inverse stays finite.
const LEAST: f32 = 1e-30;

/// Query heads as factors, with two digits per coordinate.
#[derive(Clone, Copy)]
pub(super) struct Queries<T: Threads, const SETS: usize> {
    /// One set: columns 2 h and 2 h + 1 are the upper and the lower digit of head h. Two sets: column h is the
    /// upper digit.
    pub(super) upper: [T::Of<Bytes>; 8],
    /// Two sets only: column h is the lower digit.
    pub(super) lower: [T::Of<Bytes>; 8],
    /// The value of 1, for the thread's head of each set.
    pub(super) unit: [T::Of<f32>; SETS],
}

/// Byte `which` of four words, as signed digits.
#[inline(always)]
fn digit<T: Threads>(words: [u32; 4], which: u32) -> u32 {
    let choice = which | (which + 4) << 4;
    let pair = |a, b| T::permute(a, b, choice);
    T::permute(pair(words[0], words[1]), pair(words[2], words[3]), 0x5410) ^ 0x8080_8080
}

impl<T: Threads, const SETS: usize> Queries<T, SETS> {
    /// Reads rotated queries from `place` on. Head h of the columns is head `min(h, last_head)`.
    #[inline(always)]
    pub(super) fn load<const G: usize>(place: T::Memory, last_head: u32, format: u32) -> Self {
        let columns_a_head = 2 / SETS as u32;
        let start = T::map(row::<T>(), |g| u32::min(g / columns_a_head, last_head) * 128 * G as u32);
        let mut values = [T::splat([0.0; 8]); 8];
        let mut largest = T::splat(0.0_f32);
        unroll32!(U => {
            if U < G {
                let unit = T::map(column::<T>(), |t| t * G as u32 + U as u32);
                let mut eight = T::splat([0.0_f32; 8]);
                unroll32!(I => {
                    if I < 8 {
                        let at = T::zip(start, unit, |start, unit| {
                            start + 4 * coordinate(format, G as u32, unit, I as u32)
                        });
                        eight = T::zip(eight, T::load::<1>(place, at), |mut eight, [value]| {
                            eight[I % 8] = f32::from_bits(value);
                            eight
                        });
                    }
                });
                values[U % 8] = eight;
                largest = T::zip(largest, eight, |m, v| {
                    let pair = |a: f32, b: f32| f32::max(a.abs(), b.abs());
                    let four = |a, b, c, d| f32::max(pair(a, b), pair(c, d));
                    m.max(four(v[0], v[1], v[2], v[3])).max(four(v[4], v[5], v[6], v[7]))
                });
            }
        });
        let largest = T::zip(largest, shuffle_xor_f32::<T>(largest, 1), f32::max);
        let largest = T::zip(largest, shuffle_xor_f32::<T>(largest, 2), f32::max);
        let steps = T::map(largest, |m| if m > LEAST { LARGEST_QUERY / m } else { 0.0 });
        let [mut upper, mut lower] = [[T::splat([0; 2]); 8]; 2];
        unroll32!(U => {
            if U < G {
                let words = T::zip(values[U % 8], steps, |v, steps| v.map(|v| integer(v * steps)));
                let runs = T::map(words, |w| ([w[0], w[1], w[2], w[3]], [w[4], w[5], w[6], w[7]]));
                if SETS == 2 {
                    let digits = |which| T::map(runs, |(a, b)| [digit::<T>(a, which), digit::<T>(b, which)]);
                    (upper[U % 8], lower[U % 8]) = (digits(1), digits(0));
                } else {
                    upper[U % 8] = T::zip(runs, row::<T>(), |(a, b), column| {
                        [digit::<T>(a, 1 - column % 2), digit::<T>(b, 1 - column % 2)]
                    });
                }
            }
        });
        // A maximum skips NaN, and the digits of NaN are those of 0. If one coordinate of a rotated query is
        // not finite, all are NaN, and then so is the unit.
        let unit = T::zip(largest, values[0], |m, v| m / LARGEST_QUERY + 0.0 * v[0]);
        let mut units = [unit; SETS];
        unroll2!(SETS, SET => {
            units[SET % SETS] = shuffle_f32::<T>(unit, T::map(column::<T>(), |t| 8 * t + 4 * SET as u32));
        });
        Self { upper, lower, unit: units }
    }
}

/// Rounds to an integer of 16 bits. Its digits are signed after their top bits are flipped.
#[inline(always)]
fn integer(x: f32) -> u32 {
    (x + BESIDE).to_bits().wrapping_add(0x8080)
}

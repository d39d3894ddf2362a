//! Sums of a page's values: values as first factors, weights as second ones.

use super::{Side, Sums, TOKENS, column, factor, row};
use crate::planes::{Bytes, Planes};
use crate::reader::Reader;
use crate::threads::Threads;

/// Sums of a page's values: for each unit of 8 coordinates and pair of heads, by powers of 256.
pub(super) type PageSums<T> = [[[Sums<T>; 3]; 2]; 4];

/// Weights times the first `tokens` values of a page; `weights` are integers of tokens 8 k + g of head t.
#[inline(always)]
pub(super) fn sums<T: Threads, C: Reader, const G: usize, const H: usize>(
    values: Side<T>,
    tokens: u32,
    planes: &Planes,
    weights: [T::Of<u32>; TOKENS],
) -> PageSums<T> {
    let fetch = |slots: u32| match G {
        2 => values.fetch::<C, G, 1>(slots),
        4 => values.fetch::<C, G, 2>(slots),
        _ => values.fetch::<C, G, 4>(slots),
    };
    let mut sums = [[[T::splat([0; 4]); 3]; 2]; 4];
    let mut weights = weights;
    for step in 0..tokens.div_ceil(8) {
        let words = [fetch(8 * step), fetch(8 * step + 4)];
        let now = weights[0];
        weights =
            [weights[1], weights[2], weights[3], weights[4], weights[5], weights[6], weights[7], weights[0]];
        let mut second = [[T::splat([0; 2]); 3]; 2];
        unroll2!(H / 2, PAIR => { second[PAIR % 2] = weight_digits::<T>(now, 2 * PAIR as u32); });
        unroll32!(U => {
            if U < G / 2 {
                let [a, b] = words.map(|words| T::map(words, |words| C::bytes::<T>(planes, &words, U)));
                let levels = factor::<T>(a, b, false);
                unroll2!(H / 2, PAIR => {
                    let sums = &mut sums[U % 4][PAIR % 2];
                    let [first, middle, last] = second[PAIR % 2];
                    sums[0] = T::multiply::<false>(levels, first, sums[0]);
                    sums[1] = T::multiply::<false>(levels, middle, sums[1]);
                    sums[2] = T::multiply::<false>(levels, last, sums[2]);
                });
            }
        });
    }
    sums
}

/// The three digits of the weights of 8 tokens as second factors, for heads `head` and `head + 1`: column n is
/// coordinate n % 4 of head n / 4, and a weight stands in the row of its own coordinate.
#[inline(always)]
fn weight_digits<T: Threads>(weights: T::Of<u32>, head: u32) -> [T::Of<Bytes>; 3] {
    let of = |token: u32| {
        let from = T::zip(row::<T>(), column::<T>(), |g, t| 4 * (t + token) + head + g / 4);
        T::shuffle(weights, from)
    };
    let both = T::zip(of(0), of(4), |a, b| [a, b]);
    [2, 1, 0].map(|digit| {
        // Zeros (byte 4) but in the place of the coordinate.
        let choice = T::map(row::<T>(), |g| 0x4444 ^ (4 ^ digit) << (4 * (g % 4)));
        T::zip(both, choice, |both, choice| both.map(|weight| T::permute(weight, 0, choice)))
    })
}

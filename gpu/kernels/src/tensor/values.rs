//! Sums of a page's values. Values are the first factors, and weights are the second.

use super::tile::{PageSide, Sums, TOKENS, column, is_written_out, row};
use crate::planes::{Bytes, Planes};
use crate::reader::Reader;
use crate::tables::Words;
use crate::threads::Threads;

/// The codes of a step of 16 tokens that a thread reads.
pub(super) type Step<T> = [<T as Threads>::Of<Words>; 4];

/// Sums of a slice of a page's values: for each tile of 32 coordinates, by powers of 256.
pub(super) type SliceSums<T> = [[Sums<T>; 2]; 4];

/// The codes of the first step of a slice, which can be loaded before the weights are known.
#[inline(always)]
pub(super) fn first<T: Threads, C: Reader, const G: usize, const SLICE: usize>(
    values: PageSide<T>,
) -> Step<T> {
    step::<T, C, G, SLICE>(&values, 0)
}

/// The codes of step `step` of a slice. Thread (g, t) reads tokens t, t + 4, t + 8 and t + 12 of its 16 tokens.
#[inline(always)]
fn step<T: Threads, C: Reader, const G: usize, const SLICE: usize>(
    values: &PageSide<T>,
    step: u32,
) -> Step<T> {
    let fetch = |slots: u32| match SLICE {
        2 => values.fetch::<C, G, 1>(slots),
        _ => values.fetch::<C, G, 2>(slots),
    };
    [fetch(16 * step), fetch(16 * step + 4), fetch(16 * step + 8), fetch(16 * step + 12)]
}

/// Weights times the values of a page, for one slice of the coordinates and at least the first `tokens`.
/// `weights` are the integers of tokens 8 k + g, for the thread's head of each set. They are 0 after the
/// last token. Levels are looked up once for all sets. `early` is [`first`] of the
/// slice, if it was loaded before.
#[inline(always)]
pub(super) fn sums<
    T: Threads,
    C: Reader,
    const G: usize,
    const TRELLIS: bool,
    const SLICE: usize,
    const SETS: usize,
>(
    values: PageSide<T>,
    tokens: u32,
    planes: &Planes,
    weights: [[T::Of<u32>; TOKENS]; SETS],
    early: Option<Step<T>>,
) -> [SliceSums<T>; SETS] {
    let fetch = |at: u32| step::<T, C, G, SLICE>(&values, at);
    let mut sums = [[[T::splat([0; 4]); 2]; 4]; SETS];
    // Weights `at` and `at + 1` of each set are those of the 16 tokens.
    let mut add = |words, weights: &[[T::Of<u32>; TOKENS]; SETS], at: usize| {
        let mut digits = [[T::splat([0; 2]); 2]; SETS];
        unroll2!(SETS, SET => {
            let weights = &weights[SET % SETS];
            digits[SET % SETS] = weight_digits::<T>([weights[at % TOKENS], weights[(at + 1) % TOKENS]]);
        });
        unroll32!(TILE => {
            if TILE < SLICE {
                let levels = tile::<T, C>(planes, words, TILE);
                unroll2!(SETS, SET => {
                    let (sums, second) = (&mut sums[SET % SETS][TILE % SLICE], &digits[SET % SETS]);
                    sums[0] = T::multiply::<false>(levels, second[0], sums[0]);
                    sums[1] = T::multiply::<false>(levels, second[1], sums[1]);
                });
            }
        });
    };
    if !is_written_out(TRELLIS) {
        let mut weights = weights;
        for step in 0..tokens.div_ceil(16) {
            add(fetch(step), &weights, 0);
            unroll2!(SETS, SET => {
                let [a, b, c, d, e, f, g, h] = weights[SET % SETS];
                weights[SET % SETS] = [c, d, e, f, g, h, a, b];
            });
        }
        return sums;
    }
    let first = match early {
        Some(words) => words,
        None => fetch(0),
    };
    let mut words = [first; TOKENS / 2];
    unroll32!(STEP => {
        if STEP < TOKENS / 2 {
            if STEP + 1 < TOKENS / 2 {
                words[(STEP + 1) % (TOKENS / 2)] = fetch(STEP as u32 + 1);
            }
            add(words[STEP % (TOKENS / 2)], &weights, 2 * STEP);
        }
    });
    sums
}

/// Tile `tile` of a slice as a first factor: half a unit of each thread. A word has two coordinates of two
/// tokens.
#[inline(always)]
fn tile<T: Threads, C: Reader>(planes: &Planes, words: [T::Of<Words>; 4], tile: usize) -> T::Of<[u32; 4]> {
    let pairs = |first: usize| {
        let both = T::zip(words[first], words[first + 1], |a, b| (a, b));
        T::map(both, |(a, b)| {
            let pairs = C::pairs::<T>(planes, [&a, &b], tile / 2);
            [pairs[tile % 2 * 2], pairs[tile % 2 * 2 + 1]]
        })
    };
    T::zip(pairs(0), pairs(2), |a, b| [a[0], a[1], b[0], b[1]])
}

/// The two digits of the weights of 16 tokens as second factors. Column n is coordinate n % 2 of a pair, of
/// head n / 2. A weight is in the rows of its own coordinate.
#[inline(always)]
fn weight_digits<T: Threads>(weights: [T::Of<u32>; 2]) -> [T::Of<Bytes>; 2] {
    let of = |weights: T::Of<u32>| {
        let from = |token: u32| T::zip(row::<T>(), column::<T>(), |g, t| 4 * (t + token) + g / 2);
        T::zip(T::shuffle(weights, from(0)), T::shuffle(weights, from(4)), |a, b| (a, b))
    };
    let four = T::zip(of(weights[0]), of(weights[1]), |a, b| (a, b));
    let digit = |digit: u32| {
        // The bytes next to the digits are zeros: copies of the sign bit of a weight's top byte, which is 0.
        let choice =
            T::map(
                row::<T>(),
                |g| if g % 2 == 0 { 0xb4b0 + 0x0101 * digit } else { 0x4b0b + 0x1010 * digit },
            );
        T::zip(four, choice, |((a, b), (c, d)), choice| [T::permute(a, b, choice), T::permute(c, d, choice)])
    };
    [digit(1), digit(0)]
}

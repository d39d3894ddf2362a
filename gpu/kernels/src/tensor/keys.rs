//! Logits of a page: keys as first factors.

use super::queries::Queries;
use super::{Side, TOKENS, factor};
use crate::planes::{Planes, Words, bytes_of};
use crate::threads::Threads;

/// Dot products of the first `tokens` keys of a page: of tokens 8 k + g with head t, in units of both factors.
#[inline(always)]
pub(super) fn dots<T: Threads, const FORMAT: u32, const G: usize>(
    keys: Side<T>,
    tokens: u32,
    planes: &Planes,
    queries: &Queries<T>,
) -> [T::Of<f32>; TOKENS] {
    let fetch = |slots: u32| match G {
        2 => keys.fetch::<FORMAT, G, 2>(slots),
        4 => keys.fetch::<FORMAT, G, 4>(slots),
        _ => keys.fetch::<FORMAT, G, 8>(slots),
    };
    let mut out = [T::splat(0.0); TOKENS];
    // Backwards, so that the first tile ends up in front: registers have no number at run time.
    for tile in (0..tokens.div_ceil(16)).rev() {
        let words = [fetch(16 * tile), fetch(16 * tile + 8)];
        let [upper, lower] = tile_dots::<T, FORMAT, G>(words, planes, queries);
        out = [upper, lower, out[0], out[1], out[2], out[3], out[4], out[5]];
    }
    out
}

/// Dot products of 16 keys: rows g and g + 8 with head t.
#[inline(always)]
fn tile_dots<T: Threads, const FORMAT: u32, const G: usize>(
    words: [T::Of<Words>; 2],
    planes: &Planes,
    queries: &Queries<T>,
) -> [T::Of<f32>; 2] {
    let (mut high, mut low, mut last) = (T::splat([0; 4]), T::splat([0; 4]), T::splat([0; 4]));
    unroll32!(U => {
        if U < G {
            let [a, b] = words.map(|words| T::map(words, |words| planes.levels::<T, FORMAT>(&words, U)));
            let bytes = factor::<T>(a, b, 0, true);
            high = T::multiply::<true>(bytes, queries.digits[U % 8], high);
            last = T::multiply::<true>(bytes, queries.last[U % 8], last);
            if bytes_of(FORMAT) > 2 {
                // Beside it, in the columns of first digits; those of second ones are not looked at.
                last = T::multiply::<true>(factor::<T>(a, b, 2, true), queries.digits[U % 8], last);
            }
            if bytes_of(FORMAT) > 1 {
                low = T::multiply::<true>(factor::<T>(a, b, 1, true), queries.digits[U % 8], low);
            }
        }
    });
    let rest = T::zip(low, last, |low, last| (low, last));
    let dot = T::zip(high, rest, |high, (low, last)| {
        let dot = |i: usize| {
            let (first, second) = (256 * high[i] + high[i + 1] + low[i], low[i + 1] + last[i]);
            // Units of 2^8 of the second sum: the third digit of the high bytes.
            256.0 * (256.0 * first as f32 + second as f32)
        };
        (dot(0), dot(2))
    });
    [T::map(dot, |(upper, _)| upper), T::map(dot, |(_, lower)| lower)]
}

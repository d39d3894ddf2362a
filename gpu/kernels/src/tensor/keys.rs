//! Logits of a page. Keys are the first factors.

use super::queries::Queries;
use super::tile::{Side, TOKENS, is_written_out};
use crate::planes::Planes;
use crate::reader::Reader;
use crate::tables::Words;
use crate::threads::Threads;

/// Dot products of the keys of a page, of at least the first `tokens`. Thread (g, t) gets tokens 8 k + g with
/// head t, in units of both factors.
#[inline(always)]
pub(super) fn dots<T: Threads, C: Reader, const G: usize, const TRELLIS: bool>(
    keys: Side<T>,
    tokens: u32,
    planes: &Planes,
    queries: &Queries<T>,
) -> [T::Of<f32>; TOKENS] {
    let fetch = |slots: u32| match G {
        2 => keys.fetch::<C, G, 2>(slots),
        4 => keys.fetch::<C, G, 4>(slots),
        _ => keys.fetch::<C, G, 8>(slots),
    };
    let fetch = |tile: u32| [fetch(16 * tile), fetch(16 * tile + 8)];
    let mut out = [T::splat(0.0); TOKENS];
    if !is_written_out(G, TRELLIS) {
        // Runs backwards, so that the first tile ends up in front: registers cannot be indexed at run time.
        for tile in (0..tokens.div_ceil(16)).rev() {
            let [upper, lower] = tile_dots::<T, C, G>(fetch(tile), planes, queries);
            out = [upper, lower, out[0], out[1], out[2], out[3], out[4], out[5]];
        }
        return out;
    }
    let mut words = [fetch(0); TOKENS / 2];
    unroll32!(TILE => {
        if TILE < TOKENS / 2 {
            if TILE + 1 < TOKENS / 2 {
                words[(TILE + 1) % (TOKENS / 2)] = fetch(TILE as u32 + 1);
            }
            let [upper, lower] = tile_dots::<T, C, G>(words[TILE % (TOKENS / 2)], planes, queries);
            out[2 * TILE % TOKENS] = upper;
            out[(2 * TILE + 1) % TOKENS] = lower;
        }
    });
    out
}

/// Dot products of 16 keys: rows g and g + 8 with head t.
#[inline(always)]
fn tile_dots<T: Threads, C: Reader, const G: usize>(
    words: [T::Of<Words>; 2],
    planes: &Planes,
    queries: &Queries<T>,
) -> [T::Of<f32>; 2] {
    let (mut high, mut last) = (T::splat([0; 4]), T::splat([0; 4]));
    unroll32!(U => {
        if U < G {
            let [a, b] = words.map(|words| T::map(words, |words| C::bytes::<T>(planes, &words, U)));
            let bytes = T::zip(a, b, |a, b| [a[0], b[0], a[1], b[1]]);
            high = T::multiply::<true>(bytes, queries.digits[U % 8], high);
            last = T::multiply::<true>(bytes, queries.last[U % 8], last);
        }
    });
    let dot = T::zip(high, last, |high, last| {
        // First and second digit are next to each other in the columns of a head.
        let dot = |i: usize| 256.0 * (256 * high[i] + high[i + 1]) as f32 + last[i] as f32;
        (dot(0), dot(2))
    });
    [T::map(dot, |(upper, _)| upper), T::map(dot, |(_, lower)| lower)]
}

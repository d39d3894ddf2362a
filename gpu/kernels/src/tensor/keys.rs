//! Logits of a page. Keys are the first factors.

use super::queries::Queries;
use super::tile::{PageSide, TOKENS, is_written_out};
use crate::planes::Planes;
use crate::reader::Reader;
use crate::tables::Words;
use crate::threads::Threads;

/// Dot products of the keys of a page, of at least the first `tokens`. Thread (g, t) gets tokens 8 k + g with
/// its head of each set, in units of both factors.
#[inline(always)]
pub(super) fn dots<T: Threads, C: Reader, const G: usize, const TRELLIS: bool, const SETS: usize>(
    keys: PageSide<T>,
    tokens: u32,
    planes: &Planes,
    queries: &Queries<T, SETS>,
) -> [[T::Of<f32>; TOKENS]; SETS] {
    let fetch = |slots: u32| match G {
        2 => keys.fetch::<C, G, 2>(slots),
        4 => keys.fetch::<C, G, 4>(slots),
        _ => keys.fetch::<C, G, 8>(slots),
    };
    let fetch = |tile: u32| [fetch(16 * tile), fetch(16 * tile + 8)];
    let mut out = [[T::splat(0.0); TOKENS]; SETS];
    if !is_written_out(TRELLIS) {
        // Runs backwards, so that the first tile ends up in front: registers cannot be indexed at run time.
        for tile in (0..tokens.div_ceil(16)).rev() {
            let dots = tile_dots::<T, C, G, SETS>(fetch(tile), planes, queries);
            unroll2!(SETS, SET => {
                let ([upper, lower], out) = (dots[SET % SETS], &mut out[SET % SETS]);
                *out = [upper, lower, out[0], out[1], out[2], out[3], out[4], out[5]];
            });
        }
        return out;
    }
    let mut words = [fetch(0); TOKENS / 2];
    unroll32!(TILE => {
        if TILE < TOKENS / 2 {
            if TILE + 1 < TOKENS / 2 {
                words[(TILE + 1) % (TOKENS / 2)] = fetch(TILE as u32 + 1);
            }
            let dots = tile_dots::<T, C, G, SETS>(words[TILE % (TOKENS / 2)], planes, queries);
            unroll2!(SETS, SET => {
                let ([upper, lower], out) = (dots[SET % SETS], &mut out[SET % SETS]);
                out[2 * TILE % TOKENS] = upper;
                out[(2 * TILE + 1) % TOKENS] = lower;
            });
        }
    });
    out
}

/// Dot products of 16 keys: rows g and g + 8 with the thread's head of each set.
#[inline(always)]
fn tile_dots<T: Threads, C: Reader, const G: usize, const SETS: usize>(
    words: [T::Of<Words>; 2],
    planes: &Planes,
    queries: &Queries<T, SETS>,
) -> [[T::Of<f32>; 2]; SETS] {
    let [mut upper, mut lower] = [T::splat([0; 4]); 2];
    unroll32!(U => {
        if U < G {
            let [a, b] = words.map(|words| T::map(words, |words| C::bytes::<T>(planes, &words, U)));
            let bytes = T::zip(a, b, |a, b| [a[0], b[0], a[1], b[1]]);
            upper = T::multiply::<true>(bytes, queries.upper[U % 8], upper);
            if SETS == 2 {
                lower = T::multiply::<true>(bytes, queries.lower[U % 8], lower);
            }
        }
    });
    let dot = |upper: i32, lower: i32| (256 * upper + lower) as f32;
    let dots = if SETS == 2 {
        T::zip(upper, lower, |a, b| [dot(a[0], b[0]), dot(a[1], b[1]), dot(a[2], b[2]), dot(a[3], b[3])])
    } else {
        // The digits are next to each other in the columns of a head.
        T::map(upper, |a| [dot(a[0], a[1]), 0.0, dot(a[2], a[3]), 0.0])
    };
    let mut out = [[T::splat(0.0); 2]; SETS];
    unroll2!(SETS, SET => {
        out[SET % SETS] = [T::map(dots, |dots| dots[SET % 2]), T::map(dots, |dots| dots[SET % 2 + 2])];
    });
    out
}

//! SIMD128: sums of 16 bits. A line is four registers.

use super::simd128::{Simd128, V};
use crate::shorts::{Shorts, TRANSPOSE};
use bytemuck::must_cast as cast;
use core::arch::wasm32::*;

type Quad = [v128; 4];

/// The registers of `a` and `b` by pairs.
#[inline(always)]
fn both(a: Quad, b: Quad, f: impl Fn(v128, v128) -> v128) -> Quad {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

#[inline(always)]
fn follow<const N: usize>(now: v128, before: v128) -> v128 {
    macro_rules! shuffle {
        ($($i:literal)*) => {
            match N {
                1 => i8x16_shuffle::<$({ 15 + $i }),*>(before, now),
                2 => i8x16_shuffle::<$({ 14 + $i }),*>(before, now),
                3 => i8x16_shuffle::<$({ 13 + $i }),*>(before, now),
                4 => i8x16_shuffle::<$({ 12 + $i }),*>(before, now),
                5 => i8x16_shuffle::<$({ 11 + $i }),*>(before, now),
                6 => i8x16_shuffle::<$({ 10 + $i }),*>(before, now),
                7 => i8x16_shuffle::<$({ 9 + $i }),*>(before, now),
                _ => i8x16_shuffle::<$({ 8 + $i }),*>(before, now),
            }
        };
    }
    shuffle!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
}

/// The sum of each pair of bytes less twice the odd one.
#[inline(always)]
fn differences(v: v128) -> v128 {
    i16x8_sub(i16x8_extadd_pairwise_i8x16(v), i16x8_shl(i16x8_shr(v, 8), 1))
}

impl Shorts for Simd128 {
    #[inline(always)]
    fn quarters(self, [a, b, c, d]: [&[u8; 16]; 4]) -> Quad {
        [cast(*a), cast(*b), cast(*c), cast(*d)]
    }

    #[inline(always)]
    fn follow<const N: usize>(self, now: Quad, before: Quad) -> Quad {
        both(now, before, |now, before| follow::<N>(now, before))
    }

    #[inline(always)]
    fn transpose(self, v: Quad) -> Quad {
        both(v, v, |v, _| i8x16_swizzle(v, cast(TRANSPOSE)))
    }

    #[inline(always)]
    fn neighbours(self, v: Quad) -> [Quad; 2] {
        [both(v, v, |v, _| i16x8_extadd_pairwise_i8x16(v)), both(v, v, |v, _| differences(v))]
    }

    #[inline(always)]
    fn butterfly16(self, a: Quad, b: Quad) -> [Quad; 2] {
        [both(a, b, |a, b| i16x8_add(a, b)), both(a, b, |a, b| i16x8_sub(a, b))]
    }

    #[inline(always)]
    fn zip16(self, a: Quad, b: Quad) -> [Quad; 2] {
        [
            both(a, b, |a, b| i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(a, b)),
            both(a, b, |a, b| i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(a, b)),
        ]
    }

    #[inline(always)]
    fn floats16(self, [a, b, c, d]: Quad) -> V {
        let low = |v| f32x4_convert_i32x4(i32x4_extend_low_i16x8(v));
        let high = |v| f32x4_convert_i32x4(i32x4_extend_high_i16x8(v));
        V::from_registers([low(a), high(a), low(b), high(b), low(c), high(c), low(d), high(d)])
    }

    #[inline(always)]
    fn store_eights(self, v: V, [a, b, c, d]: [&mut [f32; 8]; 4]) {
        let [a0, a1, b0, b1, c0, c1, d0, d1] = v.registers();
        (*a, *b, *c, *d) = (cast([a0, a1]), cast([b0, b1]), cast([c0, c1]), cast([d0, d1]));
    }
}

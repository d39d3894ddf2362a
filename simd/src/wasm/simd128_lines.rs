//! SIMD128: a line is four registers. Swizzling gives 0 for an index of 16 or more, so codes are masked.
//! Products of signed bytes are widened to 16 bits, and summed in 32. The relaxed dot product is not used:
//! its result for signed bytes depends on the engine.

use super::simd128::{Simd128, V, each as each8, look_up};
use crate::lines::{FRACTION, Line, Machine};
use bytemuck::{must_cast as cast, must_cast_mut as parts_mut, must_cast_ref as parts};
use core::arch::wasm32::*;

type Quad = [v128; 4];

/// The field `FIELD` of every byte, with higher bits above it.
#[inline(always)]
fn shift<const BITS: usize, const FIELD: usize>(v: v128) -> v128 {
    if FIELD == 0 { v } else { u8x16_shr(v, (BITS * FIELD) as u32) }
}

/// The levels of codes of which only the bits of `mask` count.
#[inline(always)]
fn level(code: v128, mask: u8, table: v128) -> v128 {
    i8x16_swizzle(table, v128_and(code, u8x16_splat(mask)))
}

/// Levels of the 3-bit code `FIELD` of the eight codes in a byte column.
#[inline(always)]
fn level3<const FIELD: usize>([a, b, c]: [v128; 3], table: v128) -> v128 {
    let high = |from, by| v128_and(u8x16_shr(from, by), u8x16_splat(4));
    let code = match FIELD {
        0 => a,
        1 => u8x16_shr(a, 3),
        2 => b,
        3 => u8x16_shr(b, 3),
        4 => c,
        5 => u8x16_shr(c, 3),
        6 => v128_or(u8x16_shr(a, 6), high(c, 4)),
        _ => v128_or(u8x16_shr(b, 6), high(c, 5)),
    };
    level(code, 7, table)
}

/// Adds the products of four signed bytes at a time.
#[inline(always)]
fn multiply(sum: v128, a: v128, b: v128) -> v128 {
    let low = i32x4_extadd_pairwise_i16x8(i16x8_extmul_low_i8x16(a, b));
    let high = i32x4_extadd_pairwise_i16x8(i16x8_extmul_high_i8x16(a, b));
    let even = i32x4_shuffle::<0, 2, 4, 6>(low, high);
    let odd = i32x4_shuffle::<1, 3, 5, 7>(low, high);
    i32x4_add(sum, i32x4_add(even, odd))
}

/// Widens four halves to f32, exactly. The exponent is moved by a product; infinities and NaN keep all its
/// bits.
#[inline(always)]
fn widen4(bits: v128) -> v128 {
    let magnitude = v128_and(bits, u32x4_splat(0x7fff));
    let scaled = f32x4_mul(u32x4_shl(magnitude, 13), u32x4_splat((127 + 112) << 23));
    let special = v128_and(u32x4_ge(magnitude, u32x4_splat(0x7c00)), u32x4_splat(0xff << 23));
    let sign = u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16);
    v128_or(v128_or(scaled, special), sign)
}

/// Widens eight halves.
#[inline(always)]
fn widen8(halves: [u16; 8]) -> [v128; 2] {
    let bits = cast(halves);
    [widen4(u32x4_extend_low_u16x8(bits)), widen4(u32x4_extend_high_u16x8(bits))]
}

/// Applies `f` to the registers of a line.
#[inline(always)]
fn map(v: Quad, f: impl Fn(v128) -> v128) -> Quad {
    [f(v[0]), f(v[1]), f(v[2]), f(v[3])]
}

/// Applies `f` to the registers of two lines.
#[inline(always)]
fn both(a: Quad, b: Quad, f: impl Fn(v128, v128) -> v128) -> Quad {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Machine for Simd128 {
    type Blocks = Self;
    type Line = Quad;
    type Sum = Quad;
    type Table = v128;
    type Levels = Quad;

    const HEADS: usize = 4;
    const CHAINS: usize = 4;
    const FIELDS: usize = 2;
    const SUMS: usize = 2;
    const BYTE_WEIGHTS: bool = false;
    const KEY_BIAS: i32 = 0;

    #[inline(always)]
    fn of_blocks(self) -> Self {
        self
    }

    #[inline(always)]
    fn line(self, line: &Line) -> Quad {
        let [a, b, c, d]: [[u8; 16]; 4] = *parts(&line.0);
        [cast(a), cast(b), cast(c), cast(d)]
    }

    #[inline(always)]
    fn line_bytes(self, line: Quad) -> [u8; 64] {
        cast(line)
    }

    /// There is no such hint.
    #[inline(always)]
    fn prefetch(self, _: &Line) {}

    #[inline(always)]
    fn value_table(self, levels: &[i8; 16]) -> v128 {
        cast(*levels)
    }

    #[inline(always)]
    fn key_table(self, levels: &[i8; 16]) -> v128 {
        self.value_table(levels)
    }

    #[inline(always)]
    fn level<const BITS: usize, const FIELD: usize>(self, line: Quad, table: v128) -> Quad {
        let mask = (1u16 << BITS) as u8 - 1;
        map(line, |v| level(shift::<BITS, FIELD>(v), mask, table))
    }

    #[inline(always)]
    fn level3<const FIELD: usize>(self, lines: [Quad; 3], table: v128) -> Quad {
        let [a, b, c] = lines;
        [
            level3::<FIELD>([a[0], b[0], c[0]], table),
            level3::<FIELD>([a[1], b[1], c[1]], table),
            level3::<FIELD>([a[2], b[2], c[2]], table),
            level3::<FIELD>([a[3], b[3], c[3]], table),
        ]
    }

    #[inline(always)]
    fn key_bytes(self, line: Quad) -> Quad {
        line
    }

    #[inline(always)]
    fn value_levels(self, levels: &[i8; 64]) -> Quad {
        let [a, b, c, d]: [[i8; 16]; 4] = *parts(levels);
        [cast(a), cast(b), cast(c), cast(d)]
    }

    #[inline(always)]
    fn key_levels(self, levels: &[i8; 64]) -> Quad {
        self.value_levels(levels)
    }

    #[inline(always)]
    fn look_up<const BITS: usize>(self, index: Quad, levels: Quad) -> Quad {
        let mask = u8x16_splat((1 << BITS) - 1);
        map(index, |index| look_up(&levels[..(1 << BITS) / 16], v128_and(index, mask)))
    }

    #[inline(always)]
    fn xor(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| v128_xor(a, b))
    }

    #[inline(always)]
    fn and(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| v128_and(a, b))
    }

    #[inline(always)]
    fn merge<const MASK: u8>(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| v128_bitselect(a, b, u8x16_splat(MASK)))
    }

    #[inline(always)]
    fn up<const N: u32>(self, v: Quad) -> Quad {
        map(v, |v| u8x16_shl(v, N))
    }

    #[inline(always)]
    fn down<const N: u32>(self, v: Quad) -> Quad {
        map(v, |v| u8x16_shr(v, N))
    }

    #[inline(always)]
    fn rotate(self, v: Quad) -> Quad {
        map(v, |v| v128_or(u8x16_shl(v, 1), u8x16_shr(v, 7)))
    }

    #[inline(always)]
    fn follow_bytes<const N: usize>(self, now: Quad, before: Quad) -> Quad {
        let bits = 8 * N as u32;
        both(now, before, |now, before| v128_or(u32x4_shl(now, bits), u32x4_shr(before, 32 - bits)))
    }

    #[inline(always)]
    fn follow_dwords<const N: usize>(self, now: Quad, before: Quad) -> Quad {
        both(now, before, |now, before| match N {
            1 => i32x4_shuffle::<3, 4, 5, 6>(before, now),
            2 => i32x4_shuffle::<2, 3, 4, 5>(before, now),
            _ => i32x4_shuffle::<1, 2, 3, 4>(before, now),
        })
    }

    #[inline(always)]
    fn pair_bytes<const HALF: usize>(self, even: Quad, odd: Quad) -> Quad {
        both(even, odd, |a, b| match HALF {
            0 => i8x16_shuffle::<0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29>(a, b),
            _ => i8x16_shuffle::<2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31>(a, b),
        })
    }

    #[inline(always)]
    fn pair_dwords<const HALF: usize>(self, even: Quad, odd: Quad) -> Quad {
        both(even, odd, |a, b| match HALF {
            0 => i32x4_shuffle::<0, 4, 1, 5>(a, b),
            _ => i32x4_shuffle::<2, 6, 3, 7>(a, b),
        })
    }

    #[inline(always)]
    fn zero(self) -> Quad {
        [u32x4_splat(0); 4]
    }

    #[inline(always)]
    fn all(self, sum: i32) -> Quad {
        [i32x4_splat(sum); 4]
    }

    #[inline(always)]
    fn sums(self, lanes: &[i32; 16]) -> Quad {
        let [a, b, c, d]: [[i32; 4]; 4] = *parts(lanes);
        [cast(a), cast(b), cast(c), cast(d)]
    }

    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| i32x4_add(a, b))
    }

    #[inline(always)]
    fn key_dot(self, sum: Quad, levels: Quad, query: u32) -> Quad {
        self.value_dot(sum, levels, self.splat_weights(query))
    }

    #[inline(always)]
    fn weights(self, weights: &[u32; 16]) -> Quad {
        let [a, b, c, d]: [[u32; 4]; 4] = *parts(weights);
        [cast(a), cast(b), cast(c), cast(d)]
    }

    #[inline(always)]
    fn splat_weights(self, weights: u32) -> Quad {
        [u32x4_splat(weights); 4]
    }

    #[inline(always)]
    fn write_halves(self, weights: V, halves: &mut [[u8; 32]; 2]) {
        let [high, low] = halves;
        let parts = high.as_chunks_mut::<8>().0.iter_mut().zip(low.as_chunks_mut::<8>().0);
        let rounded = |v| i32x4_trunc_sat_f32x4(f32x4_nearest(v));
        for (&[a, b], (high, low)) in weights.registers().as_chunks::<2>().0.iter().zip(parts) {
            let weights = u16x8_narrow_i32x4(rounded(a), rounded(b));
            let (upper, lower) = (u16x8_shr(weights, 7), v128_and(weights, u16x8_splat(127)));
            [*high, *low] = cast(u8x16_narrow_i16x8(upper, lower));
        }
    }

    #[inline(always)]
    fn write_bytes(self, weights: V, mut sums: [Quad; 2], bytes: &mut [u8; 32]) -> [Quad; 2] {
        let pairs = weights.registers();
        let pairs = pairs.as_chunks::<2>().0.iter().zip(sums.as_flattened_mut().as_chunks_mut::<2>().0);
        for ((weights, sums), bytes) in pairs.zip(bytes.as_chunks_mut::<8>().0) {
            let mut steps = [i32x4_splat(0); 2];
            for ((step, &weights), sum) in steps.iter_mut().zip(weights).zip(sums) {
                let before = i32x4_shr(*sum, FRACTION);
                *sum = i32x4_add(*sum, i32x4_trunc_sat_f32x4(f32x4_nearest(weights)));
                *step = i32x4_sub(i32x4_shr(*sum, FRACTION), before);
            }
            let steps = i16x8_narrow_i32x4(steps[0], steps[1]);
            [*bytes, _] = cast(u8x16_narrow_i16x8(steps, steps));
        }
        sums
    }

    #[inline(always)]
    fn value_dot(self, sum: Quad, levels: Quad, weights: Quad) -> Quad {
        [
            multiply(sum[0], levels[0], weights[0]),
            multiply(sum[1], levels[1], weights[1]),
            multiply(sum[2], levels[2], weights[2]),
            multiply(sum[3], levels[3], weights[3]),
        ]
    }

    #[inline(always)]
    fn lanes(self, sum: Quad) -> [i32; 16] {
        cast(sum)
    }

    #[inline(always)]
    fn floats(self, sums: [Quad; 2]) -> V {
        let [[a, b, c, d], [e, f, g, h]] = sums;
        V::from_registers(each8([a, b, c, d, e, f, g, h], |sum| f32x4_convert_i32x4(sum)))
    }

    #[inline(always)]
    fn widen16(self, halves: &[u16; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        let eights: &[[u16; 8]; 2] = parts(halves);
        for (to, eight) in parts_mut::<_, [[[f32; 4]; 2]; 2]>(&mut out).iter_mut().zip(eights) {
            *to = cast(widen8(*eight));
        }
        out
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; 32]) -> V {
        let [a, b, c, d] = parts::<_, [[u16; 8]; 4]>(halves).map(widen8);
        V::from_registers([a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]])
    }

    #[inline(always)]
    fn fma(self, acc: V, a: V, b: V) -> V {
        acc + a * b
    }

    #[inline(always)]
    fn larger(self, a: V, b: V) -> V {
        a.zip(b, |a, b| f32x4_max(a, b))
    }

    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        v.map(tqkv_core::unstable::machine::Lanes::sum)
    }
}

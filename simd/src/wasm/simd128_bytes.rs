//! Byte lanes for the trellis search, SIMD128: sixteen registers of sixteen states.
//!
//! Decisions are kept as byte masks, one byte per state, and shifted into one register, one bit per register,
//! as on NEON. Bit 7 - r of byte i belongs to byte i of the r-th register.

use super::simd128::Simd128;
use crate::trellis::{Bytes, DECISIONS, search};
use bytemuck::must_cast as cast;
use core::arch::wasm32::*;

impl Bytes for Simd128 {
    type B = v128;
    type D = [v128; 2];
    const WIDTH: usize = 16;
    const PATHS: &'static [&'static [usize]] = &[&[0, 1, 2, 3], &[], &[], &[]];
    const TURNS: [usize; 8] = [0, 1, 0, 2, 0, 3, 0, 0];

    #[inline(always)]
    fn splat_byte(self, value: u8) -> v128 {
        u8x16_splat(value)
    }

    #[inline(always)]
    fn read_bytes(self, bytes: &[u8]) -> v128 {
        cast(bytes.first_chunk::<16>().copied().unwrap_or([0; 16]))
    }

    #[inline(always)]
    fn write_bytes(self, v: v128, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut::<16>() {
            *bytes = cast(v);
        }
    }

    #[inline(always)]
    fn add(self, a: v128, b: v128) -> v128 {
        u8x16_add_sat(a, b)
    }

    #[inline(always)]
    fn sub(self, a: v128, b: v128) -> v128 {
        u8x16_sub_sat(a, b)
    }

    #[inline(always)]
    fn min(self, a: v128, b: v128) -> v128 {
        u8x16_min(a, b)
    }

    #[inline(always)]
    fn smallest(self, v: v128) -> v128 {
        let v = u8x16_min(v, i32x4_shuffle::<2, 3, 0, 1>(v, v));
        let v = u8x16_min(v, i32x4_shuffle::<1, 0, 3, 2>(v, v));
        let v = u8x16_min(v, u32x4_shr(v, 16));
        let v = u8x16_min(v, u32x4_shr(v, 8));
        u8x16_splat(u8x16_extract_lane::<0>(v))
    }

    #[inline(always)]
    fn table(self, row: &[u8; 8]) -> v128 {
        cast([*row, *row])
    }

    #[inline(always)]
    fn pick(self, table: v128, index: v128) -> v128 {
        i8x16_swizzle(table, index)
    }

    #[inline(always)]
    fn exchange(self, bit: usize, low: v128, high: v128) -> (v128, v128) {
        match bit {
            0 => (
                i8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(low, high),
                i8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(low, high),
            ),
            _ => (low, high),
        }
    }

    #[inline(always)]
    fn undecided(self) -> [v128; 2] {
        [u8x16_splat(0); 2]
    }

    #[inline(always)]
    fn note(
        self,
        mut decisions: [v128; 2],
        _: usize,
        upper: bool,
        zero: v128,
        one: v128,
        _: v128,
    ) -> [v128; 2] {
        let noted = &mut decisions[usize::from(upper)];
        let new = v128_and(u8x16_lt(one, zero), u8x16_splat(1));
        *noted = v128_or(u8x16_shl(*noted, 1), new);
        decisions
    }

    #[inline(always)]
    fn write(self, decisions: [v128; 2], to: &mut [u8; DECISIONS]) {
        for (to, decisions) in to.as_chunks_mut::<16>().0.iter_mut().zip(decisions) {
            *to = cast(decisions);
        }
    }

    #[inline(always)]
    fn decision(decisions: &[u8; DECISIONS], address: usize, bit: usize) -> usize {
        let register = address / 16;
        let upper = register >> bit & 1;
        let r = register >> (bit + 1) << bit | register & ((1 << bit) - 1);
        usize::from(decisions[(16 * upper + address % 16) % DECISIONS] >> (7 - r % 8) & 1)
    }
}

search!(Simd128);

//! SIMD128: 32 lanes in eight registers.
//!
//! Equal to `Portable` to the bit: the same IEEE operations on the same operands, none of them fused.

use bytemuck::{must_cast as cast, must_cast_mut as parts_mut, must_cast_ref as parts};
use core::arch::wasm32::*;
use core::ops::{Add, Mul, Sub};
use tqkv_core::unstable::machine::{Isa, Lanes, Memory};
use tqkv_core::unstable::machine::{spread, squeeze};

/// Proof that the build has SIMD128.
#[derive(Clone, Copy, Debug)]
pub struct Simd128(());

impl Simd128 {
    /// The token. Every build that has this type has the feature.
    pub const fn new() -> Option<Self> {
        Some(Self(()))
    }
}

/// 32 lanes of `f32`.
#[derive(Clone, Copy, Debug)]
pub struct V([v128; 8]);

impl V {
    #[inline(always)]
    pub(super) fn from_registers(registers: [v128; 8]) -> Self {
        Self(registers)
    }

    #[inline(always)]
    pub(super) fn registers(self) -> [v128; 8] {
        self.0
    }
}

/// `array.map`, always inlined.
#[inline(always)]
pub(super) fn each<T: Copy, U>(v: [T; 8], f: impl Fn(T) -> U) -> [U; 8] {
    [f(v[0]), f(v[1]), f(v[2]), f(v[3]), f(v[4]), f(v[5]), f(v[6]), f(v[7])]
}

impl V {
    #[inline(always)]
    pub(super) fn zip(self, other: Self, f: impl Fn(v128, v128) -> v128) -> Self {
        let mut out = self;
        for (a, b) in out.0.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        out
    }

    /// The canonical tree: 16, 8, 4, 2 lanes, then the two.
    #[inline(always)]
    fn fold(self, f: impl Fn(v128, v128) -> v128) -> [f32; 2] {
        let v = self.0;
        let eight = [f(v[0], v[4]), f(v[1], v[5]), f(v[2], v[6]), f(v[3], v[7])];
        let four = f(f(eight[0], eight[2]), f(eight[1], eight[3]));
        let two = f(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        [f32x4_extract_lane::<0>(two), f32x4_extract_lane::<1>(two)]
    }
}

impl Add for V {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: V) -> V {
        self.zip(other, |a, b| f32x4_add(a, b))
    }
}

impl Sub for V {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: V) -> V {
        self.zip(other, |a, b| f32x4_sub(a, b))
    }
}

impl Mul for V {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: V) -> V {
        self.zip(other, |a, b| f32x4_mul(a, b))
    }
}

impl Lanes for V {
    #[inline(always)]
    fn butterfly<const H: usize>(self) -> V {
        if H >= 4 {
            let mut out = self;
            for i in 0..8 {
                let (a, b) = (self.0[i & !(H / 4)], self.0[i | (H / 4)]);
                out.0[i] = if i & (H / 4) == 0 { f32x4_add(a, b) } else { f32x4_sub(a, b) };
            }
            return out;
        }
        // swapped + (+-v): negating is exact.
        const SIGN: u32 = 1 << 31;
        V(each(self.0, |v| match H {
            2 => f32x4_add(i32x4_shuffle::<2, 3, 0, 1>(v, v), v128_xor(v, u32x4(0, 0, SIGN, SIGN))),
            _ => f32x4_add(i32x4_shuffle::<1, 0, 3, 2>(v, v), v128_xor(v, u32x4(0, SIGN, 0, SIGN))),
        }))
    }

    #[inline(always)]
    fn flip(self, mask: u32) -> V {
        let mut out = self;
        for (k, v) in out.0.iter_mut().enumerate() {
            let bits = v128_and(u32x4_splat(mask >> (4 * k)), u32x4(1, 2, 4, 8));
            let sign = v128_and(i32x4_ne(bits, u32x4_splat(0)), u32x4_splat(1 << 31));
            *v = v128_xor(*v, sign);
        }
        out
    }

    #[inline(always)]
    fn max_abs(self, other: V) -> V {
        self.zip(other, |a, b| f32x4_max(f32x4_abs(a), f32x4_abs(b)))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b] = self.fold(|a, b| f32x4_add(a, b));
        a + b
    }

    #[inline(always)]
    fn max(self) -> f32 {
        let [a, b] = self.fold(|a, b| f32x4_max(a, b));
        f32::max(a, b)
    }
}

/// Packs eight codes into one dense word.
#[inline(always)]
fn pack8<const BITS: usize>(a: v128, b: v128) -> u64 {
    let halves = u16x8_narrow_i32x4(a, b);
    squeeze::<BITS>(u64x2_extract_lane::<0>(u8x16_narrow_i16x8(halves, halves)))
}

/// The bytes of a table of `16 * tables.len()`, at most 128. Swizzling gives 0 from 16 on.
#[inline(always)]
pub(super) fn look_up(tables: &[v128], index: v128) -> v128 {
    let mut out = u8x16_splat(0);
    for (k, &table) in tables.iter().enumerate() {
        out = v128_or(out, i8x16_swizzle(table, u8x16_sub(index, u8x16_splat(16 * k as u8))));
    }
    out
}

impl Isa for Simd128 {
    type V = V;
    type C = [v128; 8];

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        V([f32x4_splat(value); 8])
    }

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> V {
        V(each(*parts::<_, [[f32; 4]; 8]>(src), cast))
    }

    #[inline(always)]
    fn sqrt(self, value: f32) -> f32 {
        f32x4_extract_lane::<0>(f32x4_sqrt(f32x4_splat(value)))
    }

    #[inline(always)]
    fn quantise<const BITS: usize>(self, v: V, boundaries: &[f32; 32]) -> [v128; 8] {
        let mut counts = [u32x4_splat(0); 8];
        for &boundary in &boundaries[..(1 << BITS) - 1] {
            let boundary = f32x4_splat(boundary);
            for (count, &v) in counts.iter_mut().zip(&v.0) {
                *count = i32x4_sub(*count, f32x4_ge(v, boundary));
            }
        }
        counts
    }

    #[inline(always)]
    fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: [v128; 8]) -> V {
        let tables = each(*parts::<_, [[f32; 4]; 8]>(table), cast);
        // The tables of 2^BITS levels of four bytes.
        let tables = &tables[..(1 << BITS) / 4];
        V(each(codes, |code| {
            // Byte k of lane i looks up byte 4 code + k.
            let bytes = i32x4_mul(code, u32x4_splat(0x0404_0404));
            look_up(tables, i32x4_add(bytes, u32x4_splat(0x0302_0100)))
        }))
    }

    #[inline(always)]
    fn round_i8(self, v: V) -> [v128; 8] {
        each(v.0, |v| {
            let bounded = f32x4_min(f32x4_max(v, f32x4_splat(-127.0)), f32x4_splat(127.0));
            v128_and(i32x4_trunc_sat_f32x4(f32x4_nearest(bounded)), u32x4_splat(255))
        })
    }

    #[inline(always)]
    fn widen_i8(self, codes: [v128; 8]) -> V {
        V(each(codes, |code| f32x4_convert_i32x4(i32x4_shr(i32x4_shl(code, 24), 24))))
    }
}

impl Memory for Simd128 {
    #[inline(always)]
    fn look_up_levels(self, indices: &mut [u8], levels: &[i8; 64]) {
        crate::lines::look_up_levels(self, indices, levels);
    }

    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce(Self) -> R) -> R {
        #[inline(never)]
        fn enter<R>(isa: Simd128, work: impl FnOnce(Simd128) -> R) -> R {
            work(isa)
        }
        enter(self, work)
    }

    #[inline(always)]
    fn store(self, v: V, dst: &mut [f32; 32]) {
        for (to, v) in parts_mut::<_, [[f32; 4]; 8]>(dst).iter_mut().zip(v.0) {
            *to = cast(v);
        }
    }

    #[inline(always)]
    fn repeat<const M: usize>(self, src: &[f32; M]) -> V {
        let parts = src.as_chunks::<4>().0;
        V(core::array::from_fn(
            #[inline(always)]
            |i| cast(parts[i % (M / 4)]),
        ))
    }

    #[inline(always)]
    fn pack<const BITS: usize>(self, codes: [v128; 8]) -> [u64; 4] {
        [
            pack8::<BITS>(codes[0], codes[1]),
            pack8::<BITS>(codes[2], codes[3]),
            pack8::<BITS>(codes[4], codes[5]),
            pack8::<BITS>(codes[6], codes[7]),
        ]
    }

    #[inline(always)]
    fn unpack<const BITS: usize>(self, words: [u64; 4]) -> [v128; 8] {
        let mut out = [u32x4_splat(0); 8];
        for (pair, word) in out.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            let halves = u16x8_extend_low_u8x16(u64x2(spread::<BITS>(word), 0));
            *pair = [u32x4_extend_low_u16x8(halves), u32x4_extend_high_u16x8(halves)];
        }
        out
    }
}

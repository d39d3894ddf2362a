//! The machine vocabulary: every operation that a float algorithm may ask of a processor.
//!
//! The unit is a **group** of 32 coordinates on every machine. It is `[f32; 32]` here, two 512-bit registers
//! with AVX-512, eight 128-bit registers with NEON, and one `f32` per thread of a GPU warp. Algorithms take
//! and return registers. Only [`Memory`], which processors with plain stores implement, writes to memory.
//! This keeps the crate free of `unsafe` and lets a warp run the same code.
//!
//! Numerics: every operation is IEEE single precision, rounded to nearest, never fused and never
//! reassociated. [`Lanes::sum`] has one fixed order. All implementations therefore agree to the bit. An
//! operation enters this file only when an algorithm needs it on every machine.

use super::block_io;
use core::ops::{Add, Mul, Sub};
use half::f16;

/// 32 lanes of `f32`.
pub trait Lanes: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// The Hadamard butterfly between lanes `i` and `i ^ H`. The lane without the bit gets the sum, the lane
    /// with it the difference (low minus high). `H` is 1, 2, 4, 8 or 16.
    #[must_use]
    fn butterfly<const H: usize>(self) -> Self;

    /// Negates the lanes whose bit is set in `mask`.
    #[must_use]
    fn flip(self, mask: u32) -> Self;

    /// The larger of the two absolute values in each lane; no lane is NaN.
    #[must_use]
    fn max_abs(self, other: Self) -> Self;

    /// `sum + self * self`, where lanes are integers and no sum reaches 2^24: it is exact, fused or not.
    #[must_use]
    #[inline(always)]
    fn square_of_integer(self, sum: Self) -> Self {
        sum + self * self
    }

    /// Sum of all lanes in the canonical order: `v[i] + v[i + 16]`, then 8, 4, 2, 1.
    fn sum(self) -> f32;

    /// Largest lane; no lane is NaN.
    fn max(self) -> f32;
}

/// A zero-size token. It proves that an instruction set may be used, and is the only source of lanes.
pub trait Isa: Copy {
    /// 32 lanes of `f32`.
    type V: Lanes;
    /// 32 codes of at most 8 bits each, in any form that suits the machine.
    type C: Copy;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::V;

    /// Lane i is `src[i]`.
    fn load(self, src: &[f32; 32]) -> Self::V;

    /// [`Lanes::sum`] of each of `N` values.
    #[inline(always)]
    fn sum_each<const N: usize>(self, values: &[Self::V]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = value.sum();
        }
        sums
    }

    /// Square root, correctly rounded.
    #[inline(always)]
    fn sqrt(self, value: f32) -> f32 {
        libm::sqrtf(value)
    }

    /// Rounds to half precision, to nearest, ties to even.
    #[inline(always)]
    fn to_half(self, value: f32) -> f16 {
        f16::from_f32(value)
    }

    /// Widens a half exactly.
    #[inline(always)]
    #[allow(clippy::wrong_self_convention, reason = "the token is no value to convert")]
    fn widen_half(self, value: f16) -> f32 {
        value.to_f32()
    }

    /// The first `2^BITS - 1` boundaries times `factor`; the others are 0.
    #[inline(always)]
    fn scaled<const BITS: usize>(self, boundaries: &[f32; 32], factor: f32) -> [f32; 32] {
        let mut scaled = [0.0; 32];
        for (scaled, &boundary) in scaled[..(1 << BITS) - 1].iter_mut().zip(boundaries) {
            *scaled = boundary * factor;
        }
        scaled
    }

    /// Lane i is the number of `boundaries` that are <= lane i of `v`. The first `2^BITS - 1` boundaries are
    /// used; they ascend, and the middle one is 0. `BITS` is at most 5.
    fn quantise<const BITS: usize>(self, v: Self::V, boundaries: &[f32; 32]) -> Self::C;

    /// Lane i is `table[code i]`; codes are below `2^BITS`.
    fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: Self::C) -> Self::V;

    /// [`Isa::quantise`] and [`Isa::lookup`] in one call: the codes and their levels.
    #[inline(always)]
    fn nearest<const BITS: usize>(
        self,
        v: Self::V,
        boundaries: &[f32; 32],
        levels: &[f32; 32],
    ) -> (Self::C, Self::V) {
        let codes = self.quantise::<BITS>(v, boundaries);
        (codes, self.lookup::<BITS>(levels, codes))
    }

    /// Rounds every lane to the nearest integer, ties to even, and clamps it to [-127, 127]. The low 8 bits
    /// are the code.
    fn round_i8(self, v: Self::V) -> Self::C;

    /// Codes read as signed bytes, as `f32`.
    fn widen_i8(self, codes: Self::C) -> Self::V;
}

/// The operations of a processor with ordinary loads and stores.
pub trait Memory: Isa {
    /// True if encoding four vectors side by side is faster than one by one, and worth the machine code.
    const SIDE_BY_SIDE: bool = false;

    /// Groups that registers hold besides those that are worked on.
    const GROUPS_IN_REGISTERS: usize = 0;

    /// Runs `work`, compiled as a separate function for this instruction set. It is never inlined, so code
    /// that many callers need exists once. `work` is an `#[inline(always)]` closure that neither takes nor
    /// returns registers by value.
    #[inline(never)]
    fn apart<R>(self, work: impl FnOnce(Self) -> R) -> R {
        work(self)
    }

    /// Writes lane i to `dst[i]`.
    fn store(self, v: Self::V, dst: &mut [f32; 32]);

    /// Bits of every lane rounded to half precision, as [`Isa::to_half`] does.
    #[inline(always)]
    fn to_halves(self, v: Self::V) -> [u16; 32] {
        let mut lanes = [0.0; 32];
        self.store(v, &mut lanes);
        lanes.map(|lane| self.to_half(lane).to_bits())
    }

    /// Lane i is `src[i % M]`; `M` is 4, 8 or 16.
    #[inline(always)]
    fn repeat<const M: usize>(self, src: &[f32; M]) -> Self::V {
        let mut lanes = [0.0; 32];
        for part in lanes.chunks_exact_mut(M) {
            part.copy_from_slice(src);
        }
        self.load(&lanes)
    }

    /// Replaces every index (below 64) by the bits of its level.
    #[inline(always)]
    fn look_up_levels(self, indices: &mut [u8], levels: &[i8; 64]) {
        for index in indices {
            *index = levels[usize::from(*index) % levels.len()] as u8;
        }
    }

    /// Packs codes below `2^BITS` densely, least significant bit first: code `8 k + j` is at bit `BITS * j`
    /// of word k.
    fn pack<const BITS: usize>(self, codes: Self::C) -> [u64; 4];

    /// The inverse of [`Memory::pack`]; bits above `8 * BITS` of a word are ignored.
    fn unpack<const BITS: usize>(self, words: [u64; 4]) -> Self::C;

    /// [`Memory::pack`] to memory: the first 32 codes, or as many as `bytes` holds.
    #[inline(always)]
    fn write_codes<const BITS: usize>(self, codes: Self::C, bytes: &mut [u8]) {
        let words = self.pack::<BITS>(codes);
        for (eight, word) in bytes.chunks_exact_mut(BITS).zip(words) {
            for (byte, value) in eight.iter_mut().zip(word.to_le_bytes()) {
                *byte = value;
            }
        }
    }

    /// The inverse of [`Memory::write_codes`]; codes past the end of `bytes` are 0.
    #[inline(always)]
    fn read_codes<const BITS: usize>(self, bytes: &[u8]) -> Self::C {
        self.unpack::<BITS>(block_io::words::<BITS>(bytes))
    }
}

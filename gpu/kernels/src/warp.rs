//! The core's instruction set on a warp, with one coordinate of a group per thread.
//!
//! A butterfly is a shuffle and an addition, and a sum is five of them. A table look-up is a shuffle of a
//! register that holds one level per thread. Sums have the canonical order: thread i adds thread i + 16.
//! Addition commutes, so all threads get the same bits as the CPU.

use crate::threads::{Threads, shuffle_f32, shuffle_xor_f32};
use core::marker::PhantomData;
use core::ops::{Add, Mul, Sub};
use tqkv_core::unstable::machine::{Isa, Lanes};

/// A token that proves that all 32 threads of the warp are converged.
#[derive(Debug)]
pub struct Warp<T>(PhantomData<T>);

impl<T> Clone for Warp<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Warp<T> {}

impl<T> Warp<T> {
    /// Makes the token. A kernel body runs converged from its first line to its last.
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "a proof is made on purpose, not by default")]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

/// A group of 32 coordinates, one per thread.
pub struct Lane<T: Threads>(pub T::Of<f32>);

impl<T: Threads> Clone for Lane<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Threads> Copy for Lane<T> {}

impl<T: Threads> Add for Lane<T> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(T::zip(self.0, other.0, |a, b| a + b))
    }
}

impl<T: Threads> Sub for Lane<T> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(T::zip(self.0, other.0, |a, b| a - b))
    }
}

impl<T: Threads> Mul for Lane<T> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(T::zip(self.0, other.0, |a, b| a * b))
    }
}

impl<T: Threads> Lane<T> {
    /// Folds over all threads in the canonical tree. `f` is commutative.
    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32 + Copy) -> f32 {
        let step = |v, mask| T::zip(v, shuffle_xor_f32::<T>(v, mask), f);
        T::uniform(step(step(step(step(step(self.0, 16), 8), 4), 2), 1))
    }
}

impl<T: Threads> Lanes for Lane<T> {
    #[inline(always)]
    fn butterfly<const H: usize>(self) -> Self {
        let other = shuffle_xor_f32::<T>(self.0, H as u32);
        // The lane whose bit is set holds the high value; low - high is low + (-high).
        let signed = T::zip(self.0, T::lane(), |v, lane| {
            let sign = (lane & H as u32) << (31 - H.trailing_zeros());
            f32::from_bits(v.to_bits() ^ sign)
        });
        Self(T::zip(other, signed, |a, b| a + b))
    }

    #[inline(always)]
    fn flip(self, mask: u32) -> Self {
        Self(T::zip(self.0, T::lane(), |v, lane| f32::from_bits(v.to_bits() ^ ((mask >> lane) << 31))))
    }

    #[inline(always)]
    fn max_abs(self, other: Self) -> Self {
        Self(T::zip(self.0, other.0, |a, b| f32::max(a.abs(), b.abs())))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }

    #[inline(always)]
    fn max(self) -> f32 {
        self.fold(f32::max)
    }
}

/// 1.5 * 2^23. Adding it leaves the nearest integer, ties to even, in the low bits.
const ROUND: f32 = 12_582_912.0;

impl<T: Threads> Isa for Warp<T> {
    type V = Lane<T>;
    type C = T::Of<u32>;

    #[inline(always)]
    fn splat(self, value: f32) -> Lane<T> {
        Lane(T::splat(value))
    }

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> Lane<T> {
        Lane(T::gather(src))
    }

    #[inline(always)]
    fn sqrt(self, value: f32) -> f32 {
        T::sqrt(value)
    }

    #[inline(always)]
    fn to_half(self, value: f32) -> tqkv_core::f16 {
        tqkv_core::f16::from_bits(T::to_half(value))
    }

    #[inline(always)]
    fn widen_half(self, value: tqkv_core::f16) -> f32 {
        T::from_half(value.to_bits())
    }

    #[inline(always)]
    fn scaled<const BITS: usize>(self, boundaries: &[f32; 32], factor: f32) -> [f32; 32] {
        let mut scaled = [0.0; 32];
        unroll32!(I => {
            if I < (1 << BITS) - 1 {
                scaled[I] = boundaries[I] * factor;
            }
        });
        scaled
    }

    #[inline(always)]
    fn quantise<const BITS: usize>(self, v: Lane<T>, boundaries: &[f32; 32]) -> T::Of<u32> {
        T::map(v.0, |lane| search::<BITS>(lane, boundaries))
    }

    #[inline(always)]
    fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: T::Of<u32>) -> Lane<T> {
        Lane(shuffle_f32::<T>(T::gather(table), codes))
    }

    #[inline(always)]
    fn round_i8(self, v: Lane<T>) -> T::Of<u32> {
        T::map(v.0, |lane| (lane.clamp(-127.0, 127.0) + ROUND).to_bits() & 255)
    }

    #[inline(always)]
    fn widen_i8(self, codes: T::Of<u32>) -> Lane<T> {
        Lane(T::map(codes, |code| f32::from(code as u8 as i8)))
    }
}

/// The number of boundaries that are <= `v`, by bisection. The middle one of the rest decides which half
/// stays, so registers are selected and never indexed.
#[inline(always)]
fn search<const BITS: usize>(v: f32, boundaries: &[f32; 32]) -> u32 {
    let (mut left, mut code) = (*boundaries, 0);
    unroll32!(I => {
        if I < BITS {
            let half = 1 << (BITS - 1 - I);
            let above = v >= left[half - 1];
            code = 2 * code + u32::from(above);
            unroll32!(J => {
                if J + 1 < half {
                    left[J] = if above { left[J + half] } else { left[J] };
                }
            });
        }
    });
    code
}

/// Packs a group's codes densely. Thread j < `BITS` holds the j-th 32-bit word.
#[inline(always)]
pub fn pack<T: Threads, const BITS: usize>(codes: T::Of<u32>) -> T::Of<u32> {
    // Threads whose codes share a word combine it by OR. At 3 bits, eight codes fill 24 bits.
    let run = if BITS == 3 { 8 } else { 32 / BITS as u32 };
    let mut word = T::zip(codes, T::lane(), |code, lane| code << (BITS as u32 * (lane % run)));
    unroll32!(I => {
        let mask = I as u32;
        if mask.is_power_of_two() && mask < run {
            word = T::zip(word, T::shuffle_xor(word, mask), |a, b| a | b);
        }
    });
    let here = T::shuffle(word, T::map(T::lane(), |lane| (lane * run) % 32));
    if BITS != 3 {
        return here;
    }
    let next = T::shuffle(word, T::map(T::lane(), |lane| ((lane + 1) * run) % 32));
    let low = T::zip(here, T::lane(), |word, lane| word >> (8 * (lane % 3)));
    let high = T::zip(next, T::lane(), |word, lane| word << (24 - 8 * (lane % 3)));
    T::zip(low, high, |a, b| a | b)
}

/// Reads the codes of the group that starts at `offset`, which is even.
#[inline(always)]
pub fn load_codes<T: Threads, const BITS: usize>(memory: T::Memory, offset: u32) -> T::Of<u32> {
    let bit = T::map(T::lane(), |lane| BITS as u32 * lane);
    let low = T::load_u16(memory, T::map(bit, |bit| offset + bit / 16 * 2));
    let mask = (1 << BITS) - 1;
    if BITS != 3 {
        return T::zip(low, bit, |low, bit| u32::from(low) >> (bit % 16) & mask);
    }
    // A code may cross into the next 16 bits, but the last code of the group does not.
    let last = 2 * BITS as u32 - 1;
    let high = T::load_u16(memory, T::map(bit, |bit| offset + u32::min(bit / 16 + 1, last) * 2));
    let both = T::zip(low, high, |low, high| u32::from(low) | u32::from(high) << 16);
    T::zip(both, bit, |both, bit| both >> (bit % 16) & mask)
}

//! The portable instruction set: plain Rust, and the definition of every operation.

use super::lanes::{Isa, Lanes, Memory};
use core::ops::{Add, Mul, Sub};

/// Token of the portable instruction set; it can always be used.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Portable;

/// 32 lanes in an array.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(align(64))]
pub struct F32x32(pub [f32; 32]);

impl F32x32 {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (a, b) in out.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        Self(out)
    }

    /// Folds the lanes in the canonical tree: 16, 8, 4, 2, 1.
    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut v = self.0;
        let mut half = 16;
        while half > 0 {
            for i in 0..half {
                v[i] = f(v[i], v[i + half]);
            }
            half /= 2;
        }
        v[0]
    }
}

impl Add for F32x32 {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for F32x32 {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul for F32x32 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
}

/// Sign bits of four lanes for each value of four mask bits: one load instead of four variable shifts.
const SIGNS: [[u32; 4]; 16] = {
    let (mut signs, mut i) = ([[0; 4]; 16], 0);
    while i < 64 {
        signs[i / 4][i % 4] = ((((i / 4) >> (i % 4)) & 1) as u32) << 31;
        i += 1;
    }
    signs
};

impl Lanes for F32x32 {
    #[inline(always)]
    fn butterfly<const H: usize>(self) -> Self {
        let mut out = self.0;
        for pair in out.chunks_exact_mut(2 * H) {
            let (low, high) = pair.split_at_mut(H);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        Self(out)
    }

    #[inline(always)]
    fn flip(self, mask: u32) -> Self {
        let mut out = self.0;
        let (fours, mut mask) = (out.as_chunks_mut::<4>().0, mask);
        for four in fours {
            for (v, sign) in four.iter_mut().zip(SIGNS[(mask & 15) as usize]) {
                *v = f32::from_bits(v.to_bits() ^ sign);
            }
            mask >>= 4;
        }
        Self(out)
    }

    #[inline(always)]
    fn max_abs(self, other: Self) -> Self {
        self.zip(other, |a, b| f32::max(a.abs(), b.abs()))
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

/// 1.5 * 2^23: adding and subtracting it rounds to an integer, ties to even, for |v| <= 2^22.
const ROUND: f32 = 12_582_912.0;

impl Isa for Portable {
    type V = F32x32;
    type C = [u8; 32];

    #[inline(always)]
    fn splat(self, value: f32) -> F32x32 {
        F32x32([value; 32])
    }

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> F32x32 {
        F32x32(*src)
    }

    #[inline(always)]
    fn quantise<const BITS: usize>(self, v: F32x32, boundaries: &[f32; 32]) -> [u8; 32] {
        let mut counts = [0i32; 32];
        for &boundary in &boundaries[..(1 << BITS) - 1] {
            for (count, lane) in counts.iter_mut().zip(v.0) {
                *count += i32::from(lane >= boundary);
            }
        }
        counts.map(|count| count as u8)
    }

    #[inline(always)]
    fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: [u8; 32]) -> F32x32 {
        F32x32(codes.map(|code| table[usize::from(code) & ((1 << BITS) - 1)]))
    }

    #[inline(always)]
    fn round_i8(self, v: F32x32) -> [u8; 32] {
        v.0.map(|lane| {
            let rounded = (lane.clamp(-127.0, 127.0) + ROUND) - ROUND;
            rounded as i8 as u8
        })
    }

    #[inline(always)]
    fn widen_i8(self, codes: [u8; 32]) -> F32x32 {
        F32x32(codes.map(|code| f32::from(code as i8)))
    }
}

impl Memory for Portable {
    #[inline(always)]
    fn store(self, v: F32x32, dst: &mut [f32; 32]) {
        *dst = v.0;
    }

    #[inline(always)]
    fn pack<const BITS: usize>(self, codes: [u8; 32]) -> [u64; 4] {
        let mut words = [0; 4];
        for (word, eight) in words.iter_mut().zip(codes.as_chunks::<8>().0) {
            *word = squeeze::<BITS>(u64::from_le_bytes(*eight));
        }
        words
    }

    #[inline(always)]
    fn unpack<const BITS: usize>(self, words: [u64; 4]) -> [u8; 32] {
        let mut codes = [0; 32];
        for (eight, word) in codes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *eight = spread::<BITS>(word).to_le_bytes();
        }
        codes
    }
}

/// A word whose fields of `width` bits, one per `stride` bits, are all ones.
#[inline(always)]
const fn fields(width: usize, stride: usize) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < 64 {
        word |= (u64::MAX >> (64 - width)) << at;
        at += stride;
    }
    word
}

/// Closes the gap between fields 2i and 2i + 1 of `width` bits, one per `stride` bits.
#[inline(always)]
const fn join(x: u64, width: usize, stride: usize) -> u64 {
    let low = fields(width, 2 * stride);
    (x & low) | (x >> (stride - width) & (low << width))
}

/// The inverse of [`join`]; other bits are ignored.
#[inline(always)]
const fn part(x: u64, width: usize, stride: usize) -> u64 {
    let low = fields(width, 2 * stride);
    (x & low) | (x << (stride - width) & (low << stride))
}

/// Moves eight codes from the low bits of eight bytes to the low `8 * BITS` bits. Neighbours are joined three
/// times.
#[inline(always)]
pub const fn squeeze<const BITS: usize>(bytes: u64) -> u64 {
    if BITS == 8 {
        return bytes;
    }
    join(join(join(bytes, BITS, 8), 2 * BITS, 16), 4 * BITS, 32)
}

/// The inverse of [`squeeze`]; bits above `8 * BITS` are ignored.
#[inline(always)]
pub const fn spread<const BITS: usize>(dense: u64) -> u64 {
    if BITS == 8 {
        return dense;
    }
    part(part(part(dense, 4 * BITS, 32), 2 * BITS, 16), BITS, 8)
}

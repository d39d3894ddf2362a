//! Reading trellis blocks: `t2`, `t3`, `t4`. The search that writes them is the CPU's.
//!
//! A plane has n = 4 G bytes, and coordinate t is bit t / n of byte t mod n. Since n divides 32, the
//! coordinates of a thread lie in the same byte of every plane: it reads that byte and the eight before
//! it once, XORs whole bytes to parities, and takes a bit of them for each group.

use crate::format::Blocks;
use crate::threads::{Threads, shuffle_f32};
use crate::warp::Lane;
use tqkv_core::CodecId;
use tqkv_core::trellis::{Code, MAX_MEMORY, trellis};

/// The trellis code of `BITS` bits a coordinate, 2 to 4.
#[derive(Debug)]
pub struct Trellis<const BITS: usize>;

impl<const BITS: usize> Trellis<BITS> {
    const CODE: Code = {
        let id = match BITS {
            2 => CodecId::T2,
            3 => CodecId::T3,
            _ => CodecId::T4,
        };
        match trellis(id) {
            Some(trellis) => trellis.code,
            None => panic!("t2, t3 and t4 are trellis codes"),
        }
    };

    /// Levels 32 `half` to 32 `half` + 31.
    const fn table(half: usize) -> [f32; 32] {
        let (mut table, mut i) = ([0.0; 32], 0);
        while i < 32 {
            table[i] = Self::CODE.levels[32 * half + i] as f32;
            i += 1;
        }
        table
    }
}

/// The byte at each thread's offset; `base` is even.
#[inline(always)]
fn load_byte<T: Threads>(memory: T::Memory, base: u32, offset: T::Of<u32>) -> T::Of<u32> {
    let pair = T::load_u16(memory, T::map(offset, |offset| base + offset / 2 * 2));
    T::zip(pair, offset, |pair, offset| u32::from(pair) >> (8 * (offset % 2)) & 255)
}

/// The coded byte `back` coordinates before each thread's byte `at` of a ring of `n`; going back past the
/// first byte rotates the last ones by a bit.
#[inline(always)]
fn coded<T: Threads>(memory: T::Memory, base: u32, at: T::Of<u32>, back: u32, n: u32) -> T::Of<u32> {
    let byte = load_byte::<T>(memory, base, T::map(at, |at| (at + n - back % n) % n));
    T::zip(byte, at, |byte, at| {
        // With n = 8 the byte eight back is the same one, once around.
        if at < back { (byte << 1 | byte >> 7) & 255 } else { byte }
    })
}

impl<const G: usize, const BITS: usize> Blocks<G> for Trellis<BITS> {
    const BITS: u32 = BITS as u32;
    const UNIT: f32 = Self::CODE.unit();

    #[inline(always)]
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
        let n = 4 * G as u32;
        let at = T::map(T::lane(), |lane| lane % n);
        // Parities high, middle, low. Written out: iterators over arrays would put them in local memory.
        let mut parities = [T::splat(0); 3];
        unroll32!(BACK => {
            if BACK <= MAX_MEMORY {
                let byte = coded::<T>(memory, offset, at, BACK as u32, n);
                let tapped = |parity, generator: usize| {
                    if u32::from(Self::CODE.generators[generator]) >> BACK & 1 == 0 {
                        return parity;
                    }
                    T::zip(parity, byte, |a, b| a ^ b)
                };
                parities = [tapped(parities[0], 0), tapped(parities[1], 1), tapped(parities[2], 2)];
            }
        });
        // The planes that follow; those that the code does not have are read as the last one and not used.
        let plain = |plane: u32| load_byte::<T>(memory, offset + n * u32::min(plane, BITS as u32 - 1), at);
        let plain = [plain(1), plain(2), plain(3)];
        let mut levels = [Lane(T::splat(0.0)); G];
        for (g, level) in levels.iter_mut().enumerate() {
            let bit = T::map(T::lane(), |lane| (32 * g as u32 + lane) / n);
            let add = |index, byte, place: u32| {
                let here = T::zip(byte, bit, |byte, bit| byte >> bit & 1);
                T::zip(index, here, |index, here| index | here << place)
            };
            let index = add(add(add(T::splat(0), parities[2], 0), parities[1], 1), parities[0], 2);
            let index = add(index, plain[0], 3);
            let index = if BITS > 2 { add(index, plain[1], 4) } else { index };
            let index = if BITS > 3 { add(index, plain[2], 5) } else { index };
            let slot = T::map(index, |index| index % 32);
            let mut value = shuffle_f32::<T>(T::gather(const { &Self::table(0) }), slot);
            if BITS == 4 {
                let upper = shuffle_f32::<T>(T::gather(const { &Self::table(1) }), slot);
                let both = T::zip(value, upper, |low, high| (low, high));
                value = T::zip(both, index, |(low, high), index| if index < 32 { low } else { high });
            }
            level.0 = value;
        }
        levels
    }
}

//! Byte lanes for the trellis search, NEON: sixteen registers of sixteen states.
//!
//! NEON has no instruction that gathers a bit of every byte. Decisions are therefore kept as byte masks, one
//! byte per state, and shifted into one register, one bit per register. Bit 7 - r of byte i belongs to byte i
//! of the r-th register.

use super::neon::{Neon, neon};
use crate::trellis::{Bytes, DECISIONS, search};
use bytemuck::must_cast as cast;
use core::arch::aarch64::*;

impl<const DOT: bool> Neon<DOT> {
    neon!(
        /// Shifts every byte of `noted` up by one bit. The new bit is set if `a` is less than `b`.
        fn shift_in(self, noted: uint8x16_t, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            vsliq_n_u8::<1>(vcltq_u8(a, b), noted)
        }
    );
}

impl<const DOT: bool> Bytes for Neon<DOT> {
    type B = uint8x16_t;
    type D = [uint8x16_t; 2];
    const WIDTH: usize = 16;
    const PATHS: &'static [&'static [usize]] = &[&[0, 1, 2, 3], &[], &[], &[]];
    const TURNS: [usize; 8] = [0, 1, 0, 2, 0, 3, 0, 0];

    neon!(
        fn splat_byte(self, value: u8) -> uint8x16_t {
            vdupq_n_u8(value)
        }
    );

    #[inline(always)]
    fn read_bytes(self, bytes: &[u8]) -> uint8x16_t {
        cast(bytes.first_chunk().copied().unwrap_or([0; 16]))
    }

    #[inline(always)]
    fn write_bytes(self, v: uint8x16_t, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut::<16>() {
            *bytes = cast(v);
        }
    }

    neon!(
        fn add(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            vqaddq_u8(a, b)
        }
    );

    neon!(
        fn sub(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            vqsubq_u8(a, b)
        }
    );

    neon!(
        fn min(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            vminq_u8(a, b)
        }
    );

    neon!(
        fn smallest(self, v: uint8x16_t) -> uint8x16_t {
            vdupq_n_u8(vminvq_u8(v))
        }
    );

    #[inline(always)]
    fn table(self, row: &[u8; 8]) -> uint8x16_t {
        cast([*row, *row])
    }

    neon!(
        fn pick(self, table: uint8x16_t, index: uint8x16_t) -> uint8x16_t {
            vqtbl1q_u8(table, index)
        }
    );

    neon!(
        fn exchange(self, bit: usize, low: uint8x16_t, high: uint8x16_t) -> (uint8x16_t, uint8x16_t) {
            match bit {
                0 => (vzip1q_u8(low, high), vzip2q_u8(low, high)),
                _ => (low, high),
            }
        }
    );

    #[inline(always)]
    fn undecided(self) -> [uint8x16_t; 2] {
        [cast([0u64; 2]); 2]
    }

    #[inline(always)]
    fn note(
        self,
        mut decisions: [uint8x16_t; 2],
        _: usize,
        upper: bool,
        zero: uint8x16_t,
        one: uint8x16_t,
        _: uint8x16_t,
    ) -> [uint8x16_t; 2] {
        let noted = &mut decisions[usize::from(upper)];
        *noted = self.shift_in(*noted, one, zero);
        decisions
    }

    #[inline(always)]
    fn write(self, decisions: [uint8x16_t; 2], to: &mut [u8; DECISIONS]) {
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

search!(Neon<DOT>, const DOT: bool);

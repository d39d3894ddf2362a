//! NEON: sums of 16 bits. A line is four registers.

use super::neon::{Neon, V, neon};
use crate::shorts::{Shorts, TRANSPOSE};
use bytemuck::must_cast as cast;
use core::arch::aarch64::*;

type Quad = [uint8x16_t; 4];

/// The registers of `a` and `b` by pairs.
#[inline(always)]
fn both(a: Quad, b: Quad, f: impl Fn(uint8x16_t, uint8x16_t) -> uint8x16_t) -> Quad {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

#[target_feature(enable = "neon")]
#[inline]
fn follow<const N: usize>(now: uint8x16_t, before: uint8x16_t) -> uint8x16_t {
    match N {
        1 => vextq_u8::<15>(before, now),
        2 => vextq_u8::<14>(before, now),
        3 => vextq_u8::<13>(before, now),
        4 => vextq_u8::<12>(before, now),
        5 => vextq_u8::<11>(before, now),
        6 => vextq_u8::<10>(before, now),
        7 => vextq_u8::<9>(before, now),
        _ => vextq_u8::<8>(before, now),
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn sums(v: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_s16(vpaddlq_s8(vreinterpretq_s8_u8(v)))
}

/// The sum of each pair of bytes less twice the odd one.
#[target_feature(enable = "neon")]
#[inline]
fn differences(v: uint8x16_t) -> uint8x16_t {
    let odd = vshrq_n_s16::<8>(vreinterpretq_s16_u8(v));
    vreinterpretq_u8_s16(vsubq_s16(vpaddlq_s8(vreinterpretq_s8_u8(v)), vshlq_n_s16::<1>(odd)))
}

#[target_feature(enable = "neon")]
#[inline]
fn add16(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
}

#[target_feature(enable = "neon")]
#[inline]
fn sub16(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u16(vsubq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
}

#[target_feature(enable = "neon")]
#[inline]
fn low_zip(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
}

#[target_feature(enable = "neon")]
#[inline]
fn high_zip(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
}

#[target_feature(enable = "neon")]
#[inline]
fn low_floats(v: uint8x16_t) -> float32x4_t {
    vcvtq_f32_s32(vmovl_s16(vget_low_s16(vreinterpretq_s16_u8(v))))
}

#[target_feature(enable = "neon")]
#[inline]
fn high_floats(v: uint8x16_t) -> float32x4_t {
    vcvtq_f32_s32(vmovl_high_s16(vreinterpretq_s16_u8(v)))
}

impl Shorts for Neon<false> {
    #[inline(always)]
    fn quarters(self, [a, b, c, d]: [&[u8; 16]; 4]) -> Quad {
        [cast(*a), cast(*b), cast(*c), cast(*d)]
    }

    neon!(
        fn follow<const N: usize>(self, now: Quad, before: Quad) -> Quad {
            both(now, before, |now, before| follow::<N>(now, before))
        }
    );

    neon!(
        fn transpose(self, v: Quad) -> Quad {
            let index = cast(TRANSPOSE);
            both(v, v, |v, _| vqtbl1q_u8(v, index))
        }
    );

    neon!(
        fn neighbours(self, v: Quad) -> [Quad; 2] {
            [both(v, v, |v, _| sums(v)), both(v, v, |v, _| differences(v))]
        }
    );

    neon!(
        fn butterfly16(self, a: Quad, b: Quad) -> [Quad; 2] {
            [both(a, b, |a, b| add16(a, b)), both(a, b, |a, b| sub16(a, b))]
        }
    );

    neon!(
        fn zip16(self, a: Quad, b: Quad) -> [Quad; 2] {
            [both(a, b, |a, b| low_zip(a, b)), both(a, b, |a, b| high_zip(a, b))]
        }
    );

    neon!(
        fn floats16(self, v: Quad) -> V {
            let [a, b, c, d] = v;
            V::from_registers([
                low_floats(a),
                high_floats(a),
                low_floats(b),
                high_floats(b),
                low_floats(c),
                high_floats(c),
                low_floats(d),
                high_floats(d),
            ])
        }
    );

    #[inline(always)]
    fn store_eights(self, v: V, [a, b, c, d]: [&mut [f32; 8]; 4]) {
        let [a0, a1, b0, b1, c0, c1, d0, d1] = v.registers();
        (*a, *b, *c, *d) = (cast([a0, a1]), cast([b0, b1]), cast([c0, c1]), cast([d0, d1]));
    }
}

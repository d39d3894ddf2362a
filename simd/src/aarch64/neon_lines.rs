//! NEON: a line is four registers. `TBL` gives 0 for an index of 16 or more, so codes are masked.
//! Products of signed bytes: `SDOT` where it exists, else widening multiplies whose pairwise sums
//! of two products, at most 2 * 127 * 127, fit 16 bits.

use super::neon::{Neon, V, neon};
use crate::lines::{Line, Machine, pair_index};
use core::arch::aarch64::*;
use tqkv_core::lanes::Isa;

type Quad = [uint8x16_t; 4];
type Sum = [int32x4_t; 4];

#[inline(always)]
fn shift<const BITS: usize, const FIELD: usize>(v: uint8x16_t) -> uint8x16_t {
    neon!(match BITS * FIELD {
        0 => v,
        1 => vshrq_n_u8::<1>(v),
        2 => vshrq_n_u8::<2>(v),
        3 => vshrq_n_u8::<3>(v),
        4 => vshrq_n_u8::<4>(v),
        5 => vshrq_n_u8::<5>(v),
        6 => vshrq_n_u8::<6>(v),
        _ => vshrq_n_u8::<7>(v),
    })
}

#[inline(always)]
fn look_up(code: uint8x16_t, mask: u8, table: uint8x16_t) -> uint8x16_t {
    neon!(vqtbl1q_u8(table, vandq_u8(code, vdupq_n_u8(mask))))
}

/// Levels of 3-bit code `FIELD` of the eight in a byte column.
#[inline(always)]
fn look_up3<const FIELD: usize>([a, b, c]: [uint8x16_t; 3], table: uint8x16_t) -> uint8x16_t {
    neon!({
        let code = match FIELD {
            0 => a,
            1 => vshrq_n_u8::<3>(a),
            2 => b,
            3 => vshrq_n_u8::<3>(b),
            4 => c,
            5 => vshrq_n_u8::<3>(c),
            6 => vorrq_u8(vshrq_n_u8::<6>(a), vandq_u8(vshrq_n_u8::<4>(c), vdupq_n_u8(4))),
            _ => vorrq_u8(vshrq_n_u8::<6>(b), vandq_u8(vshrq_n_u8::<5>(c), vdupq_n_u8(4))),
        };
        look_up(code, 7, table)
    })
}

/// Adds the products of four signed bytes at a time.
#[inline(always)]
fn multiply<const DOT: bool>(sum: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    if DOT {
        return multiply_dot(sum, a, b);
    }
    neon!({
        let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        let high = vmull_high_s8(a, b);
        vpadalq_s16(sum, vpaddq_s16(low, high))
    })
}

/// The same in one instruction, whose intrinsic is not stable yet.
#[inline(always)]
fn multiply_dot(sum: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: only reached through a `Neon<true>` token, which proves the instruction; it reads and
    // writes registers only.
    unsafe {
        core::arch::asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

#[inline(always)]
fn each(sum: Sum, a: Quad, b: Quad, f: impl Fn(int32x4_t, uint8x16_t, uint8x16_t) -> int32x4_t) -> Sum {
    [f(sum[0], a[0], b[0]), f(sum[1], a[1], b[1]), f(sum[2], a[2], b[2]), f(sum[3], a[3], b[3])]
}

/// Four halves to f32, exactly.
#[inline(always)]
fn widen4(halves: &[u16; 4]) -> float32x4_t {
    neon!(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves.as_ptr()))))
}

/// Levels of the low `BITS` bits.
#[inline(always)]
fn look_up_wide<const BITS: usize>(index: uint8x16_t, levels: uint8x16x4_t) -> uint8x16_t {
    neon!({
        let index = vandq_u8(index, vdupq_n_u8((1 << BITS) - 1));
        match BITS {
            4 => vqtbl1q_u8(levels.0, index),
            5 => vqtbl2q_u8(uint8x16x2_t(levels.0, levels.1), index),
            _ => vqtbl4q_u8(levels, index),
        }
    })
}

/// `f` on the registers of two lines.
#[inline(always)]
fn both(a: Quad, b: Quad, f: impl Fn(uint8x16_t, uint8x16_t) -> uint8x16_t) -> Quad {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl<const DOT: bool> Machine for Neon<DOT> {
    type Line = Quad;
    type Sum = Sum;
    type Table = uint8x16_t;
    type Levels = uint8x16x4_t;

    const HEADS: usize = 4;
    const FIELDS: usize = 2;
    const SUMS: usize = 2;
    const KEY_BIAS: i32 = 0;

    #[inline(always)]
    fn line(self, line: &Line) -> Quad {
        let p = line.0.as_ptr();
        neon!([vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))])
    }

    #[inline(always)]
    fn prefetch(self, line: &Line) {
        // SAFETY: a hint that reads no memory the program can see.
        unsafe {
            core::arch::asm!(
                "prfm pldl1keep, [{line}]",
                line = in(reg) line.0.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
        }
    }

    #[inline(always)]
    fn value_table(self, levels: &[i8; 16]) -> uint8x16_t {
        neon!(vreinterpretq_u8_s8(vld1q_s8(levels.as_ptr())))
    }

    #[inline(always)]
    fn key_table(self, levels: &[i8; 16]) -> uint8x16_t {
        self.value_table(levels)
    }

    #[inline(always)]
    fn level<const BITS: usize, const FIELD: usize>(self, line: Quad, table: uint8x16_t) -> Quad {
        let [a, b, c, d] = line;
        let mask = (1u16 << BITS) as u8 - 1;
        [
            look_up(shift::<BITS, FIELD>(a), mask, table),
            look_up(shift::<BITS, FIELD>(b), mask, table),
            look_up(shift::<BITS, FIELD>(c), mask, table),
            look_up(shift::<BITS, FIELD>(d), mask, table),
        ]
    }

    #[inline(always)]
    fn level3<const FIELD: usize>(self, lines: [Quad; 3], table: uint8x16_t) -> Quad {
        let [a, b, c] = lines;
        [
            look_up3::<FIELD>([a[0], b[0], c[0]], table),
            look_up3::<FIELD>([a[1], b[1], c[1]], table),
            look_up3::<FIELD>([a[2], b[2], c[2]], table),
            look_up3::<FIELD>([a[3], b[3], c[3]], table),
        ]
    }

    #[inline(always)]
    fn key_bytes(self, line: Quad) -> Quad {
        line
    }

    #[inline(always)]
    fn value_levels(self, levels: &[i8; 64]) -> uint8x16x4_t {
        let p = levels.as_ptr().cast::<u8>();
        neon!(uint8x16x4_t(vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))))
    }

    #[inline(always)]
    fn key_levels(self, levels: &[i8; 64]) -> uint8x16x4_t {
        self.value_levels(levels)
    }

    #[inline(always)]
    fn look_up<const BITS: usize>(self, index: Quad, levels: uint8x16x4_t) -> Quad {
        index.map(|index| look_up_wide::<BITS>(index, levels))
    }

    #[inline(always)]
    fn xor(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| neon!(veorq_u8(a, b)))
    }

    #[inline(always)]
    fn and(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| neon!(vandq_u8(a, b)))
    }

    #[inline(always)]
    fn merge<const MASK: u8>(self, a: Quad, b: Quad) -> Quad {
        both(a, b, |a, b| neon!(vbslq_u8(vdupq_n_u8(MASK), a, b)))
    }

    #[inline(always)]
    fn up<const N: u32>(self, v: Quad) -> Quad {
        v.map(|v| neon!(vshlq_u8(v, vdupq_n_s8(N as i8))))
    }

    #[inline(always)]
    fn down<const N: u32>(self, v: Quad) -> Quad {
        v.map(|v| neon!(vshlq_u8(v, vdupq_n_s8(-(N as i8)))))
    }

    #[inline(always)]
    fn rotate(self, v: Quad) -> Quad {
        v.map(|v| neon!(vsliq_n_u8::<1>(vshrq_n_u8::<7>(v), v)))
    }

    #[inline(always)]
    fn follow_bytes<const N: usize>(self, now: Quad, before: Quad) -> Quad {
        both(now, before, |now, before| {
            neon!({
                let (now, before) = (vreinterpretq_u32_u8(now), vreinterpretq_u32_u8(before));
                vreinterpretq_u8_u32(match N {
                    1 => vsliq_n_u32::<8>(vshrq_n_u32::<24>(before), now),
                    2 => vsliq_n_u32::<16>(vshrq_n_u32::<16>(before), now),
                    _ => vsliq_n_u32::<24>(vshrq_n_u32::<8>(before), now),
                })
            })
        })
    }

    #[inline(always)]
    fn follow_dwords<const N: usize>(self, now: Quad, before: Quad) -> Quad {
        both(now, before, |now, before| {
            neon!(match N {
                1 => vextq_u8::<12>(before, now),
                2 => vextq_u8::<8>(before, now),
                _ => vextq_u8::<4>(before, now),
            })
        })
    }

    #[inline(always)]
    fn pair_bytes<const HALF: usize>(self, even: Quad, odd: Quad) -> Quad {
        let index = const { pair_index(HALF) };
        both(even, odd, |even, odd| neon!(vqtbl2q_u8(uint8x16x2_t(even, odd), vld1q_u8(index.as_ptr()))))
    }

    #[inline(always)]
    fn pair_dwords<const HALF: usize>(self, even: Quad, odd: Quad) -> Quad {
        both(even, odd, |even, odd| {
            neon!({
                let (even, odd) = (vreinterpretq_u32_u8(even), vreinterpretq_u32_u8(odd));
                vreinterpretq_u8_u32(match HALF {
                    0 => vzip1q_u32(even, odd),
                    _ => vzip2q_u32(even, odd),
                })
            })
        })
    }

    #[inline(always)]
    fn zero(self) -> Sum {
        [neon!(vdupq_n_s32(0)); 4]
    }

    #[inline(always)]
    fn add(self, a: Sum, b: Sum) -> Sum {
        neon!([vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1]), vaddq_s32(a[2], b[2]), vaddq_s32(a[3], b[3])])
    }

    #[inline(always)]
    fn key_dot(self, sum: Sum, levels: Quad, query: u32) -> Sum {
        each(sum, levels, self.splat_weights(query), multiply::<DOT>)
    }

    #[inline(always)]
    fn weights(self, weights: &[u32; 16]) -> Quad {
        let p = weights.as_ptr();
        neon!([
            vreinterpretq_u8_u32(vld1q_u32(p)),
            vreinterpretq_u8_u32(vld1q_u32(p.add(4))),
            vreinterpretq_u8_u32(vld1q_u32(p.add(8))),
            vreinterpretq_u8_u32(vld1q_u32(p.add(12)))
        ])
    }

    #[inline(always)]
    fn splat_weights(self, weights: u32) -> Quad {
        [neon!(vreinterpretq_u8_u32(vdupq_n_u32(weights))); 4]
    }

    #[inline(always)]
    fn value_dot(self, sum: Sum, levels: Quad, weights: Quad) -> Sum {
        each(sum, levels, weights, multiply::<DOT>)
    }

    #[inline(always)]
    fn lanes(self, sum: Sum) -> [i32; 16] {
        let mut out = [0; 16];
        for (four, sum) in out.as_chunks_mut::<4>().0.iter_mut().zip(sum) {
            neon!(vst1q_s32(four.as_mut_ptr(), sum));
        }
        out
    }

    #[inline(always)]
    fn widen16(self, halves: &[u16; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (to, four) in out.as_chunks_mut::<4>().0.iter_mut().zip(halves.as_chunks::<4>().0) {
            neon!(vst1q_f32(to.as_mut_ptr(), widen4(four)));
        }
        out
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; 32]) -> V {
        let mut out = self.splat(0.0).registers();
        for (to, four) in out.iter_mut().zip(halves.as_chunks::<4>().0) {
            *to = widen4(four);
        }
        V::from_registers(out)
    }

    #[inline(always)]
    fn fma(self, acc: V, a: V, b: V) -> V {
        let (mut out, a, b) = (acc.registers(), a.registers(), b.registers());
        for (i, sum) in out.iter_mut().enumerate() {
            *sum = neon!(vfmaq_f32(*sum, a[i], b[i]));
        }
        V::from_registers(out)
    }

    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        v.map(tqkv_core::lanes::Lanes::sum)
    }
}

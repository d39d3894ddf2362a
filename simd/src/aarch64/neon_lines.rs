//! NEON: a line is four registers. `TBL` gives 0 for an index of 16 or more, so codes are masked. Products
//! use `SDOT` and `UDOT` if they exist, else widening multiplies. Sums of two products of signed bytes, at
//! most 2 * 127 * 127, fit 16 bits. Weights of values are unsigned bytes, so their levels have a bias of 128.

use super::neon::{Neon, V, each as each8, neon};
use crate::lines::{FRACTION, Line, Machine, pair_index};
use bytemuck::{must_cast as cast, must_cast_mut as parts_mut, must_cast_ref as parts};
use core::arch::aarch64::*;

type Quad = [uint8x16_t; 4];
type Sum = [int32x4_t; 4];

#[target_feature(enable = "neon")]
#[inline]
fn shift<const BITS: usize, const FIELD: usize>(v: uint8x16_t) -> uint8x16_t {
    match BITS * FIELD {
        0 => v,
        1 => vshrq_n_u8::<1>(v),
        2 => vshrq_n_u8::<2>(v),
        3 => vshrq_n_u8::<3>(v),
        4 => vshrq_n_u8::<4>(v),
        5 => vshrq_n_u8::<5>(v),
        6 => vshrq_n_u8::<6>(v),
        _ => vshrq_n_u8::<7>(v),
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn look_up(code: uint8x16_t, mask: u8, table: uint8x16_t) -> uint8x16_t {
    vqtbl1q_u8(table, vandq_u8(code, vdupq_n_u8(mask)))
}

/// Levels of the 3-bit code `FIELD` of the eight codes in a byte column.
#[target_feature(enable = "neon")]
#[inline]
fn look_up3<const FIELD: usize>([a, b, c]: [uint8x16_t; 3], table: uint8x16_t) -> uint8x16_t {
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
}

/// Adds the products of four signed bytes at a time.
#[target_feature(enable = "neon")]
#[inline]
fn multiply(sum: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
    let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    let high = vmull_high_s8(a, b);
    vpadalq_s16(sum, vpaddq_s16(low, high))
}

/// Adds the products of four unsigned bytes at a time.
#[target_feature(enable = "neon")]
#[inline]
fn multiply_unsigned(sum: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    // Sums of two products may need 17 bits.
    let low = vpaddlq_u16(vmull_u8(vget_low_u8(a), vget_low_u8(b)));
    let high = vpaddlq_u16(vmull_high_u8(a, b));
    vaddq_s32(sum, vreinterpretq_s32_u32(vpaddq_u32(low, high)))
}

/// Products of four bytes at a time on all registers of a line. An instruction does them, whose intrinsic is
/// not stable yet.
macro_rules! dots {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[target_feature(enable = "neon,dotprod")]
        #[inline]
        fn $name(sum: Sum, a: Quad, b: Quad) -> Sum {
            each(sum, a, b, |mut sum, a, b| {
                // SAFETY: this function has the instruction; it reads and writes registers only.
                unsafe {
                    core::arch::asm!(
                        ".arch_extension dotprod",
                        concat!($instruction, " {sum:v}.4s, {a:v}.16b, {b:v}.16b"),
                        sum = inout(vreg) sum,
                        a = in(vreg) a,
                        b = in(vreg) b,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
                sum
            })
        }
    };
}

dots!(
    /// [`multiply`] with `SDOT`.
    multiply_dots,
    "sdot"
);
dots!(
    /// [`multiply_unsigned`] with `UDOT`.
    multiply_unsigned_dots,
    "udot"
);

#[inline(always)]
fn each(sum: Sum, a: Quad, b: Quad, f: impl Fn(int32x4_t, uint8x16_t, uint8x16_t) -> int32x4_t) -> Sum {
    [f(sum[0], a[0], b[0]), f(sum[1], a[1], b[1]), f(sum[2], a[2], b[2]), f(sum[3], a[3], b[3])]
}

/// Widens four halves to f32, exactly.
#[target_feature(enable = "neon")]
#[inline]
fn widen4(halves: [u16; 4]) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(cast(halves)))
}

/// Applies `f` to the registers of a line.
#[inline(always)]
fn map(v: Quad, f: impl Fn(uint8x16_t) -> uint8x16_t) -> Quad {
    [f(v[0]), f(v[1]), f(v[2]), f(v[3])]
}

/// Applies `f` to the registers of two lines.
#[inline(always)]
fn both(a: Quad, b: Quad, f: impl Fn(uint8x16_t, uint8x16_t) -> uint8x16_t) -> Quad {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl<const DOT: bool> Neon<DOT> {
    neon!(
        /// [`multiply`] on all registers of a line.
        fn multiply_widely(self, sum: Sum, a: Quad, b: Quad) -> Sum {
            each(sum, a, b, |sum, a, b| multiply(sum, a, b))
        }
    );

    neon!(
        /// [`multiply_unsigned`] on all registers of a line.
        fn multiply_unsigned_widely(self, sum: Sum, a: Quad, b: Quad) -> Sum {
            each(sum, a, b, |sum, a, b| multiply_unsigned(sum, a, b))
        }
    );
}

impl<const DOT: bool> Machine for Neon<DOT> {
    type Blocks = Neon<false>;
    type Line = Quad;
    type Sum = Sum;
    type Table = uint8x16_t;
    type Levels = uint8x16x4_t;

    const HEADS: usize = 4;
    const CHAINS: usize = 4;
    const FIELDS: usize = 2;
    const SUMS: usize = 2;
    const BYTE_WEIGHTS: bool = true;
    const VALUE_BIAS: i32 = 128;
    const KEY_BIAS: i32 = 0;

    #[inline(always)]
    fn of_blocks(self) -> Neon<false> {
        self.common()
    }

    #[inline(always)]
    fn line(self, line: &Line) -> Quad {
        let [a, b, c, d]: &[[u8; 16]; 4] = parts(&line.0);
        [cast(*a), cast(*b), cast(*c), cast(*d)]
    }

    #[inline(always)]
    fn line_bytes(self, line: Quad) -> [u8; 64] {
        cast(line)
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
        cast(*levels)
    }

    #[inline(always)]
    fn key_table(self, levels: &[i8; 16]) -> uint8x16_t {
        self.value_table(levels)
    }

    neon!(
        fn level<const BITS: usize, const FIELD: usize>(self, line: Quad, table: uint8x16_t) -> Quad {
            let mask = (1u16 << BITS) as u8 - 1;
            map(line, |v| look_up(shift::<BITS, FIELD>(v), mask, table))
        }
    );

    neon!(
        fn level3<const FIELD: usize>(self, lines: [Quad; 3], table: uint8x16_t) -> Quad {
            let [a, b, c] = lines;
            [
                look_up3::<FIELD>([a[0], b[0], c[0]], table),
                look_up3::<FIELD>([a[1], b[1], c[1]], table),
                look_up3::<FIELD>([a[2], b[2], c[2]], table),
                look_up3::<FIELD>([a[3], b[3], c[3]], table),
            ]
        }
    );

    #[inline(always)]
    fn key_bytes(self, line: Quad) -> Quad {
        line
    }

    #[inline(always)]
    fn value_levels(self, levels: &[i8; 64]) -> uint8x16x4_t {
        let [a, b, c, d]: &[[i8; 16]; 4] = parts(levels);
        uint8x16x4_t(cast(*a), cast(*b), cast(*c), cast(*d))
    }

    #[inline(always)]
    fn key_levels(self, levels: &[i8; 64]) -> uint8x16x4_t {
        self.value_levels(levels)
    }

    neon!(
        fn look_up<const BITS: usize>(self, index: Quad, levels: uint8x16x4_t) -> Quad {
            map(index, |index| {
                let index = vandq_u8(index, vdupq_n_u8((1 << BITS) - 1));
                match BITS {
                    4 => vqtbl1q_u8(levels.0, index),
                    5 => vqtbl2q_u8(uint8x16x2_t(levels.0, levels.1), index),
                    _ => vqtbl4q_u8(levels, index),
                }
            })
        }
    );

    neon!(
        fn xor(self, a: Quad, b: Quad) -> Quad {
            both(a, b, |a, b| veorq_u8(a, b))
        }
    );

    neon!(
        fn and(self, a: Quad, b: Quad) -> Quad {
            both(a, b, |a, b| vandq_u8(a, b))
        }
    );

    neon!(
        fn merge<const MASK: u8>(self, a: Quad, b: Quad) -> Quad {
            both(a, b, |a, b| vbslq_u8(vdupq_n_u8(MASK), a, b))
        }
    );

    neon!(
        fn up<const N: u32>(self, v: Quad) -> Quad {
            map(v, |v| vshlq_u8(v, vdupq_n_s8(N as i8)))
        }
    );

    neon!(
        fn down<const N: u32>(self, v: Quad) -> Quad {
            map(v, |v| vshlq_u8(v, vdupq_n_s8(-(N as i8))))
        }
    );

    neon!(
        fn rotate(self, v: Quad) -> Quad {
            map(v, |v| vsliq_n_u8::<1>(vshrq_n_u8::<7>(v), v))
        }
    );

    neon!(
        fn follow_bytes<const N: usize>(self, now: Quad, before: Quad) -> Quad {
            both(now, before, |now, before| {
                let (now, before) = (vreinterpretq_u32_u8(now), vreinterpretq_u32_u8(before));
                vreinterpretq_u8_u32(match N {
                    1 => vsliq_n_u32::<8>(vshrq_n_u32::<24>(before), now),
                    2 => vsliq_n_u32::<16>(vshrq_n_u32::<16>(before), now),
                    _ => vsliq_n_u32::<24>(vshrq_n_u32::<8>(before), now),
                })
            })
        }
    );

    neon!(
        fn follow_dwords<const N: usize>(self, now: Quad, before: Quad) -> Quad {
            both(now, before, |now, before| match N {
                1 => vextq_u8::<12>(before, now),
                2 => vextq_u8::<8>(before, now),
                _ => vextq_u8::<4>(before, now),
            })
        }
    );

    neon!(
        fn pair_bytes<const HALF: usize>(self, even: Quad, odd: Quad) -> Quad {
            let index = cast(const { pair_index(HALF) });
            both(even, odd, |even, odd| vqtbl2q_u8(uint8x16x2_t(even, odd), index))
        }
    );

    neon!(
        fn pair_dwords<const HALF: usize>(self, even: Quad, odd: Quad) -> Quad {
            both(even, odd, |even, odd| {
                let (even, odd) = (vreinterpretq_u32_u8(even), vreinterpretq_u32_u8(odd));
                vreinterpretq_u8_u32(match HALF {
                    0 => vzip1q_u32(even, odd),
                    _ => vzip2q_u32(even, odd),
                })
            })
        }
    );

    #[inline(always)]
    fn zero(self) -> Sum {
        [cast([0u64; 2]); 4]
    }

    neon!(
        fn all(self, sum: i32) -> Sum {
            [vdupq_n_s32(sum); 4]
        }
    );

    #[inline(always)]
    fn sums(self, lanes: &[i32; 16]) -> Sum {
        let [a, b, c, d]: &[[i32; 4]; 4] = parts(lanes);
        [cast(*a), cast(*b), cast(*c), cast(*d)]
    }

    neon!(
        fn add(self, a: Sum, b: Sum) -> Sum {
            [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1]), vaddq_s32(a[2], b[2]), vaddq_s32(a[3], b[3])]
        }
    );

    #[inline(always)]
    fn key_dot(self, sum: Sum, levels: Quad, query: u32) -> Sum {
        self.wide_dot(sum, levels, self.splat_weights(query))
    }

    #[inline(always)]
    fn weights(self, weights: &[u32; 16]) -> Quad {
        let [a, b, c, d]: &[[u32; 4]; 4] = parts(weights);
        [cast(*a), cast(*b), cast(*c), cast(*d)]
    }

    neon!(
        fn splat_weights(self, weights: u32) -> Quad {
            [vreinterpretq_u8_u32(vdupq_n_u32(weights)); 4]
        }
    );

    neon!(
        fn write_halves(self, weights: V, halves: &mut [[u8; 32]; 2]) {
            let [high, low] = halves;
            let parts = high.as_chunks_mut::<8>().0.iter_mut().zip(low.as_chunks_mut::<8>().0);
            for (&[a, b], (high, low)) in weights.registers().as_chunks::<2>().0.iter().zip(parts) {
                let (a, b) = (vmovn_u32(vcvtnq_u32_f32(a)), vmovn_u32(vcvtnq_u32_f32(b)));
                let weights = vcombine_u16(a, b);
                *high = cast(vshrn_n_u16::<7>(weights));
                *low = cast(vmovn_u16(vandq_u16(weights, vdupq_n_u16(127))));
            }
        }
    );

    neon!(
        fn write_bytes(self, weights: V, sums: [Sum; 2], bytes: &mut [u8; 32]) -> [Sum; 2] {
            const SHIFT: i32 = FRACTION.cast_signed();
            let (pairs, mut sums) = (weights.registers(), sums);
            let pairs = pairs.as_chunks::<2>().0.iter().zip(sums.as_flattened_mut().as_chunks_mut::<2>().0);
            for ((weights, sums), bytes) in pairs.zip(bytes.as_chunks_mut::<8>().0) {
                let mut steps = [vdup_n_u16(0); 2];
                for ((step, &weights), sum) in steps.iter_mut().zip(weights).zip(sums) {
                    let before = vshrq_n_s32::<SHIFT>(*sum);
                    *sum = vaddq_s32(*sum, vcvtnq_s32_f32(weights));
                    let after = vshrq_n_s32::<SHIFT>(*sum);
                    *step = vmovn_u32(vreinterpretq_u32_s32(vsubq_s32(after, before)));
                }
                *bytes = cast(vmovn_u16(vcombine_u16(steps[0], steps[1])));
            }
            sums
        }
    );

    #[inline(always)]
    fn value_dot(self, sum: Sum, levels: Quad, weights: Quad) -> Sum {
        if DOT {
            // SAFETY: a token with `DOT` proves the dot product instructions.
            unsafe { multiply_unsigned_dots(sum, levels, weights) }
        } else {
            self.multiply_unsigned_widely(sum, levels, weights)
        }
    }

    #[inline(always)]
    fn wide_dot(self, sum: Sum, levels: Quad, weights: Quad) -> Sum {
        if DOT {
            // SAFETY: a token with `DOT` proves the dot product instructions.
            unsafe { multiply_dots(sum, levels, weights) }
        } else {
            self.multiply_widely(sum, levels, weights)
        }
    }

    #[inline(always)]
    fn lanes(self, sum: Sum) -> [i32; 16] {
        let mut out = [0; 16];
        for (to, v) in parts_mut::<_, [[i32; 4]; 4]>(&mut out).iter_mut().zip(sum) {
            *to = cast(v);
        }
        out
    }

    neon!(
        fn floats(self, sums: [Sum; 2]) -> V {
            let [[a, b, c, d], [e, f, g, h]] = sums;
            V::from_registers(each8([a, b, c, d, e, f, g, h], |sum| vcvtq_f32_s32(sum)))
        }
    );

    neon!(
        fn widen16(self, halves: &[u16; 16]) -> [f32; 16] {
            let mut out = [0.0; 16];
            let halves: &[[u16; 4]; 4] = parts(halves);
            for (to, four) in parts_mut::<_, [[f32; 4]; 4]>(&mut out).iter_mut().zip(halves) {
                *to = cast(widen4(*four));
            }
            out
        }
    );

    neon!(
        fn load_halves(self, halves: &[u16; 32]) -> V {
            V::from_registers(each8(*parts::<_, [[u16; 4]; 8]>(halves), |four| widen4(four)))
        }
    );

    neon!(
        fn fma(self, acc: V, a: V, b: V) -> V {
            let (mut out, a, b) = (acc.registers(), a.registers(), b.registers());
            for (i, sum) in out.iter_mut().enumerate() {
                *sum = vfmaq_f32(*sum, a[i], b[i]);
            }
            V::from_registers(out)
        }
    );

    neon!(
        fn larger(self, a: V, b: V) -> V {
            let (mut out, b) = (a.registers(), b.registers());
            for (out, b) in out.iter_mut().zip(b) {
                *out = vmaxq_f32(*out, b);
            }
            V::from_registers(out)
        }
    );

    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        v.map(tqkv_core::unstable::machine::Lanes::sum)
    }
}

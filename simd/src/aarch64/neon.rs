//! NEON (every AArch64 processor), and NEON with the dot product: 32 lanes in eight registers.
//!
//! Equal to `Portable` to the bit: the same IEEE operations on the same operands, none of them fused. The two
//! tokens share everything except the integer dot products of the page kernels.

use bytemuck::{must_cast as cast, must_cast_mut as parts_mut, must_cast_ref as parts};
use core::arch::aarch64::*;
use core::ops::{Add, Mul, Sub};
use tqkv_core::unstable::machine::{Isa, Lanes, Memory};
use tqkv_core::unstable::machine::{spread, squeeze};

/// Proof that the processor has NEON, and with `DOT` the dot product instructions.
#[derive(Clone, Copy, Debug)]
pub struct Neon<const DOT: bool>(());

impl<const DOT: bool> Neon<DOT> {
    /// The token, if the processor has the features.
    #[cfg(feature = "std")]
    pub fn new() -> Option<Self> {
        let all = std::arch::is_aarch64_feature_detected!("neon")
            && (!DOT || std::arch::is_aarch64_feature_detected!("dotprod"));
        // SAFETY: all features that the token stands for were just detected.
        all.then(|| unsafe { Self::assume_supported() })
    }

    /// The token, without a check.
    ///
    /// # Safety
    /// The processor has NEON, and with `DOT` the dot product instructions (FEAT_DotProd).
    pub const unsafe fn assume_supported() -> Self {
        Self(())
    }

    /// The token of the features that all of these processors have.
    #[inline(always)]
    pub(super) fn common(self) -> Neon<false> {
        Neon(())
    }
}

/// [`crate::method::method!`] with the features of [`Neon`].
macro_rules! neon {
    ($($method:tt)*) => {
        $crate::method::method! {
            "neon",
            $($method)*
        }
    };
}

pub(super) use neon;

/// 32 lanes of `f32`.
#[derive(Clone, Copy, Debug)]
pub struct V([float32x4_t; 8]);

impl V {
    #[target_feature(enable = "neon")]
    #[inline]
    pub(super) fn from_registers(registers: [float32x4_t; 8]) -> Self {
        Self(registers)
    }

    #[inline(always)]
    pub(super) fn registers(self) -> [float32x4_t; 8] {
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
    fn zip(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        let mut out = self;
        for (a, b) in out.0.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        out
    }

    /// The canonical tree down to four lanes: 16, 8, 4.
    #[inline(always)]
    fn fold(self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> float32x4_t {
        let v = self.0;
        let eight = [f(v[0], v[4]), f(v[1], v[5]), f(v[2], v[6]), f(v[3], v[7])];
        f(f(eight[0], eight[2]), f(eight[1], eight[3]))
    }
}

impl Add for V {
    type Output = Self;
    neon!(
        fn add(v: V, other: V) -> V {
            v.zip(other, |a, b| vaddq_f32(a, b))
        }
    );
}

impl Sub for V {
    type Output = Self;
    neon!(
        fn sub(v: V, other: V) -> V {
            v.zip(other, |a, b| vsubq_f32(a, b))
        }
    );
}

impl Mul for V {
    type Output = Self;
    neon!(
        fn mul(v: V, other: V) -> V {
            v.zip(other, |a, b| vmulq_f32(a, b))
        }
    );
}

impl Lanes for V {
    neon!(
        fn butterfly<const H: usize>(v: V) -> V {
            if H >= 4 {
                let mut out = v;
                for i in 0..8 {
                    let (a, b) = (v.0[i & !(H / 4)], v.0[i | (H / 4)]);
                    out.0[i] = if i & (H / 4) == 0 { vaddq_f32(a, b) } else { vsubq_f32(a, b) };
                }
                return out;
            }
            // swapped + (+-v): negating is exact.
            let signs: [u32; 4] = if H == 2 { [0, 0, 1 << 31, 1 << 31] } else { [0, 1 << 31, 0, 1 << 31] };
            V(each(v.0, |v| {
                let swapped = if H == 2 { vextq_f32::<2>(v, v) } else { vrev64q_f32(v) };
                let signed = veorq_u32(vreinterpretq_u32_f32(v), cast(signs));
                vaddq_f32(swapped, vreinterpretq_f32_u32(signed))
            }))
        }
    );

    neon!(
        fn flip(v: V, mask: u32) -> V {
            let mut out = v;
            for (k, v) in out.0.iter_mut().enumerate() {
                let bits = vshlq_u32(vdupq_n_u32(mask >> (4 * k)), cast([31i32, 30, 29, 28]));
                let sign = vandq_u32(bits, vdupq_n_u32(1 << 31));
                *v = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(*v), sign));
            }
            out
        }
    );

    neon!(
        fn max_abs(v: V, other: V) -> V {
            v.zip(other, |a, b| vmaxq_f32(vabsq_f32(a), vabsq_f32(b)))
        }
    );

    neon!(
        fn sum(v: V) -> f32 {
            let four = v.fold(|a, b| vaddq_f32(a, b));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    );

    neon!(
        fn max(v: V) -> f32 {
            let four = v.fold(|a, b| vmaxq_f32(a, b));
            let two = vmax_f32(vget_low_f32(four), vget_high_f32(four));
            f32::max(vget_lane_f32::<0>(two), vget_lane_f32::<1>(two))
        }
    );
}

/// Packs eight codes into one dense word.
#[target_feature(enable = "neon")]
#[inline]
fn pack8<const BITS: usize>(a: uint32x4_t, b: uint32x4_t) -> u64 {
    let halves = vcombine_u16(vmovn_u32(a), vmovn_u32(b));
    squeeze::<BITS>(vget_lane_u64::<0>(vreinterpret_u64_u8(vmovn_u16(halves))))
}

impl<const DOT: bool> Isa for Neon<DOT> {
    type V = V;
    type C = [uint32x4_t; 8];

    neon!(
        fn splat(self, value: f32) -> V {
            V([vdupq_n_f32(value); 8])
        }
    );

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> V {
        V(each(*parts::<_, [[f32; 4]; 8]>(src), cast))
    }

    neon!(
        fn sqrt(self, value: f32) -> f32 {
            vgetq_lane_f32::<0>(vsqrtq_f32(vdupq_n_f32(value)))
        }
    );

    neon!(
        fn quantise<const BITS: usize>(self, v: V, boundaries: &[f32; 32]) -> [uint32x4_t; 8] {
            let mut counts = [vdupq_n_u32(0); 8];
            for &boundary in &boundaries[..(1 << BITS) - 1] {
                let boundary = vdupq_n_f32(boundary);
                for (count, &v) in counts.iter_mut().zip(&v.0) {
                    *count = vsubq_u32(*count, vcgeq_f32(v, boundary));
                }
            }
            counts
        }
    );

    neon!(
        fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: [uint32x4_t; 8]) -> V {
            let [a, b, c, d, e, f, g, h]: &[[f32; 4]; 8] = parts(table);
            let low = uint8x16x4_t(cast(*a), cast(*b), cast(*c), cast(*d));
            let high = uint8x16x4_t(cast(*e), cast(*f), cast(*g), cast(*h));
            V(each(codes, |code| {
                // Byte k of lane i looks up byte 4 code + k.
                let bytes = vmlaq_u32(vdupq_n_u32(0x0302_0100), code, vdupq_n_u32(0x0404_0404));
                let bytes = vreinterpretq_u8_u32(bytes);
                let mut out = vqtbl4q_u8(low, bytes);
                if BITS > 4 {
                    out = vqtbx4q_u8(out, high, vsubq_u8(bytes, vdupq_n_u8(64)));
                }
                vreinterpretq_f32_u8(out)
            }))
        }
    );

    neon!(
        fn round_i8(self, v: V) -> [uint32x4_t; 8] {
            each(v.0, |v| {
                let bounded = vminq_f32(vmaxq_f32(v, vdupq_n_f32(-127.0)), vdupq_n_f32(127.0));
                vandq_u32(vreinterpretq_u32_s32(vcvtnq_s32_f32(bounded)), vdupq_n_u32(255))
            })
        }
    );

    neon!(
        fn widen_i8(self, codes: [uint32x4_t; 8]) -> V {
            V(each(codes, |code| {
                vcvtq_f32_s32(vshrq_n_s32::<24>(vshlq_n_s32::<24>(vreinterpretq_s32_u32(code))))
            }))
        }
    );
}

impl<const DOT: bool> Memory for Neon<DOT> {
    #[inline(always)]
    fn look_up_levels(self, indices: &mut [u8], levels: &[i8; 64]) {
        crate::lines::look_up_levels(self, indices, levels);
    }

    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce(Self) -> R) -> R {
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn enter<T, R>(isa: T, work: impl FnOnce(T) -> R) -> R {
            work(isa)
        }
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        fn enter_dot<T, R>(isa: T, work: impl FnOnce(T) -> R) -> R {
            work(isa)
        }
        if DOT {
            // SAFETY: a token with `DOT` proves the dot product instructions as well.
            unsafe { enter_dot(self, work) }
        } else {
            // SAFETY: every token proves NEON.
            unsafe { enter(self, work) }
        }
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

    neon!(
        fn pack<const BITS: usize>(self, codes: [uint32x4_t; 8]) -> [u64; 4] {
            [
                pack8::<BITS>(codes[0], codes[1]),
                pack8::<BITS>(codes[2], codes[3]),
                pack8::<BITS>(codes[4], codes[5]),
                pack8::<BITS>(codes[6], codes[7]),
            ]
        }
    );

    neon!(
        fn unpack<const BITS: usize>(self, words: [u64; 4]) -> [uint32x4_t; 8] {
            let mut out = [vdupq_n_u32(0); 8];
            for (pair, word) in out.as_chunks_mut::<2>().0.iter_mut().zip(words) {
                let halves = vmovl_u8(vreinterpret_u8_u64(vcreate_u64(spread::<BITS>(word))));
                *pair = [vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves)];
            }
            out
        }
    );
}

//! AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, VNNI: Ice Lake, Zen 4 and later): 32 lanes in two registers.
//!
//! Equal to `Portable` to the bit, for the reasons given in the AVX2 file.

use super::avx2::{code_mask, level};
use core::arch::x86_64::*;
use core::ops::{Add, Mul, Sub};
use half::f16;
use tqkv_core::lanes::{Isa, Lanes, Memory};

/// Proof that the processor has the AVX-512 subsets of Ice Lake (F, BW, DQ, VL, VBMI, VBMI2, VNNI) and
/// everything that [`crate::Avx2`] stands for.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token, where the processor has all of the features.
    #[cfg(feature = "std")]
    pub fn new() -> Option<Self> {
        let all = super::avx2::Avx2::new().is_some()
            && std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512vbmi")
            && std::is_x86_feature_detected!("avx512vbmi2")
            && std::is_x86_feature_detected!("avx512vnni");
        // SAFETY: all features that the token stands for were just detected.
        all.then(|| unsafe { Self::assume_supported() })
    }

    /// The token, on the caller's word.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL, VBMI, VBMI2 and VNNI, and AVX2, FMA, F16C, BMI1, BMI2.
    pub const unsafe fn assume_supported() -> Self {
        Self(())
    }
}

/// Calls intrinsics whose only contract is that the instruction set exists.
macro_rules! avx512 {
    ($e:expr) => {
        // SAFETY: values of this file's types are only made through an `Avx512` token, which
        // proves the features; loads and stores go through references to arrays of that size.
        unsafe { $e }
    };
}

pub(super) use avx512;

/// 32 lanes of `f32`.
#[derive(Clone, Copy, Debug)]
pub struct V([__m512; 2]);

impl V {
    #[inline(always)]
    pub(super) fn from_registers(registers: [__m512; 2]) -> Self {
        Self(registers)
    }

    #[inline(always)]
    pub(super) fn registers(self) -> [__m512; 2] {
        self.0
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(__m512, __m512) -> __m512) -> Self {
        Self([f(self.0[0], other.0[0]), f(self.0[1], other.0[1])])
    }

    /// The canonical tree: 16, 8, 4, 2, 1.
    #[inline(always)]
    fn fold(self, f: impl Fn(__m512, __m512) -> __m512, g: impl Fn(__m128, __m128) -> __m128) -> f32 {
        avx512!({
            let sixteen = f(self.0[0], self.0[1]);
            let eight = f(sixteen, _mm512_shuffle_f32x4::<0b01_00_11_10>(sixteen, sixteen));
            let four =
                g(_mm512_castps512_ps128(eight), _mm256_extractf128_ps::<1>(_mm512_castps512_ps256(eight)));
            let two = g(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(g(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
}

impl Add for V {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(
            other,
            #[inline(always)]
            |a, b| avx512!(_mm512_add_ps(a, b)),
        )
    }
}

impl Sub for V {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(
            other,
            #[inline(always)]
            |a, b| avx512!(_mm512_sub_ps(a, b)),
        )
    }
}

impl Mul for V {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(
            other,
            #[inline(always)]
            |a, b| avx512!(_mm512_mul_ps(a, b)),
        )
    }
}

/// `array.map`, surely inlined.
#[inline(always)]
fn each<T, U>([a, b]: [T; 2], f: impl Fn(T) -> U) -> [U; 2] {
    [f(a), f(b)]
}

/// +1 in the lanes without bit `H`, -1 in the others.
const fn butterfly_signs<const H: usize>() -> [f32; 16] {
    let (mut signs, mut i) = ([1.0; 16], 0);
    while i < 16 {
        if i & H != 0 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

#[inline(always)]
fn swap_and_add<const H: usize>(v: __m512) -> __m512 {
    avx512!({
        let swapped = match H {
            8 => _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v),
            4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
            2 => _mm512_permute_ps::<0b01_00_11_10>(v),
            _ => _mm512_permute_ps::<0b10_11_00_01>(v),
        };
        let signs = const { butterfly_signs::<H>() };
        _mm512_fmadd_ps(v, _mm512_loadu_ps(signs.as_ptr()), swapped)
    })
}

impl Lanes for V {
    #[inline(always)]
    fn butterfly<const H: usize>(self) -> Self {
        let [a, b] = self.0;
        if H == 16 {
            return avx512!(Self([_mm512_add_ps(a, b), _mm512_sub_ps(a, b)]));
        }
        Self([swap_and_add::<H>(a), swap_and_add::<H>(b)])
    }

    #[inline(always)]
    fn flip(self, mask: u32) -> Self {
        let [a, b] = self.0;
        Self(each(
            [(a, mask as u16), (b, (mask >> 16) as u16)],
            #[inline(always)]
            |(v, mask)| {
                avx512!({
                    let bits = _mm512_castps_si512(v);
                    let sign = _mm512_set1_epi32(i32::MIN);
                    _mm512_castsi512_ps(_mm512_mask_xor_epi32(bits, mask, bits, sign))
                })
            },
        ))
    }

    #[inline(always)]
    fn max_abs(self, other: Self) -> Self {
        self.zip(
            other,
            #[inline(always)]
            |a, b| avx512!(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b))),
        )
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.fold(
            #[inline(always)]
            |a, b| avx512!(_mm512_add_ps(a, b)),
            #[inline(always)]
            |a, b| avx512!(_mm_add_ps(a, b)),
        )
    }

    #[inline(always)]
    fn max(self) -> f32 {
        self.fold(
            #[inline(always)]
            |a, b| avx512!(_mm512_max_ps(a, b)),
            #[inline(always)]
            |a, b| avx512!(_mm_max_ps(a, b)),
        )
    }
}

/// The largest float below: `v >= t` is `v > below(t)`, so the sign of `below(t) - v` tells, for
/// -0 as for 0.
#[inline(always)]
fn below(t: __m512) -> __m512 {
    avx512!({
        let bits = _mm512_castps_si512(t);
        let away = _mm512_or_si512(_mm512_srai_epi32::<31>(bits), _mm512_set1_epi32(1));
        let zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(t, _mm512_setzero_ps());
        let next = _mm512_sub_epi32(bits, away);
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(next, zero, _mm512_set1_epi32(i32::MIN + 1)))
    })
}

/// One level of the binary search for a code: `index` becomes `2 index + (v >= its boundary)`.
#[inline(always)]
fn search<const BITS: usize, const S: usize>(v: __m512, index: __m512i, below: [__m512; 2]) -> __m512i {
    let which = const { level::<BITS, S>() };
    avx512!({
        let which = _mm512_loadu_si512(which.as_ptr().cast());
        if S == 0 {
            // The middle boundary is 0.
            let boundary = _mm512_castsi512_ps(_mm512_set1_epi32(i32::MIN + 1));
            return _mm512_srli_epi32::<31>(_mm512_castps_si512(_mm512_sub_ps(boundary, v)));
        }
        let table = _mm512_permutex2var_ps(below[0], which, below[1]);
        let boundary = _mm512_permutexvar_ps(index, table);
        _mm512_shldi_epi32::<1>(index, _mm512_castps_si512(_mm512_sub_ps(boundary, v)))
    })
}

impl Isa for Avx512 {
    type V = V;
    type C = [__m512i; 2];

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        V([avx512!(_mm512_set1_ps(value)); 2])
    }

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> V {
        let p = src.as_ptr();
        avx512!(V([_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))]))
    }

    #[inline(always)]
    fn sqrt(self, value: f32) -> f32 {
        avx512!({
            let v = _mm_set_ss(value);
            _mm_cvtss_f32(_mm_sqrt_ss(v))
        })
    }

    #[inline(always)]
    fn to_half(self, value: f32) -> f16 {
        avx512!({
            let bits = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(value));
            f16::from_bits(_mm_cvtsi128_si32(bits) as u16)
        })
    }

    #[inline(always)]
    fn widen_half(self, value: f16) -> f32 {
        avx512!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(value.to_bits())))))
    }

    #[inline(always)]
    fn scaled<const BITS: usize>(self, boundaries: &[f32; 32], factor: f32) -> [f32; 32] {
        let mut scaled = [0.0; 32];
        self.store(self.load(boundaries) * self.splat(factor), &mut scaled);
        scaled
    }

    #[inline(always)]
    fn quantise<const BITS: usize>(self, v: V, boundaries: &[f32; 32]) -> [__m512i; 2] {
        let boundaries = each(self.load(boundaries).0, below);
        let zero = avx512!(_mm512_setzero_si512());
        let mut out = [zero; 2];
        for (index, &v) in out.iter_mut().zip(&v.0) {
            *index = search::<BITS, 0>(v, zero, boundaries);
            if BITS > 1 {
                *index = search::<BITS, 1>(v, *index, boundaries);
            }
            if BITS > 2 {
                *index = search::<BITS, 2>(v, *index, boundaries);
            }
            if BITS > 3 {
                *index = search::<BITS, 3>(v, *index, boundaries);
            }
            if BITS > 4 {
                *index = search::<BITS, 4>(v, *index, boundaries);
            }
        }
        out
    }

    #[inline(always)]
    fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: [__m512i; 2]) -> V {
        let [low, high] = self.load(table).0;
        V(each(
            codes,
            #[inline(always)]
            |code| {
                avx512!(if BITS > 4 {
                    _mm512_permutex2var_ps(low, code, high)
                } else {
                    _mm512_permutexvar_ps(code, low)
                })
            },
        ))
    }

    #[inline(always)]
    fn round_i8(self, v: V) -> [__m512i; 2] {
        each(
            v.0,
            #[inline(always)]
            |v| {
                avx512!({
                    let bounded =
                        _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(-127.0)), _mm512_set1_ps(127.0));
                    _mm512_cvtps_epi32(bounded)
                })
            },
        )
    }

    #[inline(always)]
    fn widen_i8(self, codes: [__m512i; 2]) -> V {
        V(each(
            codes,
            #[inline(always)]
            |code| avx512!(_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(code)))),
        ))
    }
}

impl Memory for Avx512 {
    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce(Self) -> R) -> R {
        #[target_feature(
            enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni"
        )]
        #[inline(never)]
        fn enter<R>(isa: Avx512, work: impl FnOnce(Avx512) -> R) -> R {
            work(isa)
        }
        // SAFETY: `self` proves the features that `enter` is compiled with.
        unsafe { enter(self, work) }
    }

    #[inline(always)]
    fn store(self, v: V, dst: &mut [f32; 32]) {
        let p = dst.as_mut_ptr();
        avx512!({
            _mm512_storeu_ps(p, v.0[0]);
            _mm512_storeu_ps(p.add(16), v.0[1]);
        });
    }

    #[inline(always)]
    fn to_halves(self, v: V) -> [u16; 32] {
        let mut out = [0; 32];
        for (to, &v) in out.as_chunks_mut::<16>().0.iter_mut().zip(&v.0) {
            avx512!(_mm256_storeu_si256(
                to.as_mut_ptr().cast(),
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
            ));
        }
        out
    }

    #[inline(always)]
    fn repeat<const M: usize>(self, src: &[f32; M]) -> V {
        let p = src.as_ptr();
        avx512!(V([match M {
            4 => _mm512_broadcast_f32x4(_mm_loadu_ps(p)),
            8 => _mm512_broadcast_f32x8(_mm256_loadu_ps(p)),
            _ => _mm512_loadu_ps(p),
        }; 2]))
    }

    #[inline(always)]
    fn pack<const BITS: usize>(self, codes: [__m512i; 2]) -> [u64; 4] {
        avx512!({
            let mut out = [0u64; 4];
            let p: *mut __m128i = out.as_mut_ptr().cast();
            _mm_storeu_si128(p, _mm512_cvtepi32_epi8(codes[0]));
            _mm_storeu_si128(p.add(1), _mm512_cvtepi32_epi8(codes[1]));
            let mask = const { code_mask::<BITS>() };
            if BITS == 8 {
                return out;
            }
            [
                _pext_u64(out[0], mask),
                _pext_u64(out[1], mask),
                _pext_u64(out[2], mask),
                _pext_u64(out[3], mask),
            ]
        })
    }

    #[inline(always)]
    fn unpack<const BITS: usize>(self, words: [u64; 4]) -> [__m512i; 2] {
        let [a, b, c, d] = words;
        each(
            [(a, b), (c, d)],
            #[inline(always)]
            |(low, high)| {
                avx512!({
                    let mask = const { code_mask::<BITS>() };
                    let (low, high) =
                        if BITS == 8 { (low, high) } else { (_pdep_u64(low, mask), _pdep_u64(high, mask)) };
                    _mm512_cvtepu8_epi32(_mm_set_epi64x(high as i64, low as i64))
                })
            },
        )
    }

    #[inline(always)]
    fn write_codes<const BITS: usize>(self, codes: [__m512i; 2], bytes: &mut [u8]) {
        if BITS == 4
            && let Ok(bytes) = <&mut [u8; 16]>::try_from(&mut *bytes)
        {
            let order = const { pairs() };
            avx512!({
                // Byte 0 of dword i is code i, byte 1 code i + 16; the odd dword's go beside.
                let both = _mm512_or_si512(codes[0], _mm512_slli_epi32::<8>(codes[1]));
                let nibbles = _mm512_or_si512(both, _mm512_srli_epi64::<28>(both));
                let order = _mm512_loadu_si512(order.as_ptr().cast());
                let packed = _mm512_castsi512_si128(_mm512_permutexvar_epi8(order, nibbles));
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed);
            });
            return;
        }
        let words = self.pack::<BITS>(codes);
        for (eight, word) in bytes.chunks_exact_mut(BITS).zip(words) {
            eight.copy_from_slice(&word.to_le_bytes()[..BITS]);
        }
    }

    #[inline(always)]
    fn read_codes<const BITS: usize>(self, bytes: &[u8]) -> [__m512i; 2] {
        if BITS > 5 || bytes.len() != 4 * BITS {
            return self.unpack::<BITS>(tqkv_core::block_io::words::<BITS>(bytes));
        }
        avx512!({
            // In bounds: the mask takes `bytes.len()` bytes.
            let mask = (1u32 << (4 * BITS)) - 1;
            let bytes = _mm512_castsi256_si512(_mm256_maskz_loadu_epi8(mask, bytes.as_ptr().cast()));
            each(
                [const { spread::<BITS>(0) }, const { spread::<BITS>(16) }],
                #[inline(always)]
                |(order, shifts)| {
                    let order = _mm512_loadu_si512(order.as_ptr().cast());
                    let dwords = _mm512_permutexvar_epi8(order, bytes);
                    let codes = _mm512_srlv_epi32(dwords, _mm512_loadu_si512(shifts.as_ptr().cast()));
                    _mm512_and_si512(codes, _mm512_set1_epi32((1 << BITS) - 1))
                },
            )
        })
    }
}

/// Bytes of 32 nibbles: byte 0 of every qword, then byte 1.
const fn pairs() -> [u8; 64] {
    let (mut order, mut i) = ([0; 64], 0);
    while i < 16 {
        order[i] = (i % 8 * 8 + i / 8) as u8;
        i += 1;
    }
    order
}

/// Which bytes hold code `first + i` for dword i, and how far to shift them.
const fn spread<const BITS: usize>(first: usize) -> ([u8; 64], [i32; 16]) {
    let (mut order, mut shifts, mut i) = ([0; 64], [0; 16], 0);
    while i < 16 {
        let bit = BITS * (first + i);
        shifts[i] = (bit % 8) as i32;
        let mut k = 0;
        while k < 2 {
            // A code ends in the next byte at most; the last code's next byte is never needed.
            order[4 * i + k] = (bit / 8 + k) as u8;
            k += 1;
        }
        i += 1;
    }
    (order, shifts)
}

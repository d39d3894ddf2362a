//! AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, VNNI: Ice Lake, Zen 4 and later): 32 lanes in two registers.
//!
//! Equal to `Portable` to the bit, for the reasons given in `avx2.rs`.

use super::avx2::{code_mask, level};
use bytemuck::{must_cast as cast, must_cast_mut as parts_mut, must_cast_ref as parts};
use core::arch::x86_64::*;
use core::ops::{Add, Mul, Sub};
use half::f16;
use tqkv_core::unstable::machine::{Isa, Lanes, Memory};

/// Proof that the processor has the AVX-512 subsets of Ice Lake (F, BW, DQ, VL, VBMI, VBMI2, VNNI) and
/// everything that [`crate::Avx2`] proves.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if the processor has all of the features.
    #[cfg(feature = "std")]
    pub fn new() -> Option<Self> {
        let all = super::avx2::Avx2::<false>::new().is_some()
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

    /// The token, without a check.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL, VBMI, VBMI2 and VNNI, and AVX2, FMA, F16C, BMI1, BMI2.
    pub const unsafe fn assume_supported() -> Self {
        Self(())
    }
}

/// [`crate::method::method!`] with the features of [`Avx512`].
macro_rules! avx512 {
    ($($method:tt)*) => {
        $crate::method::method! {
            "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni",
            $($method)*
        }
    };
}

pub(super) use avx512;

/// 32 lanes of `f32`.
#[derive(Clone, Copy, Debug)]
pub struct V([__m512; 2]);

impl V {
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn from_registers(registers: [__m512; 2]) -> Self {
        Self(registers)
    }

    #[inline(always)]
    pub(super) fn registers(self) -> [__m512; 2] {
        self.0
    }

    #[inline(always)]
    pub(super) fn zip(self, other: Self, f: impl Fn(__m512, __m512) -> __m512) -> Self {
        Self([f(self.0[0], other.0[0]), f(self.0[1], other.0[1])])
    }

    /// The canonical tree: 16, 8, 4, 2, 1.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn fold(self, f: impl Fn(__m512, __m512) -> __m512, g: impl Fn(__m128, __m128) -> __m128) -> f32 {
        let sixteen = f(self.0[0], self.0[1]);
        let eight = f(sixteen, _mm512_shuffle_f32x4::<0b01_00_11_10>(sixteen, sixteen));
        let four =
            g(_mm512_castps512_ps128(eight), _mm256_extractf128_ps::<1>(_mm512_castps512_ps256(eight)));
        let two = g(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(g(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

impl Add for V {
    type Output = Self;
    avx512!(
        fn add(v: V, other: V) -> V {
            v.zip(other, |a, b| _mm512_add_ps(a, b))
        }
    );
}

impl Sub for V {
    type Output = Self;
    avx512!(
        fn sub(v: V, other: V) -> V {
            v.zip(other, |a, b| _mm512_sub_ps(a, b))
        }
    );
}

impl Mul for V {
    type Output = Self;
    avx512!(
        fn mul(v: V, other: V) -> V {
            v.zip(other, |a, b| _mm512_mul_ps(a, b))
        }
    );
}

/// `array.map`, always inlined.
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

impl Lanes for V {
    avx512!(
        fn butterfly<const H: usize>(v: V) -> V {
            let [a, b] = v.0;
            if H == 16 {
                return V([_mm512_add_ps(a, b), _mm512_sub_ps(a, b)]);
            }
            V(each(v.0, |v| {
                let swapped = match H {
                    8 => _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v),
                    4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
                    2 => _mm512_permute_ps::<0b01_00_11_10>(v),
                    _ => _mm512_permute_ps::<0b10_11_00_01>(v),
                };
                _mm512_fmadd_ps(v, cast(const { butterfly_signs::<H>() }), swapped)
            }))
        }
    );

    avx512!(
        fn flip(v: V, mask: u32) -> V {
            let [a, b] = v.0;
            V(each([(a, mask as u16), (b, (mask >> 16) as u16)], |(v, mask)| {
                let bits = _mm512_castps_si512(v);
                let sign = _mm512_set1_epi32(i32::MIN);
                _mm512_castsi512_ps(_mm512_mask_xor_epi32(bits, mask, bits, sign))
            }))
        }
    );

    avx512!(
        fn square_of_integer(v: V, sum: V) -> V {
            V([_mm512_fmadd_ps(v.0[0], v.0[0], sum.0[0]), _mm512_fmadd_ps(v.0[1], v.0[1], sum.0[1])])
        }
    );

    avx512!(
        fn max_abs(v: V, other: V) -> V {
            v.zip(other, |a, b| _mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)))
        }
    );

    avx512!(
        fn sum(v: V) -> f32 {
            v.fold(|a, b| _mm512_add_ps(a, b), |a, b| _mm_add_ps(a, b))
        }
    );

    avx512!(
        fn max(v: V) -> f32 {
            v.fold(|a, b| _mm512_max_ps(a, b), |a, b| _mm_max_ps(a, b))
        }
    );
}

impl Avx512 {
    avx512!(
        /// The largest float below t: `v >= t` equals `v > below(t)`, so the sign of `below(t) - v` gives the
        /// answer, for -0 as for 0.
        fn below(self, t: __m512) -> __m512 {
            let bits = _mm512_castps_si512(t);
            let away = _mm512_or_si512(_mm512_srai_epi32::<31>(bits), _mm512_set1_epi32(1));
            let zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(t, _mm512_setzero_ps());
            let next = _mm512_sub_epi32(bits, away);
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(next, zero, _mm512_set1_epi32(i32::MIN + 1)))
        }
    );

    avx512!(
        /// One level of the binary search for a code: `index` becomes `2 index + (v >= its boundary)`.
        fn descend<const BITS: usize, const S: usize>(
            self,
            v: __m512,
            index: __m512i,
            below: [__m512; 2],
        ) -> __m512i {
            if S == 0 {
                // The middle boundary is 0.
                let boundary = _mm512_castsi512_ps(_mm512_set1_epi32(i32::MIN + 1));
                return _mm512_srli_epi32::<31>(_mm512_castps_si512(_mm512_sub_ps(boundary, v)));
            }
            let which = cast(const { level::<BITS, S>() });
            let table = _mm512_permutex2var_ps(below[0], which, below[1]);
            let boundary = _mm512_permutexvar_ps(index, table);
            _mm512_shldi_epi32::<1>(index, _mm512_castps_si512(_mm512_sub_ps(boundary, v)))
        }
    );

    avx512!(
        /// The canonical tree of four registers at once.
        fn four_sums(self, values: [V; 4]) -> [f32; 4] {
            let [a, b, c, d] = values;
            let (a, b) = (_mm512_add_ps(a.0[0], a.0[1]), _mm512_add_ps(b.0[0], b.0[1]));
            let (c, d) = (_mm512_add_ps(c.0[0], c.0[1]), _mm512_add_ps(d.0[0], d.0[1]));
            // Eight sums of each, then four of each, in parts of 128 bits.
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
            let ab = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d);
            let cd = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d));
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let four = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            cast(_mm512_castps512_ps128(_mm512_permutexvar_ps(order, one)))
        }
    );

    avx512!(
        /// [`Isa::nearest`] in bins: see [`has_bins`]. Only the low bits of the codes count.
        fn nearest_in_bins<const BITS: usize>(
            self,
            v: V,
            boundaries: __m512,
            largest: __m512,
            levels: __m512,
        ) -> ([__m512i; 2], V) {
            let last = _mm512_mul_ps(largest, _mm512_set1_ps(const { 1.0 - 0.75 / half::<BITS>() }));
            let bins = _mm512_mul_ps(_mm512_rcp14_ps(largest), _mm512_set1_ps(const { half::<BITS>() }));
            let first = _mm512_set1_ps(const { INTEGERS + half::<BITS>() - 1.0 });
            let codes = each(v.0, |v| {
                // The smaller magnitude, with the sign of v.
                let near = _mm512_range_ps::<0b0010>(v, last);
                let bin = _mm512_castps_si512(_mm512_fmadd_ps(near, bins, first));
                let above = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(v, _mm512_permutexvar_ps(bin, boundaries));
                _mm512_mask_add_epi32(bin, above, bin, _mm512_set1_epi32(1))
            });
            (codes, V(each(codes, |code| _mm512_permutexvar_ps(code, levels))))
        }
    );

    avx512!(
        /// The 32 codes in `bytes`.
        fn dense<const BITS: usize>(self, bytes: &[u8]) -> [__m512i; 2] {
            let mask = ((1u64 << bytes.len().min(32)) - 1) as u32;
            // SAFETY: the mask has one bit per byte of the slice, up to the 32nd byte; no other byte is read.
            let bytes = unsafe { _mm256_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) };
            let bytes = _mm512_castsi256_si512(bytes);
            each([const { spread::<BITS>(0) }, const { spread::<BITS>(16) }], |(order, shifts)| {
                let dwords = _mm512_permutexvar_epi8(cast(order), bytes);
                let codes = _mm512_srlv_epi32(dwords, cast(shifts));
                _mm512_and_si512(codes, _mm512_set1_epi32((1 << BITS) - 1))
            })
        }
    );

    avx512!(
        /// Packs 32 codes of 4 bits densely.
        fn nibbles(self, codes: [__m512i; 2]) -> [u8; 16] {
            // Byte 0 of dword i is code i, byte 1 is code i + 16; those of the odd dword go next to them.
            // (a | b) & mask
            let (low, high) = (codes[0], _mm512_slli_epi32::<8>(codes[1]));
            let both = _mm512_ternarylogic_epi32::<0xa8>(low, high, _mm512_set1_epi32(0x0f0f));
            let nibbles = _mm512_or_si512(both, _mm512_srli_epi64::<28>(both));
            let order = cast(const { pairs() });
            cast(_mm512_castsi512_si128(_mm512_permutexvar_epi8(order, nibbles)))
        }
    );
}

impl Isa for Avx512 {
    type V = V;
    type C = [__m512i; 2];

    avx512!(
        fn splat(self, value: f32) -> V {
            V([_mm512_set1_ps(value); 2])
        }
    );

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> V {
        let [low, high]: &[[f32; 16]; 2] = parts(src);
        V([cast(*low), cast(*high)])
    }

    #[inline(always)]
    fn sum_each<const N: usize>(self, values: &[V]) -> [f32; N] {
        let mut sums = [0.0; N];
        let (fours, rest) = values.as_chunks::<4>();
        let (four_sums, rest_sums) = sums.as_chunks_mut::<4>();
        for (sums, four) in four_sums.iter_mut().zip(fours) {
            *sums = self.four_sums(*four);
        }
        for (sum, value) in rest_sums.iter_mut().zip(rest) {
            *sum = value.sum();
        }
        sums
    }

    avx512!(
        fn sqrt(self, value: f32) -> f32 {
            _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(value)))
        }
    );

    avx512!(
        fn to_half(self, value: f32) -> f16 {
            let bits = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(value));
            f16::from_bits(_mm_cvtsi128_si32(bits) as u16)
        }
    );

    avx512!(
        fn widen_half(self, value: f16) -> f32 {
            _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(value.to_bits()))))
        }
    );

    #[inline(always)]
    fn scaled<const BITS: usize>(self, boundaries: &[f32; 32], factor: f32) -> [f32; 32] {
        let mut scaled = [0.0; 32];
        self.store(self.load(boundaries) * self.splat(factor), &mut scaled);
        scaled
    }

    #[inline(always)]
    fn quantise<const BITS: usize>(self, v: V, boundaries: &[f32; 32]) -> [__m512i; 2] {
        let [low, high] = self.load(boundaries).0;
        let boundaries = [self.below(low), self.below(high)];
        let mut out: [__m512i; 2] = [cast([0u64; 8]); 2];
        for (index, &v) in out.iter_mut().zip(&v.0) {
            *index = self.descend::<BITS, 0>(v, *index, boundaries);
            *index = self.descend::<BITS, 1>(v, *index, boundaries);
            if BITS > 2 {
                *index = self.descend::<BITS, 2>(v, *index, boundaries);
            }
            if BITS > 3 {
                *index = self.descend::<BITS, 3>(v, *index, boundaries);
            }
            if BITS > 4 {
                *index = self.descend::<BITS, 4>(v, *index, boundaries);
            }
        }
        out
    }

    #[inline(always)]
    fn nearest<const BITS: usize>(
        self,
        v: V,
        boundaries: &[f32; 32],
        levels: &[f32; 32],
    ) -> ([__m512i; 2], V) {
        if has_bins(BITS) {
            let largest = self.splat(boundaries[(1 << BITS) - 2]).0[0];
            return self.nearest_in_bins::<BITS>(
                v,
                self.load(boundaries).0[0],
                largest,
                self.load(levels).0[0],
            );
        }
        let codes = self.quantise::<BITS>(v, boundaries);
        (codes, self.lookup::<BITS>(levels, codes))
    }

    avx512!(
        fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: [__m512i; 2]) -> V {
            let [low, high]: &[[f32; 16]; 2] = parts(table);
            let (low, high) = (cast(*low), cast(*high));
            V(each(codes, |code| {
                if BITS > 4 {
                    _mm512_permutex2var_ps(low, code, high)
                } else {
                    _mm512_permutexvar_ps(code, low)
                }
            }))
        }
    );

    avx512!(
        fn round_i8(self, v: V) -> [__m512i; 2] {
            each(v.0, |v| {
                let bounded = _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(-127.0)), _mm512_set1_ps(127.0));
                _mm512_cvtps_epi32(bounded)
            })
        }
    );

    avx512!(
        fn widen_i8(self, codes: [__m512i; 2]) -> V {
            V(each(codes, |code| _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(code)))))
        }
    );
}

impl Memory for Avx512 {
    const SIDE_BY_SIDE: bool = true;
    const GROUPS_IN_REGISTERS: usize = 4;

    #[inline(always)]
    fn look_up_levels(self, indices: &mut [u8], levels: &[i8; 64]) {
        crate::lines::look_up_levels(self, indices, levels);
    }

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
        let [low, high]: &mut [[f32; 16]; 2] = parts_mut(dst);
        (*low, *high) = (cast(v.0[0]), cast(v.0[1]));
    }

    avx512!(
        fn to_halves(self, v: V) -> [u16; 32] {
            let mut out = [0; 32];
            for (to, v) in parts_mut::<_, [[u16; 16]; 2]>(&mut out).iter_mut().zip(v.0) {
                *to = cast(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            }
            out
        }
    );

    avx512!(
        fn repeat<const M: usize>(self, src: &[f32; M]) -> V {
            V([match M {
                4 => _mm512_broadcast_f32x4(cast(first::<4>(src, 0))),
                8 => _mm512_broadcast_f32x8(cast(first::<8>(src, 0))),
                _ => cast(first::<16>(src, 0)),
            }; 2])
        }
    );

    avx512!(
        fn pack<const BITS: usize>(self, codes: [__m512i; 2]) -> [u64; 4] {
            let mask = const { code_mask::<BITS>() };
            let [[a, b], [c, d]] =
                each(codes, |code| {
                    each(cast(_mm512_cvtepi32_epi8(code)), |word| {
                        if BITS == 8 { word } else { _pext_u64(word, mask) }
                    })
                });
            [a, b, c, d]
        }
    );

    avx512!(
        fn unpack<const BITS: usize>(self, words: [u64; 4]) -> [__m512i; 2] {
            let [a, b, c, d] = words;
            let mask = const { code_mask::<BITS>() };
            each([[a, b], [c, d]], |pair| {
                let bytes = each(pair, |word| if BITS == 8 { word } else { _pdep_u64(word, mask) });
                _mm512_cvtepu8_epi32(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64))
            })
        }
    );

    #[inline(always)]
    fn write_codes<const BITS: usize>(self, codes: [__m512i; 2], bytes: &mut [u8]) {
        if BITS == 4
            && let Ok(bytes) = <&mut [u8; 16]>::try_from(&mut *bytes)
        {
            *bytes = self.nibbles(codes);
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
            return self.unpack::<BITS>(tqkv_core::unstable::machine::words::<BITS>(bytes));
        }
        self.dense::<BITS>(bytes)
    }
}

/// Codes of 2 to 4 bits are found in bins, without a search. A bin is the largest boundary / 2^(BITS - 1)
/// wide, and 0 is in the middle of bin 2^(BITS - 1) - 1. So bin k holds no other boundary than number k, with
/// 2 % of its width to spare. One look-up and one comparison are enough. Boundaries are never subnormal here,
/// because the square of the norm is a float above 0, so their reciprocal is finite. The test `nearest` tries
/// every codebook.
const fn has_bins(bits: usize) -> bool {
    bits < 5
}

/// Half of the levels of a code.
const fn half<const BITS: usize>() -> f32 {
    (1 << (BITS - 1)) as f32
}

/// 1.5 * 2^23: a float near it has the integer that it rounds to in its low bits.
const INTEGERS: f32 = 12_582_912.0;

/// Bytes of 32 nibbles: byte 0 of every qword, then byte 1.
const fn pairs() -> [u8; 64] {
    let (mut order, mut i) = ([0; 64], 0);
    while i < 16 {
        order[i] = (i % 8 * 8 + i / 8) as u8;
        i += 1;
    }
    order
}

/// The bytes that hold code `first + i` for dword i, and their shifts.
const fn spread<const BITS: usize>(first: usize) -> ([u8; 64], [i32; 16]) {
    let (mut order, mut shifts, mut i) = ([0; 64], [0; 16], 0);
    while i < 16 {
        let bit = BITS * (first + i);
        shifts[i] = (bit % 8) as i32;
        let mut k = 0;
        while k < 2 {
            // A code ends in the next byte at the latest; the last code never needs its next byte.
            order[4 * i + k] = (bit / 8 + k) as u8;
            k += 1;
        }
        i += 1;
    }
    (order, shifts)
}

/// The first `N` values of `src` from `at` on; `src` has at least that many.
#[inline(always)]
fn first<const N: usize>(src: &[f32], at: usize) -> [f32; N] {
    src.get(at..).and_then(<[f32]>::first_chunk).copied().unwrap_or([0.0; N])
}

//! AVX2 with FMA, F16C and BMI2 (every x86-64-v3 processor), and the same with AVX-VNNI: 32 lanes in four
//! registers. The two tokens share everything except the integer dot products of the page kernels.
//!
//! Equal to `Portable` to the bit: additions, subtractions and multiplications are the same IEEE operations
//! on the same operands. One operation is fused, in the butterfly. It multiplies by +-1, which is exact, so
//! it rounds once as the plain addition does.

use core::arch::x86_64::*;
use core::ops::{Add, Mul, Sub};
use half::f16;
use tqkv_core::unstable::machine::{Isa, Lanes, Memory};

/// Proof that the processor has AVX2, FMA, F16C and BMI2, and with `VNNI` AVX-VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// The token, if the processor has all of the features.
    #[cfg(feature = "std")]
    pub fn new() -> Option<Self> {
        let all = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2")
            && (!VNNI || std::is_x86_feature_detected!("avxvnni"));
        // SAFETY: all features that the token stands for were just detected.
        all.then(|| unsafe { Self::assume_supported() })
    }

    /// The token, without a check.
    ///
    /// # Safety
    /// The processor has AVX2, FMA, F16C, BMI1 and BMI2, and with `VNNI` AVX-VNNI.
    pub const unsafe fn assume_supported() -> Self {
        Self(())
    }

    /// The token of the features that all of these processors have.
    #[inline(always)]
    pub(super) fn common(self) -> Avx2<false> {
        Avx2(())
    }
}

/// Calls intrinsics whose only contract is that the instruction set exists.
macro_rules! avx2 {
    ($e:expr) => {
        // SAFETY: values of this file's types are only made through an `Avx2` token, which proves AVX2, FMA,
        // F16C and BMI. Loads and stores go through references to arrays of that size.
        unsafe { $e }
    };
}

pub(super) use avx2;

/// 32 lanes of `f32`.
#[derive(Clone, Copy, Debug)]
pub struct V([__m256; 4]);

impl V {
    #[inline(always)]
    pub(super) fn from_registers(registers: [__m256; 4]) -> Self {
        Self(registers)
    }

    #[inline(always)]
    pub(super) fn registers(self) -> [__m256; 4] {
        self.0
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(__m256, __m256) -> __m256) -> Self {
        let ([a, b, c, d], [w, x, y, z]) = (self.0, other.0);
        Self([f(a, w), f(b, x), f(c, y), f(d, z)])
    }

    #[inline(always)]
    fn map(self, f: impl Fn(__m256) -> __m256) -> Self {
        let [a, b, c, d] = self.0;
        Self([f(a), f(b), f(c), f(d)])
    }

    /// The canonical tree: 16, 8, 4, 2, 1.
    #[inline(always)]
    fn fold(self, f: impl Fn(__m256, __m256) -> __m256, g: impl Fn(__m128, __m128) -> __m128) -> f32 {
        let [a, b, c, d] = self.0;
        let eight = f(f(a, c), f(b, d));
        avx2!({
            let four = g(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
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
            |a, b| avx2!(_mm256_add_ps(a, b)),
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
            |a, b| avx2!(_mm256_sub_ps(a, b)),
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
            |a, b| avx2!(_mm256_mul_ps(a, b)),
        )
    }
}

/// +1 in the lanes without bit `H`, -1 in the others.
const fn butterfly_signs<const H: usize>() -> [f32; 8] {
    let (mut signs, mut i) = ([1.0; 8], 0);
    while i < 8 {
        if i & H != 0 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

/// The distance of bit i of a mask from the top bit.
const fn sign_shifts() -> [[i32; 8]; 4] {
    let (mut shifts, mut i) = ([[0; 8]; 4], 0);
    while i < 32 {
        shifts[i / 8][i % 8] = 31 - i as i32;
        i += 1;
    }
    shifts
}

impl Lanes for V {
    #[inline(always)]
    fn butterfly<const H: usize>(self) -> Self {
        let [a, b, c, d] = self.0;
        match H {
            16 => avx2!(Self([
                _mm256_add_ps(a, c),
                _mm256_add_ps(b, d),
                _mm256_sub_ps(a, c),
                _mm256_sub_ps(b, d)
            ])),
            8 => avx2!(Self([
                _mm256_add_ps(a, b),
                _mm256_sub_ps(a, b),
                _mm256_add_ps(c, d),
                _mm256_sub_ps(c, d)
            ])),
            _ => self.map(
                #[inline(always)]
                |v| {
                    avx2!({
                        let swapped = match H {
                            4 => _mm256_permute2f128_ps::<1>(v, v),
                            2 => _mm256_permute_ps::<0b01_00_11_10>(v),
                            _ => _mm256_permute_ps::<0b10_11_00_01>(v),
                        };
                        let signs = const { butterfly_signs::<H>() };
                        _mm256_fmadd_ps(v, _mm256_loadu_ps(signs.as_ptr()), swapped)
                    })
                },
            ),
        }
    }

    #[inline(always)]
    fn flip(self, mask: u32) -> Self {
        let mut out = self;
        let shifts = const { sign_shifts() };
        for (v, shifts) in out.0.iter_mut().zip(shifts) {
            avx2!({
                let shifts = _mm256_loadu_si256(shifts.as_ptr().cast());
                let bits = _mm256_sllv_epi32(_mm256_set1_epi32(mask as i32), shifts);
                let signs = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MIN));
                *v = _mm256_xor_ps(*v, _mm256_castsi256_ps(signs));
            });
        }
        out
    }

    #[inline(always)]
    fn max_abs(self, other: Self) -> Self {
        self.zip(
            other,
            #[inline(always)]
            |a, b| {
                avx2!({
                    let sign = _mm256_set1_ps(-0.0);
                    _mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b))
                })
            },
        )
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.fold(
            #[inline(always)]
            |a, b| avx2!(_mm256_add_ps(a, b)),
            #[inline(always)]
            |a, b| avx2!(_mm_add_ps(a, b)),
        )
    }

    #[inline(always)]
    fn max(self) -> f32 {
        self.fold(
            #[inline(always)]
            |a, b| avx2!(_mm256_max_ps(a, b)),
            #[inline(always)]
            |a, b| avx2!(_mm_max_ps(a, b)),
        )
    }
}

/// The boundaries that level `S` of the search for a code compares with: every 2^(BITS - S)-th. Lanes past
/// the last repeat it.
pub(super) const fn level<const BITS: usize, const S: usize>() -> [i32; 16] {
    let (mut index, mut i) = ([0; 16], 0);
    while i < 16 && S < BITS {
        let entry = if i < 1 << S { i } else { 0 };
        index[i] = ((2 * entry + 1) << (BITS - 1 - S)) as i32 - 1;
        i += 1;
    }
    index
}

/// Lane i is `source[which[i]]`. `which` is constant, so the compiler turns this into one or two shuffles
/// outside the loop over registers.
#[inline(always)]
fn gather(source: [__m256; 4], which: &[i32; 8]) -> __m256 {
    let [a, b, c, d] = source;
    avx2!({
        let index = _mm256_loadu_si256(which.as_ptr().cast());
        let second = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
        let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<27>(index));
        let low =
            _mm256_blendv_ps(_mm256_permutevar8x32_ps(a, index), _mm256_permutevar8x32_ps(b, index), second);
        let high =
            _mm256_blendv_ps(_mm256_permutevar8x32_ps(c, index), _mm256_permutevar8x32_ps(d, index), second);
        _mm256_blendv_ps(low, high, upper)
    })
}

/// One level of the binary search for a code: `index` becomes
/// `2 index + (v >= its boundary)`.
#[inline(always)]
fn search<const BITS: usize, const S: usize>(v: __m256, index: __m256i, boundaries: [__m256; 4]) -> __m256i {
    let which = const { level::<BITS, S>() };
    let [first, second] = *which.as_chunks::<8>().0 else { return index };
    avx2!({
        let mut boundary = gather(boundaries, &first);
        if S > 0 {
            boundary = _mm256_permutevar8x32_ps(boundary, index);
        }
        if S > 3 {
            let high = _mm256_permutevar8x32_ps(gather(boundaries, &second), index);
            let third = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
            boundary = _mm256_blendv_ps(boundary, high, third);
        }
        let above = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(v, boundary));
        _mm256_sub_epi32(_mm256_add_epi32(index, index), above)
    })
}

/// `array.map`, always inlined.
#[inline(always)]
fn each<T, U>([a, b, c, d]: [T; 4], f: impl Fn(T) -> U) -> [U; 4] {
    [f(a), f(b), f(c), f(d)]
}

impl<const VNNI: bool> Isa for Avx2<VNNI> {
    type V = V;
    type C = [__m256i; 4];

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        V([avx2!(_mm256_set1_ps(value)); 4])
    }

    #[inline(always)]
    fn load(self, src: &[f32; 32]) -> V {
        let p = src.as_ptr();
        avx2!(V([
            _mm256_loadu_ps(p),
            _mm256_loadu_ps(p.add(8)),
            _mm256_loadu_ps(p.add(16)),
            _mm256_loadu_ps(p.add(24))
        ]))
    }

    #[inline(always)]
    fn sqrt(self, value: f32) -> f32 {
        avx2!({
            let v = _mm_set_ss(value);
            _mm_cvtss_f32(_mm_sqrt_ss(v))
        })
    }

    #[inline(always)]
    fn to_half(self, value: f32) -> f16 {
        avx2!({
            let bits = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(value));
            f16::from_bits(_mm_cvtsi128_si32(bits) as u16)
        })
    }

    #[inline(always)]
    fn widen_half(self, value: f16) -> f32 {
        avx2!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(value.to_bits())))))
    }

    #[inline(always)]
    fn scaled<const BITS: usize>(self, boundaries: &[f32; 32], factor: f32) -> [f32; 32] {
        let mut scaled = [0.0; 32];
        self.store(self.load(boundaries) * self.splat(factor), &mut scaled);
        scaled
    }

    #[inline(always)]
    fn quantise<const BITS: usize>(self, v: V, boundaries: &[f32; 32]) -> [__m256i; 4] {
        let [a, b, c, d] = self.load(boundaries).0;
        let zero = avx2!(_mm256_setzero_si256());
        let mut out = [zero; 4];
        for (index, &v) in out.iter_mut().zip(&v.0) {
            *index = search::<BITS, 0>(v, zero, [a, b, c, d]);
            *index = search::<BITS, 1>(v, *index, [a, b, c, d]);
            if BITS > 2 {
                *index = search::<BITS, 2>(v, *index, [a, b, c, d]);
            }
            if BITS > 3 {
                *index = search::<BITS, 3>(v, *index, [a, b, c, d]);
            }
            if BITS > 4 {
                *index = search::<BITS, 4>(v, *index, [a, b, c, d]);
            }
        }
        out
    }

    #[inline(always)]
    fn lookup<const BITS: usize>(self, table: &[f32; 32], codes: [__m256i; 4]) -> V {
        let p = table.as_ptr();
        V(each(
            codes,
            #[inline(always)]
            |code| {
                avx2!({
                    let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), code);
                    if BITS <= 3 {
                        return low;
                    }
                    let fourth = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(code));
                    let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p.add(8)), code);
                    let low = _mm256_blendv_ps(low, high, fourth);
                    if BITS == 4 {
                        return low;
                    }
                    let third = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p.add(16)), code);
                    let last = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p.add(24)), code);
                    let upper = _mm256_blendv_ps(third, last, fourth);
                    _mm256_blendv_ps(low, upper, _mm256_castsi256_ps(_mm256_slli_epi32::<27>(code)))
                })
            },
        ))
    }

    #[inline(always)]
    fn round_i8(self, v: V) -> [__m256i; 4] {
        each(
            v.0,
            #[inline(always)]
            |v| {
                avx2!({
                    let bounded =
                        _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(-127.0)), _mm256_set1_ps(127.0));
                    _mm256_and_si256(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(255))
                })
            },
        )
    }

    #[inline(always)]
    fn widen_i8(self, codes: [__m256i; 4]) -> V {
        V(each(
            codes,
            #[inline(always)]
            |code| avx2!(_mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(code)))),
        ))
    }
}

impl<const VNNI: bool> Memory for Avx2<VNNI> {
    const SIDE_BY_SIDE: bool = true;

    #[inline(always)]
    fn look_up_levels(self, indices: &mut [u8], levels: &[i8; 64]) {
        crate::lines::look_up_levels(self, indices, levels);
    }

    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce(Self) -> R) -> R {
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
        #[inline(never)]
        fn enter<T, R>(isa: T, work: impl FnOnce(T) -> R) -> R {
            work(isa)
        }
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avxvnni")]
        #[inline(never)]
        fn enter_vnni<T, R>(isa: T, work: impl FnOnce(T) -> R) -> R {
            work(isa)
        }
        if VNNI {
            // SAFETY: a token with `VNNI` proves AVX-VNNI as well.
            unsafe { enter_vnni(self, work) }
        } else {
            // SAFETY: every token proves the features that `enter` is compiled with.
            unsafe { enter(self, work) }
        }
    }

    #[inline(always)]
    fn store(self, v: V, dst: &mut [f32; 32]) {
        let p = dst.as_mut_ptr();
        avx2!({
            _mm256_storeu_ps(p, v.0[0]);
            _mm256_storeu_ps(p.add(8), v.0[1]);
            _mm256_storeu_ps(p.add(16), v.0[2]);
            _mm256_storeu_ps(p.add(24), v.0[3]);
        });
    }

    #[inline(always)]
    fn to_halves(self, v: V) -> [u16; 32] {
        let mut out = [0; 32];
        for (to, &v) in out.as_chunks_mut::<8>().0.iter_mut().zip(&v.0) {
            avx2!(_mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)));
        }
        out
    }

    #[inline(always)]
    fn repeat<const M: usize>(self, src: &[f32; M]) -> V {
        let p = src.as_ptr();
        avx2!(match M {
            4 => V([_mm256_broadcast_ps(&_mm_loadu_ps(p)); 4]),
            8 => V([_mm256_loadu_ps(p); 4]),
            _ => {
                let (a, b) = (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)));
                V([a, b, a, b])
            }
        })
    }

    #[inline(always)]
    fn pack<const BITS: usize>(self, codes: [__m256i; 4]) -> [u64; 4] {
        let [a, b, c, d] = codes;
        avx2!({
            // Packing interleaves the 128-bit halves; the permutation restores the order of dwords.
            let words = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(words, order);
            let mut out = [0u64; 4];
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
            each(
                out,
                #[inline(always)]
                |word| {
                    if BITS == 8 { word } else { _pext_u64(word, const { code_mask::<BITS>() }) }
                },
            )
        })
    }

    #[inline(always)]
    fn unpack<const BITS: usize>(self, words: [u64; 4]) -> [__m256i; 4] {
        each(
            words,
            #[inline(always)]
            |word| {
                avx2!({
                    let bytes = if BITS == 8 { word } else { _pdep_u64(word, const { code_mask::<BITS>() }) };
                    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64))
                })
            },
        )
    }

    #[inline(always)]
    fn read_codes<const BITS: usize>(self, bytes: &[u8]) -> [__m256i; 4] {
        if BITS > 4 || bytes.len() != 4 * BITS {
            return self.unpack::<BITS>(tqkv_core::unstable::machine::words::<BITS>(bytes));
        }
        each(
            const { [spread::<BITS>(0), spread::<BITS>(1), spread::<BITS>(2), spread::<BITS>(3)] },
            #[inline(always)]
            |(at, shifts)| {
                let mut dword = [0; 4];
                dword.copy_from_slice(&bytes[at..at + 4]);
                avx2!({
                    let dwords = _mm256_set1_epi32(i32::from_le_bytes(dword));
                    let codes = _mm256_srlv_epi32(dwords, _mm256_loadu_si256(shifts.as_ptr().cast()));
                    _mm256_and_si256(codes, _mm256_set1_epi32((1 << BITS) - 1))
                })
            },
        )
    }
}

/// The position of the dword that holds codes `8 part` to `8 part + 7`, and the shift for each of them.
const fn spread<const BITS: usize>(part: usize) -> (usize, [i32; 8]) {
    let last = 4 * BITS - 4;
    let at = if BITS * part < last { BITS * part } else { last };
    let (mut shifts, mut i) = ([0; 8], 0);
    while i < 8 {
        shifts[i] = (BITS * (8 * part + i)) as i32 - 8 * at as i32;
        i += 1;
    }
    (at, shifts)
}

/// The low `BITS` bits of every byte.
pub(super) const fn code_mask<const BITS: usize>() -> u64 {
    0x0101_0101_0101_0101 * ((1 << BITS) - 1)
}

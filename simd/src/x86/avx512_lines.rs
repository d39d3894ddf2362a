//! AVX-512: a line is one register, and four products of bytes are one `vpdpbusd`.
//!
//! `vpermb` reads six bits of an index, so the level table is repeated to 64 entries. Codes are shifted into
//! place without masking: the bits above a code choose between equal entries. `vpdpbusd` needs one unsigned
//! operand. Levels of keys carry a bias of 128, which is subtracted once per query; weights of values are
//! unsigned already.

use super::avx2_lines::pair_shuffles;
use super::avx512::{Avx512, V, avx512};
use crate::lines::{FRACTION, Line, Machine};
use bytemuck::{must_cast as cast, must_cast_ref as parts};
use core::arch::x86_64::*;

/// The low bytes of the dwords of two registers.
const LOW_BYTES: [u8; 64] = {
    let (mut index, mut i) = ([0; 64], 0);
    while i < 32 {
        index[i] = 4 * i as u8;
        i += 1;
    }
    index
};

impl Machine for Avx512 {
    type Blocks = Self;
    type Line = __m512i;
    type Sum = __m512i;
    type Table = __m512i;
    type Levels = __m512i;

    const HEADS: usize = 8;
    const CHAINS: usize = 16;
    const FIELDS: usize = 8;
    const SUMS: usize = 8;
    const KEY_BIAS: i32 = 128;
    const BYTE_WEIGHTS: bool = true;

    #[inline(always)]
    fn of_blocks(self) -> Self {
        self
    }

    #[inline(always)]
    fn line(self, line: &Line) -> __m512i {
        cast(line.0)
    }

    #[inline(always)]
    fn line_bytes(self, line: __m512i) -> [u8; 64] {
        cast(line)
    }

    avx512!(
        fn prefetch(self, line: &Line) {
            _mm_prefetch::<_MM_HINT_T0>(line.0.as_ptr().cast());
        }
    );

    avx512!(
        fn prefetch_near(self, line: &Line) {
            _mm_prefetch::<_MM_HINT_T1>(line.0.as_ptr().cast());
        }
    );

    avx512!(
        fn value_table(self, levels: &[i8; 16]) -> __m512i {
            _mm512_broadcast_i32x4(cast(*levels))
        }
    );

    #[inline(always)]
    fn key_table(self, levels: &[i8; 16]) -> __m512i {
        self.key_bytes(self.value_table(levels))
    }

    avx512!(
        fn level<const BITS: usize, const FIELD: usize>(self, line: __m512i, table: __m512i) -> __m512i {
            let code = if FIELD == 0 {
                line
            } else {
                _mm512_srl_epi16(line, _mm_cvtsi32_si128((BITS * FIELD) as i32))
            };
            _mm512_permutexvar_epi8(code, table)
        }
    );

    avx512!(
        fn level3<const FIELD: usize>(self, lines: [__m512i; 3], table: __m512i) -> __m512i {
            let [a, b, c] = lines;

            // Bits 0 and 1 from the first operand, the others from the second.
            let low = _mm512_set1_epi8(3);
            let code = match FIELD {
                0 => a,
                1 => _mm512_srli_epi16::<3>(a),
                2 => b,
                3 => _mm512_srli_epi16::<3>(b),
                4 => c,
                5 => _mm512_srli_epi16::<3>(c),
                6 => _mm512_ternarylogic_epi32::<0xca>(
                    low,
                    _mm512_srli_epi16::<6>(a),
                    _mm512_srli_epi16::<4>(c),
                ),
                _ => _mm512_ternarylogic_epi32::<0xca>(
                    low,
                    _mm512_srli_epi16::<6>(b),
                    _mm512_srli_epi16::<5>(c),
                ),
            };
            _mm512_permutexvar_epi8(code, table)
        }
    );

    avx512!(
        fn key_bytes(self, line: __m512i) -> __m512i {
            _mm512_xor_si512(line, _mm512_set1_epi8(-128))
        }
    );

    #[inline(always)]
    fn value_levels(self, levels: &[i8; 64]) -> __m512i {
        cast(*levels)
    }

    #[inline(always)]
    fn key_levels(self, levels: &[i8; 64]) -> __m512i {
        self.key_bytes(self.value_levels(levels))
    }

    avx512!(
        fn look_up<const BITS: usize>(self, index: __m512i, levels: __m512i) -> __m512i {
            // The look-up uses six bits of the index, whatever is above `BITS`, because the table repeats.
            _mm512_permutexvar_epi8(index, levels)
        }
    );

    avx512!(
        fn xor(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_xor_si512(a, b)
        }
    );

    avx512!(
        fn and(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_and_si512(a, b)
        }
    );

    avx512!(
        fn merge<const MASK: u8>(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(MASK as i8), a, b)
        }
    );

    avx512!(
        fn up<const N: u32>(self, v: __m512i) -> __m512i {
            _mm512_slli_epi16::<N>(v)
        }
    );

    avx512!(
        fn down<const N: u32>(self, v: __m512i) -> __m512i {
            _mm512_srli_epi16::<N>(v)
        }
    );

    avx512!(
        fn rotate(self, v: __m512i) -> __m512i {
            let low = _mm512_srli_epi16::<7>(v);
            _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(1), low, _mm512_add_epi8(v, v))
        }
    );

    avx512!(
        fn follow_bytes<const N: usize>(self, now: __m512i, before: __m512i) -> __m512i {
            match N {
                1 => _mm512_or_si512(_mm512_slli_epi32::<8>(now), _mm512_srli_epi32::<24>(before)),
                2 => _mm512_or_si512(_mm512_slli_epi32::<16>(now), _mm512_srli_epi32::<16>(before)),
                _ => _mm512_or_si512(_mm512_slli_epi32::<24>(now), _mm512_srli_epi32::<8>(before)),
            }
        }
    );

    avx512!(
        fn follow_dwords<const N: usize>(self, now: __m512i, before: __m512i) -> __m512i {
            match N {
                1 => _mm512_alignr_epi8::<12>(now, before),
                2 => _mm512_alignr_epi8::<8>(now, before),
                _ => _mm512_alignr_epi8::<4>(now, before),
            }
        }
    );

    avx512!(
        fn pair_bytes<const HALF: usize>(self, even: __m512i, odd: __m512i) -> __m512i {
            let [from_even, from_odd] = const { pair_shuffles(HALF) };
            let (from_even, from_odd) =
                (_mm512_broadcast_i32x4(cast(from_even)), _mm512_broadcast_i32x4(cast(from_odd)));
            _mm512_or_si512(_mm512_shuffle_epi8(even, from_even), _mm512_shuffle_epi8(odd, from_odd))
        }
    );

    avx512!(
        fn pair_dwords<const HALF: usize>(self, even: __m512i, odd: __m512i) -> __m512i {
            match HALF {
                0 => _mm512_unpacklo_epi32(even, odd),
                _ => _mm512_unpackhi_epi32(even, odd),
            }
        }
    );

    #[inline(always)]
    fn zero(self) -> __m512i {
        cast([0u64; 8])
    }

    avx512!(
        fn all(self, sum: i32) -> __m512i {
            _mm512_set1_epi32(sum)
        }
    );

    #[inline(always)]
    fn sums(self, lanes: &[i32; 16]) -> __m512i {
        cast(*lanes)
    }

    avx512!(
        fn add(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_add_epi32(a, b)
        }
    );

    avx512!(
        fn key_dot(self, sum: __m512i, levels: __m512i, query: u32) -> __m512i {
            _mm512_dpbusd_epi32(sum, levels, _mm512_set1_epi32(query as i32))
        }
    );

    #[inline(always)]
    fn weights(self, weights: &[u32; 16]) -> __m512i {
        cast(*weights)
    }

    avx512!(
        fn splat_weights(self, weights: u32) -> __m512i {
            _mm512_set1_epi32(weights as i32)
        }
    );

    avx512!(
        fn write_halves(self, weights: V, halves: &mut [[u8; 32]; 2]) {
            let [high, low] = halves;
            let parts = high.as_chunks_mut::<16>().0.iter_mut().zip(low.as_chunks_mut::<16>().0);
            for (weights, (high, low)) in weights.registers().into_iter().zip(parts) {
                let weights = _mm512_cvtps_epi32(weights);
                *high = cast(_mm512_cvtepi32_epi8(_mm512_srli_epi32::<7>(weights)));
                *low = cast(_mm512_cvtepi32_epi8(_mm512_and_si512(weights, _mm512_set1_epi32(127))));
            }
        }
    );

    avx512!(
        fn write_bytes(self, weights: V, sums: [__m512i; 2], bytes: &mut [u8; 32]) -> [__m512i; 2] {
            let ([a, b], [before_a, before_b]) = (weights.registers(), sums);
            let after_a = _mm512_add_epi32(before_a, _mm512_cvtps_epi32(a));
            let after_b = _mm512_add_epi32(before_b, _mm512_cvtps_epi32(b));
            let whole = |sum| _mm512_srli_epi32::<FRACTION>(sum);
            let a = _mm512_sub_epi32(whole(after_a), whole(before_a));
            let b = _mm512_sub_epi32(whole(after_b), whole(before_b));
            let low_bytes = _mm512_permutex2var_epi8(a, cast(LOW_BYTES), b);
            *bytes = cast(_mm512_castsi512_si256(low_bytes));
            [after_a, after_b]
        }
    );

    avx512!(
        fn value_dot(self, sum: __m512i, levels: __m512i, weights: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sum, weights, levels)
        }
    );

    #[inline(always)]
    fn lanes(self, sum: __m512i) -> [i32; 16] {
        cast(sum)
    }

    avx512!(
        fn sum_quads<const N: usize>(self, sums: [__m512i; N]) -> [[i32; 4]; N] {
            // Sums of the even and odd quarters of two registers, one register after the other.
            let halve = |a, b| {
                _mm512_add_epi32(
                    _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                    _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
                )
            };
            let mut quads = [[0; 4]; N];
            for (quads, sums) in quads.as_chunks_mut::<4>().0.iter_mut().zip(sums.as_chunks::<4>().0) {
                *quads = cast(halve(halve(sums[0], sums[1]), halve(sums[2], sums[3])));
            }
            for (quad, sum) in quads.as_chunks_mut::<4>().1.iter_mut().zip(sums.as_chunks::<4>().1) {
                let two = halve(*sum, *sum);
                *quad = cast(_mm512_castsi512_si128(halve(two, two)));
            }
            quads
        }
    );

    avx512!(
        fn floats(self, sums: [__m512i; 2]) -> V {
            V::from_registers([_mm512_cvtepi32_ps(sums[0]), _mm512_cvtepi32_ps(sums[1])])
        }
    );

    avx512!(
        fn widen16(self, halves: &[u16; 16]) -> [f32; 16] {
            cast(_mm512_cvtph_ps(cast(*halves)))
        }
    );

    avx512!(
        fn load_halves(self, halves: &[u16; 32]) -> V {
            let [low, high]: &[[u16; 16]; 2] = parts(halves);
            V::from_registers([_mm512_cvtph_ps(cast(*low)), _mm512_cvtph_ps(cast(*high))])
        }
    );

    avx512!(
        fn fma(self, acc: V, a: V, b: V) -> V {
            let ([s, t], [a, c], [b, d]) = (acc.registers(), a.registers(), b.registers());
            V::from_registers([_mm512_fmadd_ps(a, b, s), _mm512_fmadd_ps(c, d, t)])
        }
    );

    avx512!(
        fn larger(self, a: V, b: V) -> V {
            a.zip(b, |a, b| _mm512_max_ps(a, b))
        }
    );

    avx512!(
        fn sum4(self, v: [V; 4]) -> [f32; 4] {
            let join = |v: V| _mm512_add_ps(v.registers()[0], v.registers()[1]);
            let (a, b, c, d) = (join(v[0]), join(v[1]), join(v[2]), join(v[3]));
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let all = _mm512_add_ps(
                _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
            );
            let eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            cast(four)
        }
    );
}

//! AVX-512: eight sums of 16 bits in each 128-bit part of a register.

use super::avx512::{Avx512, V, avx512};
use crate::shorts::{Shorts, TRANSPOSE};
use bytemuck::must_cast as cast;
use core::arch::x86_64::*;

impl Shorts for Avx512 {
    avx512!(
        fn quarters(self, parts: [&[u8; 16]; 4]) -> __m512i {
            let [a, b, c, d] = parts;
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(cast(*a)), cast(*b));
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(cast(*c)), cast(*d));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    );

    avx512!(
        fn follow<const N: usize>(self, now: __m512i, before: __m512i) -> __m512i {
            match N {
                1 => _mm512_alignr_epi8::<15>(now, before),
                2 => _mm512_alignr_epi8::<14>(now, before),
                3 => _mm512_alignr_epi8::<13>(now, before),
                4 => _mm512_alignr_epi8::<12>(now, before),
                5 => _mm512_alignr_epi8::<11>(now, before),
                6 => _mm512_alignr_epi8::<10>(now, before),
                7 => _mm512_alignr_epi8::<9>(now, before),
                _ => _mm512_alignr_epi8::<8>(now, before),
            }
        }
    );

    avx512!(
        fn transpose(self, v: __m512i) -> __m512i {
            _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(cast(TRANSPOSE)))
        }
    );

    avx512!(
        fn neighbours(self, v: __m512i) -> [__m512i; 2] {
            // 128 is added to both bytes of a difference, so that they are unsigned.
            let biased = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
            [
                _mm512_maddubs_epi16(_mm512_set1_epi8(1), v),
                _mm512_maddubs_epi16(biased, _mm512_set1_epi16(i16::from_le_bytes([1, 0xff]))),
            ]
        }
    );

    avx512!(
        fn butterfly16(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_add_epi16(a, b), _mm512_sub_epi16(a, b)]
        }
    );

    avx512!(
        fn zip16(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)]
        }
    );

    avx512!(
        fn floats16(self, v: __m512i) -> V {
            let (low, high) = (_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v));
            V::from_registers([
                _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(low)),
                _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(high)),
            ])
        }
    );

    avx512!(
        fn store_eights(self, v: V, to: [&mut [f32; 8]; 4]) {
            let ([low, high], [a, b, c, d]) = (v.registers(), to);
            (*a, *b) = (cast(_mm512_castps512_ps256(low)), cast(_mm512_extractf32x8_ps::<1>(low)));
            (*c, *d) = (cast(_mm512_castps512_ps256(high)), cast(_mm512_extractf32x8_ps::<1>(high)));
        }
    );
}

//! Byte lanes for the trellis search, AVX-512.

use super::avx512::{Avx512, avx512};
use crate::trellis::{Bytes, search};
use core::arch::x86_64::*;

impl Bytes for Avx512 {
    type B = __m512i;
    const WIDTH: usize = 64;

    #[inline(always)]
    fn splat(self, value: u8) -> __m512i {
        avx512!(_mm512_set1_epi8(value as i8))
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> __m512i {
        avx512!(_mm512_loadu_si512(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn store(self, v: __m512i) -> [u8; 64] {
        let mut bytes = [0; 64];
        avx512!(_mm512_storeu_si512(bytes.as_mut_ptr().cast(), v));
        bytes
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_adds_epu8(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_subs_epu8(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_min_epu8(a, b))
    }

    #[inline(always)]
    fn below(self, a: __m512i, b: __m512i, _smaller: __m512i) -> u64 {
        avx512!(_mm512_cmplt_epu8_mask(a, b))
    }

    #[inline(always)]
    fn smallest(self, v: __m512i) -> __m512i {
        avx512!({
            let half = _mm256_min_epu8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v));
            let quarter = _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let words = _mm_min_epu8(quarter, _mm_srli_epi16::<8>(quarter));
            let least = _mm_minpos_epu16(_mm_and_si128(words, _mm_set1_epi16(0xff)));
            _mm512_broadcastb_epi8(least)
        })
    }

    #[inline(always)]
    fn table(self, row: &[u8; 8]) -> __m512i {
        avx512!(_mm512_set1_epi64(i64::from_le_bytes(*row)))
    }

    #[inline(always)]
    fn pick(self, table: __m512i, index: __m512i) -> __m512i {
        avx512!(_mm512_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn weave(self, even: __m512i, odd: __m512i) -> (__m512i, __m512i) {
        avx512!({
            let (low, high) = (_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd));
            (
                _mm512_shuffle_i64x2::<0b10_00_10_00>(low, high),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(low, high),
            )
        })
    }

    /// 128-bit lanes 1 and 2 are swapped: see `weave`.
    #[inline(always)]
    fn byte_of(pair: usize) -> usize {
        pair & 15 | (pair & 16) << 1 | (pair & 32) >> 1
    }
}

search!(
    Avx512,
    "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni"
);

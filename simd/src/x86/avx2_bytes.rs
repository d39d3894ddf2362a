//! Byte lanes for the trellis search, AVX2.

use super::avx2::{Avx2, avx2};
use crate::trellis::{Bytes, search};
use core::arch::x86_64::*;

impl Bytes for Avx2 {
    type B = __m256i;
    const WIDTH: usize = 32;

    #[inline(always)]
    fn splat(self, value: u8) -> __m256i {
        avx2!(_mm256_set1_epi8(value as i8))
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> __m256i {
        avx2!(_mm256_loadu_si256(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn store(self, v: __m256i) -> [u8; 64] {
        let mut bytes = [0; 64];
        avx2!(_mm256_storeu_si256(bytes.as_mut_ptr().cast(), v));
        bytes
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_adds_epu8(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_subs_epu8(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_min_epu8(a, b))
    }

    #[inline(always)]
    fn below(self, _a: __m256i, b: __m256i, smaller: __m256i) -> u64 {
        avx2!(u64::from(!(_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, smaller)) as u32)))
    }

    #[inline(always)]
    fn smallest(self, v: __m256i) -> __m256i {
        avx2!({
            let quarter = _mm_min_epu8(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let words = _mm_min_epu8(quarter, _mm_srli_epi16::<8>(quarter));
            let least = _mm_minpos_epu16(_mm_and_si128(words, _mm_set1_epi16(0xff)));
            _mm256_broadcastb_epi8(least)
        })
    }

    #[inline(always)]
    fn table(self, row: &[u8; 8]) -> __m256i {
        avx2!(_mm256_set1_epi64x(i64::from_le_bytes(*row)))
    }

    #[inline(always)]
    fn pick(self, table: __m256i, index: __m256i) -> __m256i {
        avx2!(_mm256_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn weave(self, even: __m256i, odd: __m256i) -> (__m256i, __m256i) {
        avx2!({
            let (low, high) = (_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd));
            (_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
        })
    }

    #[inline(always)]
    fn byte_of(pair: usize) -> usize {
        pair
    }
}

search!(Avx2, "avx2,fma,f16c,bmi1,bmi2");

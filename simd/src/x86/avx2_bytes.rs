//! Byte lanes for the trellis search, AVX2.

use super::avx2::{Avx2, avx2};
use crate::trellis::{Bytes, DECISIONS, search};
use core::arch::x86_64::*;

impl<const VNNI: bool> Bytes for Avx2<VNNI> {
    type B = __m256i;
    type D = [u32; 8];
    const WIDTH: usize = 32;
    const PATHS: &'static [&'static [usize]] = &[&[0, 1, 2, 3], &[4], &[]];
    const TURNS: [usize; 8] = [0, 1, 0, 2, 0, 1, 0, 0];

    #[inline(always)]
    fn splat_byte(self, value: u8) -> __m256i {
        avx2!(_mm256_set1_epi8(value as i8))
    }

    #[inline(always)]
    fn read_bytes(self, bytes: &[u8]) -> __m256i {
        match bytes.first_chunk::<32>() {
            Some(bytes) => avx2!(_mm256_loadu_si256(bytes.as_ptr().cast())),
            None => avx2!(_mm256_setzero_si256()),
        }
    }

    #[inline(always)]
    fn write_bytes(self, v: __m256i, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut::<32>() {
            avx2!(_mm256_storeu_si256(bytes.as_mut_ptr().cast(), v));
        }
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
    fn exchange(self, bit: usize, low: __m256i, high: __m256i) -> (__m256i, __m256i) {
        match bit {
            0 => avx2!((_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high))),
            1 => avx2!((
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            )),
            _ => (low, high),
        }
    }

    #[inline(always)]
    fn undecided(self) -> [u32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn note(
        self,
        mut decisions: [u32; 8],
        register: usize,
        _: bool,
        zero: __m256i,
        _: __m256i,
        smaller: __m256i,
    ) -> [u32; 8] {
        decisions[register] = avx2!(!(_mm256_movemask_epi8(_mm256_cmpeq_epi8(zero, smaller)) as u32));
        decisions
    }

    #[inline(always)]
    fn write(self, decisions: [u32; 8], to: &mut [u8; DECISIONS]) {
        for (to, decisions) in to.as_chunks_mut().0.iter_mut().zip(decisions) {
            *to = decisions.to_le_bytes();
        }
    }

    #[inline(always)]
    fn decision(decisions: &[u8; DECISIONS], address: usize, _: usize) -> usize {
        usize::from(decisions[address / 8 % DECISIONS] >> (address % 8) & 1)
    }
}

search!(Avx2<VNNI>, const VNNI: bool);

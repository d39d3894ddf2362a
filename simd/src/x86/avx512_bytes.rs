//! Byte lanes for the trellis search, AVX-512.

use super::avx512::{Avx512, avx512};
use crate::trellis::{Bytes, DECISIONS, search};
use bytemuck::must_cast as cast;
use core::arch::x86_64::*;

impl Avx512 {
    avx512!(
        /// One bit per byte: set if `a` is less.
        fn less(self, a: __m512i, b: __m512i) -> u64 {
            _mm512_cmplt_epu8_mask(a, b)
        }
    );
}

impl Bytes for Avx512 {
    type B = __m512i;
    type D = [u64; 4];
    const WIDTH: usize = 64;
    const PATHS: &'static [&'static [usize]] = &[&[0, 1, 2, 3], &[5, 4]];
    const TURNS: [usize; 8] = [0, 0, 1, 0, 0, 1, 0, 1];

    avx512!(
        fn splat_byte(self, value: u8) -> __m512i {
            _mm512_set1_epi8(value as i8)
        }
    );

    #[inline(always)]
    fn read_bytes(self, bytes: &[u8]) -> __m512i {
        cast(bytes.first_chunk().copied().unwrap_or([0; 64]))
    }

    #[inline(always)]
    fn write_bytes(self, v: __m512i, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut::<64>() {
            *bytes = cast(v);
        }
    }

    avx512!(
        fn add(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_adds_epu8(a, b)
        }
    );

    avx512!(
        fn sub(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_subs_epu8(a, b)
        }
    );

    avx512!(
        fn min(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_min_epu8(a, b)
        }
    );

    avx512!(
        fn smallest(self, v: __m512i) -> __m512i {
            let half = _mm256_min_epu8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v));
            let quarter = _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let words = _mm_min_epu8(quarter, _mm_srli_epi16::<8>(quarter));
            let least = _mm_minpos_epu16(_mm_and_si128(words, _mm_set1_epi16(0xff)));
            _mm512_broadcastb_epi8(least)
        }
    );

    avx512!(
        fn table(self, row: &[u8; 8]) -> __m512i {
            _mm512_set1_epi64(i64::from_le_bytes(*row))
        }
    );

    avx512!(
        fn pick(self, table: __m512i, index: __m512i) -> __m512i {
            _mm512_shuffle_epi8(table, index)
        }
    );

    avx512!(
        fn exchange(self, bit: usize, low: __m512i, high: __m512i) -> (__m512i, __m512i) {
            match bit {
                0 => (_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)),
                _ => (
                    _mm512_shuffle_i64x2::<0b10_00_10_00>(low, high),
                    _mm512_shuffle_i64x2::<0b11_01_11_01>(low, high),
                ),
            }
        }
    );

    #[inline(always)]
    fn undecided(self) -> [u64; 4] {
        [0; 4]
    }

    #[inline(always)]
    fn note(
        self,
        mut decisions: [u64; 4],
        register: usize,
        _: bool,
        zero: __m512i,
        one: __m512i,
        _: __m512i,
    ) -> [u64; 4] {
        decisions[register] = self.less(one, zero);
        decisions
    }

    #[inline(always)]
    fn write(self, decisions: [u64; 4], to: &mut [u8; DECISIONS]) {
        for (to, decisions) in to.as_chunks_mut().0.iter_mut().zip(decisions) {
            *to = decisions.to_le_bytes();
        }
    }

    #[inline(always)]
    fn decision(decisions: &[u8; DECISIONS], address: usize, _: usize) -> usize {
        usize::from(decisions[address / 8 % DECISIONS] >> (address % 8) & 1)
    }
}

search!(Avx512);

//! AVX2: sums of 16 bits. A line is two registers.

use super::avx2::{Avx2, V, avx2};
use crate::shorts::{Shorts, TRANSPOSE};
use bytemuck::must_cast as cast;
use core::arch::x86_64::*;

#[inline(always)]
fn quarters(a: &[u8; 16], b: &[u8; 16]) -> __m256i {
    avx2!(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(cast(*a)), cast(*b)))
}

#[inline(always)]
fn follow<const N: usize>(now: __m256i, before: __m256i) -> __m256i {
    avx2!(match N {
        1 => _mm256_alignr_epi8::<15>(now, before),
        2 => _mm256_alignr_epi8::<14>(now, before),
        3 => _mm256_alignr_epi8::<13>(now, before),
        4 => _mm256_alignr_epi8::<12>(now, before),
        5 => _mm256_alignr_epi8::<11>(now, before),
        6 => _mm256_alignr_epi8::<10>(now, before),
        7 => _mm256_alignr_epi8::<9>(now, before),
        _ => _mm256_alignr_epi8::<8>(now, before),
    })
}

#[inline(always)]
fn transpose(v: __m256i) -> __m256i {
    avx2!(_mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(cast(TRANSPOSE))))
}

/// The sums of neighbouring bytes.
#[inline(always)]
fn sums(v: __m256i) -> __m256i {
    avx2!(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v))
}

/// The differences of neighbouring bytes. 128 is added to both, so that they are unsigned.
#[inline(always)]
fn differences(v: __m256i) -> __m256i {
    avx2!({
        let biased = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(biased, _mm256_set1_epi16(i16::from_le_bytes([1, 0xff])))
    })
}

/// Eight lanes as floats.
#[inline(always)]
fn floats(v: __m128i) -> __m256 {
    avx2!(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(v)))
}

impl Shorts for Avx2<false> {
    #[inline(always)]
    fn quarters(self, [a, b, c, d]: [&[u8; 16]; 4]) -> [__m256i; 2] {
        [quarters(a, b), quarters(c, d)]
    }

    #[inline(always)]
    fn follow<const N: usize>(self, now: [__m256i; 2], before: [__m256i; 2]) -> [__m256i; 2] {
        [follow::<N>(now[0], before[0]), follow::<N>(now[1], before[1])]
    }

    #[inline(always)]
    fn transpose(self, v: [__m256i; 2]) -> [__m256i; 2] {
        [transpose(v[0]), transpose(v[1])]
    }

    #[inline(always)]
    fn neighbours(self, v: [__m256i; 2]) -> [[__m256i; 2]; 2] {
        [[sums(v[0]), sums(v[1])], [differences(v[0]), differences(v[1])]]
    }

    #[inline(always)]
    fn butterfly16(self, a: [__m256i; 2], b: [__m256i; 2]) -> [[__m256i; 2]; 2] {
        avx2!([
            [_mm256_add_epi16(a[0], b[0]), _mm256_add_epi16(a[1], b[1])],
            [_mm256_sub_epi16(a[0], b[0]), _mm256_sub_epi16(a[1], b[1])]
        ])
    }

    #[inline(always)]
    fn zip16(self, a: [__m256i; 2], b: [__m256i; 2]) -> [[__m256i; 2]; 2] {
        avx2!([
            [_mm256_unpacklo_epi16(a[0], b[0]), _mm256_unpacklo_epi16(a[1], b[1])],
            [_mm256_unpackhi_epi16(a[0], b[0]), _mm256_unpackhi_epi16(a[1], b[1])]
        ])
    }

    #[inline(always)]
    fn floats16(self, v: [__m256i; 2]) -> V {
        avx2!(V::from_registers([
            floats(_mm256_castsi256_si128(v[0])),
            floats(_mm256_extracti128_si256::<1>(v[0])),
            floats(_mm256_castsi256_si128(v[1])),
            floats(_mm256_extracti128_si256::<1>(v[1]))
        ]))
    }

    #[inline(always)]
    fn store_eights(self, v: V, to: [&mut [f32; 8]; 4]) {
        let ([v0, v1, v2, v3], [a, b, c, d]) = (v.registers(), to);
        (*a, *b, *c, *d) = (cast(v0), cast(v1), cast(v2), cast(v3));
    }
}

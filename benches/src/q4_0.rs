//! The external baseline: the dot product of ggml's quantised caches.
//!
//! Rows are `q4_0` as stored, the query is `q8_0`, and every run of 32 has a product of scales. This is what
//! llama.cpp does for each key, with the same instructions. Do not use it in a cache; the page kernels are
//! faster.

use half::f16;
use tqkv_simd::{Level, LevelName};

/// A `q4_0` run of 32 values: scale, nibbles.
type Q4 = [u8; 18];
/// A `q8_0` run of 32 values: scale, bytes.
type Q8 = [u8; 34];

/// `out[i]` = dot product of row i (`q4_0` blocks back to back) and the query (a `q8_0` block).
pub fn scores(level: Level, query: &[u8], rows: &[u8], out: &mut [f32]) {
    let (rows, query) = (rows.as_chunks().0, query.as_chunks().0);
    match level.name() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists if this machine runs it, and `Avx2` implies AVX2, FMA and F16C.
        LevelName::Avx2 => unsafe { x86::avx2(query, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists if this machine runs it; `AvxVnni` implies AVX2, FMA, F16C and
        // AVX-VNNI.
        LevelName::AvxVnni => unsafe { x86::avx_vnni(query, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level only exists if this machine runs it; `Avx512` implies AVX2, FMA, F16C, VNNI and VL.
        LevelName::Avx512 => unsafe { x86::vnni(query, rows, out) },
        // On other machines the compiler's code is the baseline.
        _ => each_row(query, rows, out, portable),
    }
}

/// Passes every row to `dot`.
#[inline(always)]
fn each_row(query: &[Q8], rows: &[Q4], out: &mut [f32], dot: impl Fn(&[Q4], &[Q8]) -> f32) {
    for (out, row) in out.iter_mut().zip(rows.chunks_exact(query.len().max(1))) {
        *out = dot(row, query);
    }
}

fn scale(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

fn portable(row: &[Q4], query: &[Q8]) -> f32 {
    let mut sum = 0.0;
    for (a, b) in row.iter().zip(query) {
        let mut dot = 0;
        for j in 0..16 {
            dot += (i32::from(a[2 + j] & 15) - 8) * i32::from(b[2 + j] as i8);
            dot += (i32::from(a[2 + j] >> 4) - 8) * i32::from(b[18 + j] as i8);
        }
        sum += dot as f32 * (scale([a[0], a[1]]) * scale([b[0], b[1]]));
    }
    sum
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Q4, Q8, each_row};
    use core::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn avx2(query: &[Q8], rows: &[Q4], out: &mut [f32]) {
        each_row(query, rows, out, |row, query| {
            dot(row, query, |codes, query| {
                let signed = _mm256_sub_epi8(codes, _mm256_set1_epi8(8));
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(query, signed));
                _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
            })
        });
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub(super) fn avx_vnni(query: &[Q8], rows: &[Q4], out: &mut [f32]) {
        each_row(query, rows, out, |row, query| {
            dot(row, query, |codes, query| biased(codes, query, |s, a, b| _mm256_dpbusd_avx_epi32(s, a, b)))
        });
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    pub(super) fn vnni(query: &[Q8], rows: &[Q4], out: &mut [f32]) {
        each_row(query, rows, out, |row, query| {
            dot(row, query, |codes, query| biased(codes, query, |s, a, b| _mm256_dpbusd_epi32(s, a, b)))
        });
    }

    /// Biased codes are unsigned. A second product subtracts 8 times the query's sum.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn biased(
        codes: __m256i,
        query: __m256i,
        dpbusd: impl Fn(__m256i, __m256i, __m256i) -> __m256i,
    ) -> __m256i {
        let bias = dpbusd(_mm256_setzero_si256(), _mm256_set1_epi8(8), query);
        _mm256_sub_epi32(dpbusd(_mm256_setzero_si256(), codes, query), bias)
    }

    /// `multiply` takes 32 codes (0 to 15) and 32 signed query bytes, and returns eight partial dot products
    /// of code - 8.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn dot(row: &[Q4], query: &[Q8], multiply: impl Fn(__m256i, __m256i) -> __m256i) -> f32 {
        let mut sum = _mm256_setzero_ps();
        for (a, b) in row.iter().zip(query) {
            let nibbles: __m128i = bytemuck::pod_read_unaligned(&a[2..]);
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(nibbles), nibbles);
            let codes = _mm256_and_si256(both, _mm256_set1_epi8(15));
            let dots = _mm256_cvtepi32_ps(multiply(codes, bytemuck::pod_read_unaligned(&b[2..])));
            let scale = widen([a[0], a[1]]) * widen([b[0], b[1]]);
            sum = _mm256_fmadd_ps(dots, _mm256_set1_ps(scale), sum);
        }
        let four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }

    #[target_feature(enable = "f16c")]
    #[inline]
    fn widen(scale: [u8; 2]) -> f32 {
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(scale)))))
    }
}

#[cfg(test)]
mod tests {
    use super::scores;
    use tqkv_core::{AnyCodec, CodecId, Options};
    use tqkv_simd::{Level, codec};

    #[test]
    fn the_dot_product_is_its_definition_on_every_level() {
        const ROWS: usize = 64;
        for dim in [64, 128, 256] {
            let rows_codec = AnyCodec::new(CodecId::Q4_0, dim, Options::DEFAULT).unwrap();
            let query_codec = AnyCodec::new(CodecId::Q8_0, dim, Options::DEFAULT).unwrap();
            let mut rows = vec![0; ROWS * rows_codec.block_bytes()];
            let x = crate::workload::values(ROWS * dim, 8);
            codec::encode(Level::fastest(), &rows_codec, &x, &mut rows).unwrap();
            let mut query = vec![0; query_codec.block_bytes()];
            query_codec.encode(&crate::workload::values(dim, 9), &mut query).unwrap();
            let mut plain = vec![0.0; dim];
            query_codec.decode(&query, &mut plain).unwrap();
            let mut want = vec![0.0; ROWS];
            codec::scores(Level::Portable, &rows_codec, &plain, &rows, &mut want);
            for level in Level::available() {
                let mut out = vec![f32::NAN; ROWS];
                scores(level, &query, &rows, &mut out);
                for (a, b) in out.iter().zip(&want) {
                    assert!((a - b).abs() < 1e-3, "{}: {a} {b}", level.name().name());
                }
            }
        }
    }
}

//! AVX2: a line is two registers. Four products of bytes take three instructions, with AVX-VNNI one.
//!
//! With AVX-VNNI one operand is unsigned: levels of keys carry a bias, and weights of values are below 128.
//! Without it, `vpmaddubsw` adds two products of an unsigned and a signed byte with saturation, so the
//! operands must be bounded.
//!
//! * Keys: |q| <= 127 is multiplied by a level of at most 127, whose sign `vpsignb` adjusts. A pair is at
//!   most 2 * 127 * 127 < 2^15. `vpsignb` cannot negate -128. Codes that are their own levels are therefore
//!   the unsigned operand, up to 128, and give their sign to the query.
//! * Values: weights are below 128, with the same bound.

use super::avx2::{Avx2, V, avx2};
use crate::lines::{FRACTION, Line, Machine, pair_index};
use core::arch::x86_64::*;

/// Adds products of unsigned and signed bytes, four at a time; the file's documentation has the bounds.
#[inline(always)]
fn dot(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    avx2!({
        let pairs = _mm256_maddubs_epi16(unsigned, signed);
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    })
}

/// The same in one instruction, for any bytes; only used if there is a token with `VNNI`.
#[inline(always)]
fn dot_vnni(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    avx2!(_mm256_dpbusd_avx_epi32(sum, unsigned, signed))
}

/// Adds 128 to signed bytes if the products need unsigned ones.
#[inline(always)]
fn biased<const VNNI: bool>(bytes: __m256i) -> __m256i {
    if VNNI { avx2!(_mm256_xor_si256(bytes, splat(0x80))) } else { bytes }
}

#[inline(always)]
fn look_up(code: __m256i, mask: i8, table: __m256i) -> __m256i {
    avx2!(_mm256_shuffle_epi8(table, _mm256_and_si256(code, _mm256_set1_epi8(mask))))
}

#[inline(always)]
fn shift<const BITS: usize, const FIELD: usize>(v: __m256i) -> __m256i {
    avx2!(_mm256_srl_epi16(v, _mm_cvtsi32_si128((BITS * FIELD) as i32)))
}

/// Levels of the 3-bit code `FIELD`. Codes 6 and 7 have two bits in one register and the third in another.
#[inline(always)]
fn look_up3<const FIELD: usize>([a, b, c]: [__m256i; 3], table: __m256i) -> __m256i {
    avx2!({
        let code = match FIELD {
            0 => a,
            1 => _mm256_srli_epi16::<3>(a),
            2 => b,
            3 => _mm256_srli_epi16::<3>(b),
            4 => c,
            5 => _mm256_srli_epi16::<3>(c),
            _ => {
                let (low, high) =
                    if FIELD == 6 { (a, _mm256_srli_epi16::<4>(c)) } else { (b, _mm256_srli_epi16::<5>(c)) };
                let low = _mm256_and_si256(_mm256_srli_epi16::<6>(low), _mm256_set1_epi8(3));
                let high = _mm256_and_si256(high, _mm256_set1_epi8(4));
                return _mm256_shuffle_epi8(table, _mm256_or_si256(low, high));
            }
        };
        look_up(code, 7, table)
    })
}

/// The whole steps that weights add to the sums of their lanes, and the new sums.
#[inline(always)]
fn whole_steps(weights: __m256, before: __m256i) -> (__m256i, __m256i) {
    const SHIFT: i32 = FRACTION.cast_signed();
    avx2!({
        let after = _mm256_add_epi32(before, _mm256_cvtps_epi32(weights));
        (_mm256_sub_epi32(_mm256_srli_epi32::<SHIFT>(after), _mm256_srli_epi32::<SHIFT>(before)), after)
    })
}

/// The order of dwords after packing, which works within each half of a register: groups of four alternate
/// between the halves.
#[inline(always)]
fn packed_order() -> __m256i {
    avx2!(_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline(always)]
fn splat(byte: u8) -> __m256i {
    avx2!(_mm256_set1_epi8(byte as i8))
}

// Helpers are functions, not closures. A closure does not carry the instruction set. If it is too large to be
// inlined, it passes registers through memory.

/// Levels of the low `BITS` bits: look-ups of 16 entries, combined by the bits above the fourth.
#[inline(always)]
fn look_up_wide<const BITS: usize>(index: __m256i, levels: [__m256i; 4]) -> __m256i {
    let nibble = avx2!(_mm256_and_si256(index, splat(0x0f)));
    let fifth = avx2!(_mm256_slli_epi16::<3>(index));
    match BITS {
        4 => avx2!(_mm256_shuffle_epi8(levels[0], nibble)),
        5 => look_up32(nibble, fifth, levels[0], levels[1]),
        _ => {
            let low = look_up32(nibble, fifth, levels[0], levels[1]);
            let high = look_up32(nibble, fifth, levels[2], levels[3]);
            avx2!(_mm256_blendv_epi8(low, high, _mm256_slli_epi16::<2>(index)))
        }
    }
}

/// Levels of a nibble and a fifth bit, which is the top bit of every byte of `fifth`.
#[inline(always)]
fn look_up32(nibble: __m256i, fifth: __m256i, low: __m256i, high: __m256i) -> __m256i {
    avx2!(_mm256_blendv_epi8(_mm256_shuffle_epi8(low, nibble), _mm256_shuffle_epi8(high, nibble), fifth))
}

#[inline(always)]
fn merge(mask: u8, a: __m256i, b: __m256i) -> __m256i {
    avx2!(_mm256_or_si256(_mm256_and_si256(a, splat(mask)), _mm256_and_si256(b, splat(!mask))))
}

#[inline(always)]
fn rotate(v: __m256i) -> __m256i {
    avx2!({
        let low = _mm256_and_si256(_mm256_srli_epi16::<7>(v), splat(1));
        _mm256_or_si256(low, _mm256_add_epi8(v, v))
    })
}

#[inline(always)]
fn follow_bytes<const N: usize>(now: __m256i, before: __m256i) -> __m256i {
    avx2!(match N {
        1 => _mm256_or_si256(_mm256_slli_epi32::<8>(now), _mm256_srli_epi32::<24>(before)),
        2 => _mm256_or_si256(_mm256_slli_epi32::<16>(now), _mm256_srli_epi32::<16>(before)),
        _ => _mm256_or_si256(_mm256_slli_epi32::<24>(now), _mm256_srli_epi32::<8>(before)),
    })
}

#[inline(always)]
fn follow_dwords<const N: usize>(now: __m256i, before: __m256i) -> __m256i {
    avx2!(match N {
        1 => _mm256_alignr_epi8::<12>(now, before),
        2 => _mm256_alignr_epi8::<8>(now, before),
        _ => _mm256_alignr_epi8::<4>(now, before),
    })
}

/// [`pair_index`] as two byte shuffles, of the even and of the odd operand. Each leaves 0 in the places of
/// the other.
pub(super) const fn pair_shuffles(half: usize) -> [[u8; 16]; 2] {
    let (index, mut shuffles, mut i) = (pair_index(half), [[0x80; 16]; 2], 0);
    while i < 16 {
        shuffles[index[i] as usize / 16][i] = index[i] % 16;
        i += 1;
    }
    shuffles
}

#[inline(always)]
fn pair_bytes<const HALF: usize>(even: __m256i, odd: __m256i) -> __m256i {
    let [from_even, from_odd] = const { pair_shuffles(HALF) };
    avx2!({
        let from_even = _mm256_broadcastsi128_si256(_mm_loadu_si128(from_even.as_ptr().cast()));
        let from_odd = _mm256_broadcastsi128_si256(_mm_loadu_si128(from_odd.as_ptr().cast()));
        _mm256_or_si256(_mm256_shuffle_epi8(even, from_even), _mm256_shuffle_epi8(odd, from_odd))
    })
}

#[inline(always)]
fn pair_dwords<const HALF: usize>(even: __m256i, odd: __m256i) -> __m256i {
    avx2!(match HALF {
        0 => _mm256_unpacklo_epi32(even, odd),
        _ => _mm256_unpackhi_epi32(even, odd),
    })
}

impl<const VNNI: bool> Machine for Avx2<VNNI> {
    type Blocks = Avx2<false>;
    type Line = [__m256i; 2];
    type Sum = [__m256i; 2];
    type Table = __m256i;
    type Levels = [__m256i; 4];

    const HEADS: usize = 4;
    const CHAINS: usize = 4;
    const FIELDS: usize = 2;
    const SUMS: usize = 2;
    const BYTE_WEIGHTS: bool = VNNI;
    const KEY_BIAS: i32 = if VNNI { 128 } else { 0 };

    #[inline(always)]
    fn of_blocks(self) -> Avx2<false> {
        self.common()
    }

    #[inline(always)]
    fn line(self, line: &Line) -> [__m256i; 2] {
        let p: *const __m256i = line.0.as_ptr().cast();
        avx2!([_mm256_load_si256(p), _mm256_load_si256(p.add(1))])
    }

    #[inline(always)]
    fn line_bytes(self, line: [__m256i; 2]) -> [u8; 64] {
        bytemuck::must_cast(line)
    }

    #[inline(always)]
    fn prefetch(self, line: &Line) {
        avx2!(_mm_prefetch::<_MM_HINT_T0>(line.0.as_ptr().cast()));
    }

    #[inline(always)]
    fn value_table(self, levels: &[i8; 16]) -> __m256i {
        avx2!(_mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().cast())))
    }

    #[inline(always)]
    fn key_table(self, levels: &[i8; 16]) -> __m256i {
        biased::<VNNI>(self.value_table(levels))
    }

    #[inline(always)]
    fn level<const BITS: usize, const FIELD: usize>(
        self,
        line: [__m256i; 2],
        table: __m256i,
    ) -> [__m256i; 2] {
        let [a, b] = line;
        let [a, b] = if FIELD == 0 { line } else { [shift::<BITS, FIELD>(a), shift::<BITS, FIELD>(b)] };
        let mask = (1 << BITS) - 1;
        [look_up(a, mask, table), look_up(b, mask, table)]
    }

    #[inline(always)]
    fn level3<const FIELD: usize>(self, lines: [[__m256i; 2]; 3], table: __m256i) -> [__m256i; 2] {
        let [[a, d], [b, e], [c, f]] = lines;
        [look_up3::<FIELD>([a, b, c], table), look_up3::<FIELD>([d, e, f], table)]
    }

    #[inline(always)]
    fn key_bytes(self, line: [__m256i; 2]) -> [__m256i; 2] {
        [biased::<VNNI>(line[0]), biased::<VNNI>(line[1])]
    }

    #[inline(always)]
    fn value_levels(self, levels: &[i8; 64]) -> [__m256i; 4] {
        let [a, b, c, d] = levels.as_chunks::<16>().0 else { return [splat(0); 4] };
        [self.value_table(a), self.value_table(b), self.value_table(c), self.value_table(d)]
    }

    #[inline(always)]
    fn key_levels(self, levels: &[i8; 64]) -> [__m256i; 4] {
        let [a, b, c, d] = self.value_levels(levels);
        [biased::<VNNI>(a), biased::<VNNI>(b), biased::<VNNI>(c), biased::<VNNI>(d)]
    }

    #[inline(always)]
    fn look_up<const BITS: usize>(self, index: [__m256i; 2], levels: [__m256i; 4]) -> [__m256i; 2] {
        [look_up_wide::<BITS>(index[0], levels), look_up_wide::<BITS>(index[1], levels)]
    }

    #[inline(always)]
    fn xor(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        avx2!([_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])])
    }

    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        avx2!([_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])])
    }

    #[inline(always)]
    fn merge<const MASK: u8>(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [merge(MASK, a[0], b[0]), merge(MASK, a[1], b[1])]
    }

    #[inline(always)]
    fn up<const N: u32>(self, v: [__m256i; 2]) -> [__m256i; 2] {
        avx2!({
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi16(v[0], count), _mm256_sll_epi16(v[1], count)]
        })
    }

    #[inline(always)]
    fn down<const N: u32>(self, v: [__m256i; 2]) -> [__m256i; 2] {
        avx2!({
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_srl_epi16(v[0], count), _mm256_srl_epi16(v[1], count)]
        })
    }

    #[inline(always)]
    fn rotate(self, v: [__m256i; 2]) -> [__m256i; 2] {
        [rotate(v[0]), rotate(v[1])]
    }

    #[inline(always)]
    fn follow_bytes<const N: usize>(self, now: [__m256i; 2], before: [__m256i; 2]) -> [__m256i; 2] {
        [follow_bytes::<N>(now[0], before[0]), follow_bytes::<N>(now[1], before[1])]
    }

    #[inline(always)]
    fn follow_dwords<const N: usize>(self, now: [__m256i; 2], before: [__m256i; 2]) -> [__m256i; 2] {
        [follow_dwords::<N>(now[0], before[0]), follow_dwords::<N>(now[1], before[1])]
    }

    #[inline(always)]
    fn pair_bytes<const HALF: usize>(self, even: [__m256i; 2], odd: [__m256i; 2]) -> [__m256i; 2] {
        [pair_bytes::<HALF>(even[0], odd[0]), pair_bytes::<HALF>(even[1], odd[1])]
    }

    #[inline(always)]
    fn pair_dwords<const HALF: usize>(self, even: [__m256i; 2], odd: [__m256i; 2]) -> [__m256i; 2] {
        [pair_dwords::<HALF>(even[0], odd[0]), pair_dwords::<HALF>(even[1], odd[1])]
    }

    #[inline(always)]
    fn zero(self) -> [__m256i; 2] {
        [avx2!(_mm256_setzero_si256()); 2]
    }

    #[inline(always)]
    fn all(self, sum: i32) -> [__m256i; 2] {
        [avx2!(_mm256_set1_epi32(sum)); 2]
    }

    #[inline(always)]
    fn sums(self, lanes: &[i32; 16]) -> [__m256i; 2] {
        let p: *const __m256i = lanes.as_ptr().cast();
        avx2!([_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))])
    }

    #[inline(always)]
    fn add(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        avx2!([_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])])
    }

    #[inline(always)]
    fn key_dot(self, sum: [__m256i; 2], levels: [__m256i; 2], query: u32) -> [__m256i; 2] {
        let query = avx2!(_mm256_set1_epi32(query as i32));
        if VNNI {
            return [dot_vnni(sum[0], levels[0], query), dot_vnni(sum[1], levels[1], query)];
        }
        avx2!({
            let size = _mm256_abs_epi8(query);
            [
                dot(sum[0], size, _mm256_sign_epi8(levels[0], query)),
                dot(sum[1], size, _mm256_sign_epi8(levels[1], query)),
            ]
        })
    }

    #[inline(always)]
    fn byte_dot(self, sum: [__m256i; 2], levels: [__m256i; 2], query: u32) -> [__m256i; 2] {
        if VNNI {
            return self.key_dot(sum, levels, query);
        }
        avx2!({
            let query = _mm256_set1_epi32(query as i32);
            [
                dot(sum[0], _mm256_abs_epi8(levels[0]), _mm256_sign_epi8(query, levels[0])),
                dot(sum[1], _mm256_abs_epi8(levels[1]), _mm256_sign_epi8(query, levels[1])),
            ]
        })
    }

    #[inline(always)]
    fn weights(self, weights: &[u32; 16]) -> [__m256i; 2] {
        let p: *const __m256i = weights.as_ptr().cast();
        avx2!([_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))])
    }

    #[inline(always)]
    fn splat_weights(self, weights: u32) -> [__m256i; 2] {
        [avx2!(_mm256_set1_epi32(weights as i32)); 2]
    }

    /// One conversion, a shift and a mask.
    #[inline(always)]
    fn write_halves(self, weights: V, [high, low]: &mut [[u8; 32]; 2]) {
        let [a, b, c, d] = weights.registers();
        avx2!({
            let ab = _mm256_packus_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
            let cd = _mm256_packus_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
            let in_order = packed_order();
            let upper = _mm256_packus_epi16(_mm256_srli_epi16::<7>(ab), _mm256_srli_epi16::<7>(cd));
            let mask = _mm256_set1_epi16(127);
            let lower = _mm256_packus_epi16(_mm256_and_si256(ab, mask), _mm256_and_si256(cd, mask));
            let (upper, lower) =
                (_mm256_permutevar8x32_epi32(upper, in_order), _mm256_permutevar8x32_epi32(lower, in_order));
            _mm256_storeu_si256(high.as_mut_ptr().cast(), upper);
            _mm256_storeu_si256(low.as_mut_ptr().cast(), lower);
        });
    }

    #[inline(always)]
    fn write_bytes(self, weights: V, sums: [[__m256i; 2]; 2], bytes: &mut [u8; 32]) -> [[__m256i; 2]; 2] {
        let ([a, b, c, d], [[sum_a, sum_b], [sum_c, sum_d]]) = (weights.registers(), sums);
        let (a, sum_a) = whole_steps(a, sum_a);
        let (b, sum_b) = whole_steps(b, sum_b);
        let (c, sum_c) = whole_steps(c, sum_c);
        let (d, sum_d) = whole_steps(d, sum_d);
        avx2!({
            let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
            let packed = _mm256_permutevar8x32_epi32(packed, packed_order());
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed);
        });
        [[sum_a, sum_b], [sum_c, sum_d]]
    }

    #[inline(always)]
    fn value_dot(self, sum: [__m256i; 2], levels: [__m256i; 2], weights: [__m256i; 2]) -> [__m256i; 2] {
        if VNNI {
            [dot_vnni(sum[0], weights[0], levels[0]), dot_vnni(sum[1], weights[1], levels[1])]
        } else {
            [dot(sum[0], weights[0], levels[0]), dot(sum[1], weights[1], levels[1])]
        }
    }

    #[inline(always)]
    fn lanes(self, sum: [__m256i; 2]) -> [i32; 16] {
        let mut out = [0; 16];
        let p: *mut __m256i = out.as_mut_ptr().cast();
        avx2!({
            _mm256_storeu_si256(p, sum[0]);
            _mm256_storeu_si256(p.add(1), sum[1]);
        });
        out
    }

    #[inline(always)]
    fn floats(self, [[a, b], [c, d]]: [[__m256i; 2]; 2]) -> V {
        avx2!(V::from_registers([
            _mm256_cvtepi32_ps(a),
            _mm256_cvtepi32_ps(b),
            _mm256_cvtepi32_ps(c),
            _mm256_cvtepi32_ps(d)
        ]))
    }

    #[inline(always)]
    fn widen16(self, halves: &[u16; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        let p: *const __m128i = halves.as_ptr().cast();
        avx2!({
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(p)));
            _mm256_storeu_ps(out.as_mut_ptr().add(8), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1))));
        });
        out
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; 32]) -> V {
        let p: *const __m128i = halves.as_ptr().cast();
        avx2!(V::from_registers([
            _mm256_cvtph_ps(_mm_loadu_si128(p)),
            _mm256_cvtph_ps(_mm_loadu_si128(p.add(1))),
            _mm256_cvtph_ps(_mm_loadu_si128(p.add(2))),
            _mm256_cvtph_ps(_mm_loadu_si128(p.add(3)))
        ]))
    }

    #[inline(always)]
    fn fma(self, acc: V, a: V, b: V) -> V {
        let (s, a, b) = (acc.registers(), a.registers(), b.registers());
        avx2!(V::from_registers([
            _mm256_fmadd_ps(a[0], b[0], s[0]),
            _mm256_fmadd_ps(a[1], b[1], s[1]),
            _mm256_fmadd_ps(a[2], b[2], s[2]),
            _mm256_fmadd_ps(a[3], b[3], s[3])
        ]))
    }

    #[inline(always)]
    fn larger(self, a: V, b: V) -> V {
        let (a, b) = (a.registers(), b.registers());
        avx2!(V::from_registers([
            _mm256_max_ps(a[0], b[0]),
            _mm256_max_ps(a[1], b[1]),
            _mm256_max_ps(a[2], b[2]),
            _mm256_max_ps(a[3], b[3])
        ]))
    }

    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        avx2!({
            let join = |v: V| {
                let [a, b, c, d] = v.registers();
                _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d))
            };
            let ab = _mm256_hadd_ps(join(v[0]), join(v[1]));
            let cd = _mm256_hadd_ps(join(v[2]), join(v[3]));
            let all = _mm256_hadd_ps(ab, cd);
            let mut out = [0.0; 4];
            let four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
            _mm_storeu_ps(out.as_mut_ptr(), four);
            out
        })
    }
}

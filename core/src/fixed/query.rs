//! A query ready to be scored against blocks, and the score.

use super::codec::FixedCodec;
use super::kernels::Kernels;
use super::math::{ByteScale, LARGEST, Real, clamp_exponent, from_f16};
use super::rotation::FixedRotation;
use super::sample::Sample;
use super::tables::{self, Tables};
use super::trellis::Body;
use super::words::Words;
use crate::code::Code;
use crate::error::DecodeError;
use crate::machine::block_io::SCALE_BYTES;

/// Fraction bits of a score.
pub(super) const SCORE_BITS: u32 = 16;

/// Limit of scores, so that a multiple by log2(e) still fits.
pub(super) const LIMIT: i32 = 1 << 30;

/// A rotated query in signed bytes; from [`FixedCodec::query`].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedQuery<const D: usize> {
    /// Reversed composites, or halves: the second coordinate of a pair in the low half.
    words: Words<D>,
    /// The score is dot * factor * scale of the block.
    factor: Real,
}

impl<const D: usize, C: Code, K: Kernels> FixedCodec<D, C, K> {
    /// Prepares the query `q * 2^exponent`: rotates it and rounds it to signed bytes with one absmax scale.
    /// One query serves all keys of codecs with the same codebook, head dim and seed.
    #[inline(never)]
    pub fn query<T: Sample>(&self, q: &[T; D], exponent: i32) -> FixedQuery<D> {
        let mut y = [self.kernels.blank(); D];
        let (_, finished) = self.rotation.forward(self.kernels, q, &mut y);
        let largest = FixedRotation::finish(&mut y, finished);
        let mut words = Words([0; D]);
        if largest == 0 {
            return FixedQuery { words, factor: Real { mantissa: 0, exponent: 0 } };
        }
        let unit = const { Real::from_f64(LARGEST as f64) };
        let bytes = ByteScale::new(largest, unit.over(Real { mantissa: largest, exponent: 0 }));
        for (word, two) in words.as_mut_slice().iter_mut().zip(y.as_chunks::<2>().0) {
            let [first, second] = two.map(|y| i32::from(bytes.round(y)));
            *word =
                if Tables::<D, C>::HALVES { second & 0xffff | first << 16 } else { second + (first << 16) };
        }
        let unit = const { tables::score_unit(Tables::<D, C>::UNIT, D) };
        let factor = Real { mantissa: largest, exponent: clamp_exponent(exponent) }
            .normalised()
            .times(unit)
            .rounded::<16>();
        FixedQuery { words, factor }
    }

    /// <query, decode(block)> / sqrt(D) in units of 2^-16, saturated to +-2^14: the input of a softmax. The
    /// dot of signed bytes is exact.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite.
    #[inline(never)]
    pub fn score<const N: usize>(&self, query: &FixedQuery<D>, block: &[u8; N]) -> Result<i32, DecodeError> {
        const { assert!(N == Tables::<D, C>::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        self.score_slice(query, block)
    }

    /// [`Self::score`] for a ring.
    #[inline(never)]
    pub(super) fn score_block(&self, query: &FixedQuery<D>, block: &[u8]) -> Result<i32, DecodeError> {
        self.score_slice(query, block)
    }

    #[inline(always)]
    fn score_slice(&self, query: &FixedQuery<D>, block: &[u8]) -> Result<i32, DecodeError> {
        let Some((head, codes)) = block.split_first_chunk::<SCALE_BYTES>() else { return Ok(0) };
        let (significand, octave) = from_f16(u16::from_le_bytes(*head)).ok_or(DecodeError::NonFiniteScale)?;
        if const { Tables::<D, C>::IS_INT8 } {
            let dot =
                self.kernels.dot(query.words.as_slice(), codes).unwrap_or_else(|| query.words.dot(codes));
            return Ok(query.scored(dot, significand, octave));
        }
        if const { Tables::<D, C>::IS_TRELLIS } {
            // The two halves of a word are in the byte order of the machine.
            let place = |i: usize| if cfg!(target_endian = "little") { (i ^ 1) % D } else { i % D };
            let mut dot = 0;
            Body::<D, C>::lanes(codes, |i, level| dot += i32::from(query.words.0[place(i)]) * level);
            return Ok(query.scored(dot, significand, octave));
        }
        // Opaque to the compiler, so that the multiplication adds it.
        let (mut dot, half) = (0, core::hint::black_box(1 << 15));
        for (four, bytes) in
            query.words.as_slice().as_chunks::<4>().0.iter().zip(codes.chunks_exact(Tables::<D, C>::BITS))
        {
            for (&q, level) in four.iter().zip(Tables::<D, C>::composites(bytes)) {
                // (q1 + q0 X)(l0 + l1 X) = q1 l0 + (q0 l0 + q1 l1) X + .. X^2, with X = 2^16. The upper half
                // holds the sum of two products, the lower half q1 l0 with |q1 l0| < 2^15.
                dot += q.wrapping_mul(level).wrapping_add(half) >> 16;
            }
        }
        Ok(query.scored(dot, significand, octave))
    }
}

impl<const D: usize> FixedQuery<D> {
    /// The score of a dot with integer levels, with the scale of a block.
    #[inline(always)]
    fn scored(&self, dot: i32, significand: i32, octave: i32) -> i32 {
        // dot * 2^7 < 2^31: 127 * 128 * 1024 * 2^7; factor <= 2^16 and significand < 2^11.
        let product = i64::from(dot << 7) * i64::from((self.factor.mantissa as i32 * significand) << 4);
        // Below 2^31. 2^21 of the dot times factor is dropped: 2^-27 of the largest dot.
        let product = (product >> 32) as i32;
        let up = self.factor.exponent + octave + SCORE_BITS as i32 + 21;
        if up <= 0 {
            (product >> up.unsigned_abs().min(31)).clamp(-LIMIT, LIMIT)
        } else {
            let up = up.min(31);
            product.clamp(-(LIMIT >> up), LIMIT >> up) << up
        }
    }
}

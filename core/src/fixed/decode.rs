//! From a block to samples.

use super::codec::FixedCodec;
use super::kernels::Kernels;
use super::math::{Multiplier, halves, saturate};
use super::rotation::FixedRotation;
use super::scale::stored;
use super::tables::{self, Tables};
use super::transform::{four, paley, stages, stay_rolled};
use super::trellis::Body;
use super::words::Words;
use crate::code::Code;
use crate::error::DecodeError;
use crate::machine::block_io::SCALE_BYTES;

impl<const D: usize, C: Code, K: Kernels> FixedCodec<D, C, K> {
    /// Decodes a block to multiples of 2^exponent, rounded and saturated to i16.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite; `out` is then untouched.
    #[inline(never)]
    pub fn decode<const N: usize>(
        &self,
        block: &[u8; N],
        exponent: i32,
        out: &mut [i16; D],
    ) -> Result<(), DecodeError> {
        const { assert!(N == Tables::<D, C>::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let Some((head, codes)) = block.split_first_chunk::<SCALE_BYTES>() else { return Ok(()) };
        let unit = const { tables::inverse_unit(Tables::<D, C>::UNIT, D) };
        let (scale, negative) = stored(*head, exponent)?;
        let factor = scale.times(unit);
        if const { Tables::<D, C>::IS_TRELLIS } {
            let mut sums = [0; D];
            Body::<D, C>::lanes(codes, |i, level| sums[i % D] = level);
            self.rotation.inverse(&mut sums, Multiplier::new::<62>(factor, negative), out);
        } else if Tables::<D, C>::HAS_COMPOSITES {
            let multiplier = Multiplier::new::<30>(factor, negative);
            self.decode_composites(codes, multiplier, out);
        } else {
            let mut sums = [0; D];
            for (sums, bytes) in
                sums.as_chunks_mut::<8>().0.iter_mut().zip(codes.chunks_exact(Tables::<D, C>::BITS))
            {
                for (two, pair) in
                    sums.as_chunks_mut::<2>().0.iter_mut().zip(Tables::<D, C>::composites(bytes))
                {
                    *two = halves(pair).into();
                }
            }
            let multiplier = Multiplier::new::<62>(factor, negative);
            self.rotation.inverse(&mut sums, multiplier, out);
        }
        Ok(())
    }

    /// The transform runs on half as many words as coordinates.
    #[inline(always)]
    fn decode_composites(&self, codes: &[u8], multiplier: Multiplier, out: &mut [i16; D]) {
        let mut buffer = Words([0; D]);
        let words = buffer.as_mut_slice();
        for (words, bytes) in
            words.as_chunks_mut::<4>().0.iter_mut().zip(codes.chunks_exact(Tables::<D, C>::BITS))
        {
            let [a, b, c, d] = Tables::<D, C>::composites(bytes);
            // The smallest Sylvester factor is 4 coordinates, 2 words.
            *words = if FixedRotation::<D>::SHAPE.sylvester() >= 8 {
                four([a, b, c, d])
            } else {
                [a + b, a - b, c + d, c - d]
            };
        }
        let scaled = |v: i32, sign: i8| {
            saturate((v * (multiplier.factor * i32::from(sign)) + multiplier.half()) >> multiplier.shift)
        };
        let quarter = D / 8;
        if FixedRotation::<D>::SHAPE.order() == 1 && D >= 32 {
            stages(words, D / 8, 4);
            for i in 0..quarter {
                let sums = four(core::array::from_fn(|k| words[i + k * quarter]));
                for (k, sum) in sums.into_iter().enumerate() {
                    let (at, (low, high)) = (2 * (i + k * quarter), halves(sum));
                    out[at] = scaled(low + high, self.rotation.signs[at]);
                    out[at + 1] = scaled(low - high, self.rotation.signs[at + 1]);
                }
                stay_rolled();
            }
        } else {
            stages(
                words,
                FixedRotation::<D>::SHAPE.sylvester() / 2,
                if FixedRotation::<D>::SHAPE.sylvester() >= 8 { 4 } else { 2 },
            );
            paley(words, FixedRotation::<D>::SHAPE.order(), true);
            for ((two, &sum), signs) in
                out.as_chunks_mut::<2>().0.iter_mut().zip(&*words).zip(self.rotation.signs.as_chunks::<2>().0)
            {
                let (low, high) = halves(sum);
                *two = [scaled(low + high, signs[0]), scaled(low - high, signs[1])];
            }
        }
    }
}

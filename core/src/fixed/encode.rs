//! From samples to a block.

use super::codec::FixedCodec;
use super::kernels::{Kernels, Quantise};
use super::math::{ByteScale, LARGEST, Norm, Real, clamp_exponent, from_f16, to_f16};
use super::rotation::FixedRotation;
use super::sample::Sample;
use super::scale::{CodeSums, Units};
use super::tables::Tables;
use super::transform::stay_rolled;
use super::trellis::{TrellisWorkspace, search};
use crate::code::Code;
use crate::code::codebook::MAX_LEVELS;
use crate::error::EncodeError;
use crate::machine::block_io::SCALE_BYTES;

impl<const D: usize, C: Code, K: Kernels> FixedCodec<D, C, K> {
    /// Encodes `x * 2^exponent`; `N` must be `BLOCK_BYTES`, which the compiler checks.
    ///
    /// Bounds: |y| <= D * 2^15 <= 2^25. After the shift, the root mean square is 2^12 to 2^13. The product
    /// with the reciprocal then stays below sqrt(D) sigma < 2^31 (Cauchy and Schwarz). The sum of y * level
    /// stays below D * 2^13 * 127 < 2^30. `i16::MIN` is a value like any other.
    ///
    /// # Errors
    /// The scale is above the largest f16, 65504; the block then holds zeros. The block also holds zeros for
    /// zero vectors and for scales below 2^-25, which are not errors.
    #[inline(never)]
    pub fn encode<T: Sample, const N: usize>(
        &self,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8; N],
    ) -> Result<(), EncodeError> {
        const { assert!(N == Tables::<D, C>::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        self.encode_slice(x, exponent, block)
    }

    /// [`Self::encode`] for a ring, where the compiler does not know the length of a slot.
    #[inline(never)]
    pub(super) fn encode_block<T: Sample>(
        &self,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        self.encode_slice(x, exponent, block)
    }

    #[inline(always)]
    fn encode_slice<T: Sample>(
        &self,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        if const { Tables::<D, C>::IS_TRELLIS } {
            return self.encode_trellis(x, exponent, block);
        }
        let exponent = clamp_exponent(exponent);
        let mut y = [self.kernels.blank(); D];
        let (squared, finished) = self.rotation.forward(self.kernels, x, &mut y);
        let Some((head, codes)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return Ok(()) };
        let stored = if squared == 0 {
            Ok(0)
        } else if Tables::<D, C>::IS_INT8 {
            Self::bytes(&mut y, finished, exponent, codes)
        } else {
            let norm = Norm::new(squared, Tables::<D, C>::SIGMA);
            let task = Quantise {
                y: &y,
                shift: norm.shift,
                reciprocal: norm.reciprocal,
                bits: Tables::<D, C>::BITS,
                bins: Tables::<D, C>::BINS,
                levels: Tables::<D, C>::LEVELS,
            };
            let cross = if finished { self.kernels.quantise(task, codes) } else { None };
            let cross = cross.unwrap_or_else(|| Self::quantise(&y, finished, norm, codes));
            to_f16(self.scale(norm, cross, codes).shifted(exponent))
        };
        let bits = stored.unwrap_or(0);
        *head = bits.to_le_bytes();
        if bits == 0 {
            codes.fill(0);
        }
        stored.map(|_| ())
    }

    #[inline(always)]
    fn encode_trellis<T: Sample>(
        &self,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let codec = (&self.rotation, self.mode, self.kernels);
        search::<D, C, K, T>(codec, x, exponent, &mut TrellisWorkspace::new(), block)
    }

    /// Writes the codes of the `i8` codec: one absmax scale, and codes rounded with the stored scale. Returns
    /// that scale.
    #[inline(always)]
    fn bytes(y: &mut [i32; D], finished: bool, exponent: i32, codes: &mut [u8]) -> Result<u16, EncodeError> {
        let largest = FixedRotation::finish(y, finished);
        let unit = const { Real::from_f64(Tables::<D, C>::UNIT / LARGEST as f64) };
        let stored = to_f16(Real { mantissa: largest, exponent }.normalised().times(unit))?;
        if let Some((significand @ 1.., octave)) = from_f16(stored) {
            let scale = Real { mantissa: significand as u32, exponent: octave - exponent };
            let unit = const { Real::from_f64(Tables::<D, C>::UNIT) };
            let bytes = ByteScale::new(largest, unit.over(scale));
            for (code, &y) in codes.iter_mut().zip(&*y) {
                *code = bytes.round(y) as u8;
            }
        }
        Ok(stored)
    }

    /// Finishes the transform of `y` if it is not finished, and writes its codes. Returns the sum of shifted
    /// y times level.
    ///
    /// It handles two coordinates at a time, because the registers of the smallest cores hold no more.
    #[inline(always)]
    fn quantise(y: &[i32; D], finished: bool, norm: Norm, codes: &mut [u8]) -> i32 {
        let (mut cross, bits) = (0, Tables::<D, C>::BITS);
        let mut code = |y: i32| {
            let shifted = y >> norm.shift;
            let v = ((shifted * norm.reciprocal) as u32).wrapping_add(1 << 31);
            let entry =
                Tables::<D, C>::BINS.get((v >> Tables::<D, C>::BIN_SHIFT) as usize).copied().unwrap_or(0);
            let code = v.wrapping_add(entry) >> (32 - bits);
            cross += shifted * i32::from(Tables::<D, C>::LEVELS[code as usize % MAX_LEVELS]);
            code
        };
        // The fewest pairs that fill whole bytes.
        let pairs = match bits {
            4 => 1,
            2 => 2,
            _ => 4,
        };
        for (y, bytes) in y.chunks_exact(2 * pairs).zip(codes.chunks_exact_mut(pairs * bits / 4)) {
            let mut word = 0;
            for (i, &[a, b]) in y.as_chunks::<2>().0.iter().enumerate() {
                let [a, b] = if finished { [a, b] } else { [a + b, a - b] };
                let pair = code(a) | code(b) << bits;
                if bits * pairs <= 16 {
                    word |= u64::from(pair << (2 * bits * i));
                } else {
                    word |= u64::from(pair) << (2 * bits * i);
                }
            }
            for (to, from) in bytes.iter_mut().zip(word.to_le_bytes()) {
                *to = from;
            }
            stay_rolled();
        }
        cross
    }

    /// The scale to store, for an exponent of 0.
    #[inline(always)]
    fn scale(&self, norm: Norm, cross: i32, codes: &[u8]) -> Real {
        let units = const { Units::new(Tables::<D, C>::UNIT, D, Tables::<D, C>::UNBOUNDED) };
        // y is shifted.
        let cross = Real { mantissa: cross as u32, exponent: norm.shift as i32 };
        CodeSums { cross, energy: || Self::energy(codes) }.scale(self.mode, norm.value, norm.value, units)
    }

    /// Sum of squared levels: at most 1024 * 127^2 < 2^24. It reads one code at a time: it is rarely needed,
    /// so it is kept small.
    #[inline(never)]
    fn energy(codes: &[u8]) -> u32 {
        let bits = Tables::<D, C>::BITS;
        let byte = |at: usize| codes.get(at).map_or(0, |&byte| usize::from(byte));
        let mut sum = 0;
        for at in (0..D * bits).step_by(bits) {
            let code = (byte(at / 8) | byte(at / 8 + 1) << 8) >> (at % 8) & ((1 << bits) - 1);
            let level = i32::from(Tables::<D, C>::LEVELS[code % MAX_LEVELS]);
            sum += (level * level) as u32;
            stay_rolled();
        }
        sum
    }
}

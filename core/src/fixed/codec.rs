//! `FixedCodec`: encode and decode with everything but the signs known at compile time.

use super::kernels::{Kernels, Quantise};
use super::math::{Multiplier, Norm, Real, from_f16, saturate, to_f16};
use super::scale::{inverse_root, stored};
use super::tables::{self, INT8_UNIT, LARGEST};
use super::transform::{four, paley, stages, stay_rolled};
use super::unrotate;
use super::words::Words;
use crate::Portable;
use crate::block_io::SCALE_BYTES;
use crate::codebook::{Codebook, MAX_LEVELS};
use crate::codec_id::{CodecId, Family};
use crate::error::{DecodeError, EncodeError};
use crate::head_dim::HeadDim;
use crate::rotation::Signs;
use crate::scale::ScaleMode;

/// `CODEC` of `i8`.
pub const I8: usize = 8;
/// `CODEC` of `n1`.
pub const N1: usize = 11;
/// `CODEC` of `n2`.
pub const N2: usize = 12;
/// `CODEC` of `n3`.
pub const N3: usize = 13;
/// `CODEC` of `n4`.
pub const N4: usize = 14;

/// Whether a 64-bit product is cheap: everywhere but on ARMv6-M, the target without compare-and-swap.
const LONG_PRODUCTS: bool = cfg!(target_has_atomic = "ptr");

/// What a vector may be made of: `i16` or `i8`, any value of either.
pub trait Sample: Copy + sealed::Sealed {
    /// The value.
    fn widen(self) -> i32;

    /// The same vector, where it is made of `i16`.
    fn wide(x: &[Self]) -> Option<&[i16]>;
}

impl Sample for i16 {
    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn wide(x: &[Self]) -> Option<&[i16]> {
        Some(x)
    }
}

impl Sample for i8 {
    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn wide(_: &[Self]) -> Option<&[i16]> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i16 {}
    impl Sealed for i8 {}
}

/// The codec of one head dim and kind in integers; best kept in a `static`.
///
/// `CODEC` 1 to 5 are `s1` to `s5`; [`N1`] to [`N4`] and [`I8`] name the others. Only the tables of
/// the codec that is used are linked. The value itself is the signs (one byte a coordinate) and
/// the scale mode.
///
/// ```
/// use tqkv_core::fixed::FixedCodec;
///
/// static KEYS: FixedCodec<128, 4> = FixedCodec::DEFAULT;
///
/// let x: [i16; 128] = core::array::from_fn(|i| (i as i16).wrapping_mul(4001) >> 2);
/// let mut block = [0; FixedCodec::<128, 4>::BLOCK_BYTES];
/// KEYS.encode(&x, -15, &mut block)?;
///
/// let mut back = [0; 128];
/// KEYS.decode(&block, -15, &mut back).unwrap();
/// let error: i64 = x.iter().zip(&back).map(|(&a, &b)| (i64::from(a) - i64::from(b)).pow(2)).sum();
/// let energy: i64 = x.iter().map(|&a| i64::from(a).pow(2)).sum();
/// assert!(error < energy / 50);
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
///
/// A block of the wrong size does not compile:
/// ```compile_fail
/// use tqkv_core::fixed::FixedCodec;
/// FixedCodec::<128, 4>::DEFAULT.encode(&[0_i16; 128], -15, &mut [0; 64]);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCodec<const D: usize, const CODEC: usize> {
    /// 1 or -1.
    pub(super) signs: [i8; D],
    pub(super) mode: ScaleMode,
}

impl<const D: usize, const CODEC: usize> FixedCodec<D, CODEC> {
    /// Which codec the blocks are of.
    pub const ID: CodecId = match CODEC {
        1 => CodecId::S1,
        2 => CodecId::S2,
        3 => CodecId::S3,
        4 => CodecId::S4,
        5 => CodecId::S5,
        I8 => CodecId::I8,
        N1 => CodecId::N1,
        N2 => CodecId::N2,
        N3 => CodecId::N3,
        N4 => CodecId::N4,
        _ => panic!("codec not supported: accepted are 1 to 5 (s1 to s5), N1 to N4 and I8"),
    };
    pub(super) const BITS: usize = Self::ID.bits() as usize;
    pub(super) const IS_INT8: bool = matches!(Self::ID.family(), Family::Int8);
    pub(super) const SHAPE: HeadDim = match HeadDim::new(D) {
        Some(shape) => shape,
        None => panic!(
            "unsupported head dim: accepted are n * 2^k with n = 1, 12, 20, 28, 36, multiples of 16, 16 to 1024"
        ),
    };
    const BOOK: Codebook = match Self::ID.family() {
        Family::Scalar => Codebook::solve_scalar(D, Self::BITS),
        Family::Nested => Codebook::solve_nested(D, Self::BITS),
        // Stands where there is no codebook; never read.
        Family::Int8 | Family::Half | Family::Ggml | Family::Trellis => Codebook::solve_scalar(16, 1),
    };
    const BIN_SHIFT: u32 = 32 - tables::bin_bits(&Self::BOOK, D);
    const BINS: &'static [u32] = match tables::bin_bits(&Self::BOOK, D) {
        0..=4 => const { &tables::bins::<16>(&Self::BOOK, D) },
        5 => const { &tables::bins::<32>(&Self::BOOK, D) },
        6 => const { &tables::bins::<64>(&Self::BOOK, D) },
        7 => const { &tables::bins::<128>(&Self::BOOK, D) },
        8 => const { &tables::bins::<256>(&Self::BOOK, D) },
        9 => const { &tables::bins::<512>(&Self::BOOK, D) },
        _ => const { &tables::bins::<1024>(&Self::BOOK, D) },
    };
    const LEVELS: &'static [i16; MAX_LEVELS] = &tables::levels(&Self::BOOK);
    const FINE_LEVELS: &'static [i16; MAX_LEVELS] = &tables::fine_levels(&Self::BOOK, D);
    pub(super) const PAIRS: &'static [i32] = match Self::BITS {
        1 => const { &tables::pairs::<4>(&Self::BOOK) },
        2 => const { &tables::pairs::<16>(&Self::BOOK) },
        3 => const { &tables::pairs::<64>(&Self::BOOK) },
        _ => const { &tables::pairs::<256>(&Self::BOOK) },
    };
    pub(super) const UNIT: f64 = if Self::IS_INT8 { INT8_UNIT } else { tables::unit(&Self::BOOK) };
    const FINE_UNIT: f64 = Self::UNIT * tables::fineness(D);
    const SIGMA: u32 = tables::sigma(D);
    /// Whether the transform of composites stays inside their halves. A damaged `i8` block may
    /// hold -128.
    const HAS_COMPOSITES: bool = D * if Self::IS_INT8 { 128 } else { LARGEST as usize } <= i16::MAX as usize;
    /// Bytes of one block: the scale and D * bits / 8 bytes of codes.
    pub const BLOCK_BYTES: usize = SCALE_BYTES + D * Self::BITS / 8;

    /// Seed 42, unbiased scale.
    pub const DEFAULT: Self = Self::new(42, ScaleMode::Unbiased);

    /// The codec with the signs of `seed`; encoder, decoder and query must agree on it.
    pub const fn new(seed: u64, mode: ScaleMode) -> Self {
        let (random, mut signs, mut i) = (Signs::from_seed(seed, D), [1; D], 0);
        while i < D {
            if random.is_negative(i) {
                signs[i] = -1;
            }
            i += 1;
        }
        Self { signs, mode }
    }

    /// Encodes `x * 2^exponent`; `N` must be [`Self::BLOCK_BYTES`], which the compiler checks.
    ///
    /// Bounds: |y| <= D * 2^15 <= 2^25; with root mean square 2^12 to 2^13 after the shift, the
    /// product with the reciprocal stays below sqrt(D) sigma < 2^31 (Cauchy and Schwarz), and so
    /// does the sum of y * level. `i16::MIN` is a value like any other.
    ///
    /// # Errors
    /// The scale is above the largest f16, 65504; the block holds zeros then. So it does for zero
    /// vectors and for scales below 2^-25, which are no error.
    #[inline]
    pub fn encode<T: Sample, const N: usize>(
        &self,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8; N],
    ) -> Result<(), EncodeError> {
        self.encode_with(Portable, x, exponent, block)
    }

    /// [`Self::encode`] by other kernels: the same block.
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    pub fn encode_with<K: Kernels, T: Sample, const N: usize>(
        &self,
        kernels: K,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8; N],
    ) -> Result<(), EncodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        self.encode_slice(kernels, x, exponent, block)
    }

    #[inline(always)]
    pub(super) fn encode_slice<K: Kernels, T: Sample>(
        &self,
        kernels: K,
        x: &[T; D],
        exponent: i32,
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let exponent = clamp_exponent(exponent);
        let mut y = [kernels.blank(); D];
        let (squared, finished) = self.rotate_with(kernels, x, &mut y);
        let Some((head, codes)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return Ok(()) };
        let stored = if squared == 0 {
            Ok(0)
        } else if Self::IS_INT8 {
            Self::bytes(&mut y, finished, exponent, codes)
        } else {
            let norm = Norm::new(squared, Self::SIGMA);
            let task = Quantise {
                y: &y,
                shift: norm.shift,
                reciprocal: norm.reciprocal,
                bits: Self::BITS,
                bins: Self::BINS,
                levels: Self::FINE_LEVELS,
            };
            let cross = if finished { kernels.quantise(task, codes) } else { None };
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

    /// The `i8` codec: codes under one absmax scale, rounded with the scale that is stored.
    /// Returns that scale.
    #[inline(always)]
    fn bytes(y: &mut [i32; D], finished: bool, exponent: i32, codes: &mut [u8]) -> Result<u16, EncodeError> {
        let largest = Self::finish(y, finished);
        let unit = const { Real::from_f64(INT8_UNIT / LARGEST as f64) };
        let stored = to_f16(Real { mantissa: largest, exponent }.normalised().times(unit))?;
        if let Some((significand @ 1.., octave)) = from_f16(stored) {
            let scale = Real { mantissa: significand as u32, exponent: octave - exponent };
            let unit = const { Real::from_f64(INT8_UNIT) };
            let bytes = ByteScale::new(largest, unit.over(scale));
            for (code, &y) in codes.iter_mut().zip(&*y) {
                *code = bytes.round(y) as u8;
            }
        }
        Ok(stored)
    }

    /// y = H diag(signs) x, and whether that is all of it: stride 1 may be left to the caller. Returns |x|^2.
    #[inline(always)]
    pub(super) fn rotate_with<K: Kernels, T: Sample>(
        &self,
        kernels: K,
        x: &[T; D],
        y: &mut [i32; D],
    ) -> (u64, bool) {
        let input = if Self::SHAPE.order() == 1 { T::wide(x) } else { None };
        match input.and_then(|x| kernels.rotate(x, &self.signs, y)) {
            Some(squared) => (squared, true),
            None => (self.rotate(x, y), false),
        }
    }

    /// y = H diag(signs) x but for stride 1; returns |x|^2.
    #[inline(always)]
    fn rotate<T: Sample>(&self, x: &[T; D], y: &mut [i32; D]) -> u64 {
        let mut squared = 0;
        let pairs = x.as_chunks::<2>().0.iter().zip(self.signs.as_chunks::<2>().0);
        for (y, (x, signs)) in y.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            let (a, b) = (x[0].widen(), x[1].widen());
            if LONG_PRODUCTS {
                squared += (i64::from(a) * i64::from(a)) as u64;
                squared += (i64::from(b) * i64::from(b)) as u64;
            } else {
                // Two squares of at most 2^30 fit 32 bits.
                squared += u64::from((a * a) as u32 + (b * b) as u32);
            }
            *y = [a * i32::from(signs[0]), b * i32::from(signs[1])];
        }
        paley(y, Self::SHAPE.order(), false);
        stages(y, Self::SHAPE.sylvester(), 2);
        squared
    }

    /// Finishes the transform in place unless it is; returns the largest magnitude.
    #[inline(always)]
    pub(super) fn finish(y: &mut [i32; D], finished: bool) -> u32 {
        let mut largest = 0;
        for two in y.as_chunks_mut::<2>().0 {
            if !finished {
                *two = [two[0] + two[1], two[0] - two[1]];
            }
            largest = largest.max(two[0].unsigned_abs()).max(two[1].unsigned_abs());
        }
        largest
    }

    /// Finishes the transform of `y` unless it is, and writes its codes; returns the sum of shifted y times fine level.
    ///
    /// Two coordinates at a time, which is what the registers of the smallest cores hold.
    #[inline(always)]
    fn quantise(y: &[i32; D], finished: bool, norm: Norm, codes: &mut [u8]) -> i32 {
        let (mut cross, bits) = (0, Self::BITS);
        let mut code = |y: i32| {
            let shifted = y >> norm.shift;
            let v = ((shifted * norm.reciprocal) as u32).wrapping_add(1 << 31);
            let entry = Self::BINS.get((v >> Self::BIN_SHIFT) as usize).copied().unwrap_or(0);
            let code = v.wrapping_add(entry) >> (32 - bits);
            cross += shifted * i32::from(Self::FINE_LEVELS[code as usize % MAX_LEVELS]);
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
        // y is shifted, levels are in integer units.
        let cross = Real { mantissa: cross as u32, exponent: norm.shift as i32 };
        match self.mode {
            ScaleMode::Raw => norm.value,
            ScaleMode::Unbiased => {
                let unit = const { tables::forward_unit(Self::FINE_UNIT, D) };
                norm.value.normalised().times(norm.value.times(unit).over(cross).normalised())
            }
            ScaleMode::Preserving => {
                let energy = Real { mantissa: Self::energy(codes), exponent: 0 };
                let unit = const { Real::from_f64(Self::FINE_UNIT * crate::codebook::sqrt(D as f64)) };
                norm.value.normalised().times(inverse_root(energy).times(unit))
            }
            ScaleMode::Mmse => {
                let energy = Real { mantissa: Self::energy(codes), exponent: 0 };
                cross.over(energy).normalised().times(const { Real::from_f64(Self::FINE_UNIT) })
            }
        }
    }

    /// Sum of squared fine levels; at least 1, below 2^32.
    fn energy(codes: &[u8]) -> u32 {
        let mut sum = 0;
        for bytes in codes.chunks_exact(Self::BITS) {
            let word = word(bytes);
            for k in 0..8 {
                let code = (word >> (Self::BITS * k)) as usize % (1 << Self::BITS);
                let level = Self::FINE_LEVELS.get(code).map_or(0, |&level| i32::from(level));
                sum += (level * level) as u32;
            }
        }
        sum.max(1)
    }

    /// Integer levels of eight codes in `BITS` bytes, two to a composite.
    #[inline(always)]
    pub(super) fn composites(bytes: &[u8]) -> [i32; 4] {
        if Self::IS_INT8 {
            let signed = |i: usize| i32::from(bytes.get(i).copied().unwrap_or(0) as i8);
            return core::array::from_fn(|k| signed(2 * k) + (signed(2 * k + 1) << 16));
        }
        let word = word(bytes);
        core::array::from_fn(|k| {
            if Self::BITS == 5 {
                let pair = (word >> (10 * k)) as usize;
                i32::from(Self::LEVELS[pair % 32]) + (i32::from(Self::LEVELS[pair / 32 % 32]) << 16)
            } else {
                let pair = (word >> (2 * Self::BITS * k)) as usize % Self::PAIRS.len();
                Self::PAIRS.get(pair).copied().unwrap_or(0)
            }
        })
    }

    /// Decodes a block to multiples of 2^exponent, rounded and saturated to i16.
    ///
    /// The levels are rounded to signed bytes: at 4 bits the squared error was 0.4 % larger at head dim
    /// 128 and 2 % at 16, at 5 bits 3 %. A float decoder of the same block has no such loss.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite; `out` is untouched then.
    #[inline(never)]
    pub fn decode<const N: usize>(
        &self,
        block: &[u8; N],
        exponent: i32,
        out: &mut [i16; D],
    ) -> Result<(), DecodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let Some((head, codes)) = block.split_first_chunk::<SCALE_BYTES>() else { return Ok(()) };
        let unit = const { tables::inverse_unit(Self::UNIT, D) };
        let (scale, negative) = stored(*head, exponent)?;
        let factor = scale.times(unit);
        if Self::HAS_COMPOSITES {
            let multiplier = Multiplier::new::<30>(factor, negative);
            self.decode_composites(codes, multiplier, out);
        } else {
            let mut sums = [0; D];
            for (sums, bytes) in sums.as_chunks_mut::<8>().0.iter_mut().zip(codes.chunks_exact(Self::BITS)) {
                for (two, pair) in sums.as_chunks_mut::<2>().0.iter_mut().zip(Self::composites(bytes)) {
                    *two = halves(pair).into();
                }
            }
            let multiplier = Multiplier::new::<62>(factor, negative);
            unrotate::wide(Self::SHAPE, &self.signs, &mut sums, multiplier, out);
        }
        Ok(())
    }

    /// Half as many words as coordinates go through the transform.
    #[inline(always)]
    fn decode_composites(&self, codes: &[u8], multiplier: Multiplier, out: &mut [i16; D]) {
        let mut buffer = Words([0; D]);
        let words = buffer.as_mut_slice();
        for (words, bytes) in words.as_chunks_mut::<4>().0.iter_mut().zip(codes.chunks_exact(Self::BITS)) {
            let [a, b, c, d] = Self::composites(bytes);
            // The smallest Sylvester factor is 4 coordinates, 2 words.
            *words =
                if Self::SHAPE.sylvester() >= 8 { four([a, b, c, d]) } else { [a + b, a - b, c + d, c - d] };
        }
        let scaled = |v: i32, sign: i8| {
            saturate((v * (multiplier.factor * i32::from(sign)) + multiplier.half()) >> multiplier.shift)
        };
        let quarter = D / 8;
        if Self::SHAPE.order() == 1 && D >= 32 {
            stages(words, D / 8, 4);
            for i in 0..quarter {
                let sums = four(core::array::from_fn(|k| words[i + k * quarter]));
                for (k, sum) in sums.into_iter().enumerate() {
                    let (at, (low, high)) = (2 * (i + k * quarter), halves(sum));
                    out[at] = scaled(low + high, self.signs[at]);
                    out[at + 1] = scaled(low - high, self.signs[at + 1]);
                }
                stay_rolled();
            }
        } else {
            stages(words, Self::SHAPE.sylvester() / 2, if Self::SHAPE.sylvester() >= 8 { 4 } else { 2 });
            paley(words, Self::SHAPE.order(), true);
            for ((two, &sum), signs) in
                out.as_chunks_mut::<2>().0.iter_mut().zip(&*words).zip(self.signs.as_chunks::<2>().0)
            {
                let (low, high) = halves(sum);
                *two = [scaled(low + high, signs[0]), scaled(low - high, signs[1])];
            }
        }
    }
}

/// Beyond this every result is zero or saturated; it keeps sums of exponents from overflowing.
pub(super) fn clamp_exponent(exponent: i32) -> i32 {
    exponent.clamp(-1000, 1000)
}

/// The two halves of a composite.
#[inline(always)]
pub(super) const fn halves(composite: i32) -> (i32, i32) {
    let low = composite as i16 as i32;
    (low, (composite - low) >> 16)
}

/// Up to eight bytes, little-endian.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).enumerate().fold(0, |word, (i, &byte)| word | u64::from(byte) << (8 * i))
}

/// `y` rounded to bytes: `y * 2^-shift * factor * 2^-23`.
#[derive(Clone, Copy)]
pub(super) struct ByteScale {
    shift: u32,
    factor: i32,
}

impl ByteScale {
    /// Where the `largest` magnitude of y becomes `code`; `code / largest` may be off by half.
    #[inline]
    pub(super) fn new(largest: u32, target: Real) -> Self {
        let shift = 16_u32.saturating_sub(largest.leading_zeros());
        let Real { mantissa, exponent } = target;
        let left = exponent + 23 + shift as i32;
        let factor = if left >= 0 { mantissa << left.min(31) } else { mantissa >> (-left).min(31) };
        Self { shift, factor: factor as i32 }
    }

    /// The byte of `y`, clamped to +-127.
    #[inline(always)]
    pub(super) fn round(self, y: i32) -> i8 {
        let shifted = (y + ((1 << self.shift) >> 1)) >> self.shift;
        ((shifted * self.factor + (1 << 22)) >> 23).clamp(-LARGEST, LARGEST) as i8
    }
}

//! `FixedTrellis`: trellis codes in integers. All of them decode; those with eight states, `t1s8` to `t4s8`, encode too.
//!
//! Blocks have about two thirds of the squared error of the scalar codes of the same size. The price is the search: 7 to
//! 16 times the instructions of [`super::FixedCodec::encode`], and 6 KiB of metric rows. It is the search of
//! [`crate::trellis`] at [`crate::Effort::Fast`], coordinate by coordinate, over eight states that stay in registers.

use super::codec::{FixedCodec, I8, Sample, clamp_exponent};
use super::kernels::Kernels;
use super::math::{Multiplier, Norm, Real, to_f16};
use super::scale::{Moments, Units, stored};
use super::tables;
use super::transform::stay_rolled;
use super::unrotate;
use crate::Portable;
use crate::block_io::SCALE_BYTES;
use crate::codec_id::CodecId;
use crate::error::{DecodeError, EncodeError};
use crate::scale::ScaleMode;
use crate::trellis::{self, Code, MAX_LEVELS, PARITIES, Plain, RESOLUTION, Trellis, WARM_UP};

/// `CODEC` of `t1`.
pub const T1: usize = 128;
/// `CODEC` of `t1h`.
pub const T1H: usize = 129;
/// `CODEC` of `t2`.
pub const T2: usize = 130;
/// `CODEC` of `t2h`.
pub const T2H: usize = 131;
/// `CODEC` of `t3`.
pub const T3: usize = 132;
/// `CODEC` of `t4`.
pub const T4: usize = 133;
/// `CODEC` of `t1s8`.
pub const T1S8: usize = 144;
/// `CODEC` of `t2s8`.
pub const T2S8: usize = 145;
/// `CODEC` of `t3s8`.
pub const T3S8: usize = 146;
/// `CODEC` of `t4s8`.
pub const T4S8: usize = 147;

/// What an encoder works in: 7 bytes a coordinate and 64 more, best kept in a `static`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TrellisWorkspace<const D: usize> {
    y: [i32; D],
    targets: [i16; D],
    /// One bit a state for each coordinate: whether the path came from the upper half of the states.
    decisions: [u8; D],
    /// The same for the first pass.
    warm_up: [u8; WARM_UP],
}

impl<const D: usize> TrellisWorkspace<D> {
    /// A workspace; what it holds between calls does not matter.
    pub const fn new() -> Self {
        Self { y: [0; D], targets: [0; D], decisions: [0; D], warm_up: [0; WARM_UP] }
    }
}

impl<const D: usize> Default for TrellisWorkspace<D> {
    fn default() -> Self {
        Self::new()
    }
}

/// A trellis codec of one head dim in integers; best kept in a `static`.
///
/// `CODEC` is one of [`T1`] to [`T4S8`].
///
/// ```
/// use tqkv_core::fixed::{FixedTrellis, T2S8, TrellisWorkspace};
///
/// static VALUES: FixedTrellis<128, T2S8> = FixedTrellis::DEFAULT;
///
/// let x: [i16; 128] = core::array::from_fn(|i| (i as i16).wrapping_mul(4001) >> 2);
/// let mut block = [0; FixedTrellis::<128, T2S8>::BLOCK_BYTES];
/// VALUES.encode(&x, -15, &mut TrellisWorkspace::new(), &mut block)?;
///
/// let mut back = [0; 128];
/// VALUES.decode(&block, -15, &mut back).unwrap();
/// let error: i64 = x.iter().zip(&back).map(|(&a, &b)| (i64::from(a) - i64::from(b)).pow(2)).sum();
/// let energy: i64 = x.iter().map(|&a| i64::from(a).pow(2)).sum();
/// assert!(error < energy / 8);
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
///
/// The other codes only decode:
/// ```compile_fail
/// use tqkv_core::fixed::{FixedTrellis, T2, TrellisWorkspace};
/// let _ = FixedTrellis::<128, T2>::DEFAULT.encode(&[0_i16; 128], 0, &mut TrellisWorkspace::new(), &mut [0; 34]);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedTrellis<const D: usize, const CODEC: usize> {
    /// Signs, scale mode and the rotation.
    base: FixedCodec<D, I8>,
}

impl<const D: usize, const CODEC: usize> FixedTrellis<D, CODEC> {
    /// Which codec the blocks are of.
    pub const ID: CodecId = match CODEC {
        T1 => CodecId::T1,
        T1H => CodecId::T1H,
        T2 => CodecId::T2,
        T2H => CodecId::T2H,
        T3 => CodecId::T3,
        T4 => CodecId::T4,
        T1S8 => CodecId::T1S8,
        T2S8 => CodecId::T2S8,
        T3S8 => CodecId::T3S8,
        T4S8 => CodecId::T4S8,
        _ => panic!("codec not supported: accepted are T1 to T4, T1H, T2H and T1S8 to T4S8"),
    };
    const TRELLIS: &'static Trellis<'static> = match trellis::trellis(Self::ID) {
        Some(trellis) => trellis,
        None => panic!("not a trellis codec"),
    };
    const CODE: Code = Self::TRELLIS.code;
    /// Plain bits of a coordinate, where they are not shared.
    const PLAIN_BITS: usize = match Self::CODE.plain {
        Plain::Bits(bits) => bits as usize,
        Plain::PairBit | Plain::PairOfThree => 0,
    };
    /// Parity of each content of the register, newest bit lowest.
    const PARITIES_OF: &'static [u8; WINDOWS] = &parities(&Self::CODE);
    const LEVELS: &'static [i8; MAX_LEVELS] = &Self::CODE.levels;
    const UNIT: f64 = Self::CODE.per_sigma as f64;
    /// Bytes of one block: the scale, a plane of coded bits, and the plain ones.
    pub const BLOCK_BYTES: usize = SCALE_BYTES + Self::CODE.body_bytes(D);

    /// Seed 42, unbiased scale.
    pub const DEFAULT: Self = Self::new(42, ScaleMode::Unbiased);

    /// The codec with the signs of `seed`; encoder and decoder must agree on it.
    pub const fn new(seed: u64, mode: ScaleMode) -> Self {
        Self { base: FixedCodec::new(seed, mode) }
    }

    /// Decodes a block to multiples of 2^exponent, rounded and saturated to i16. Every body is a valid one.
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
        let Some((head, body)) = block.split_first_chunk::<SCALE_BYTES>() else { return Ok(()) };
        let (scale, negative) = stored(*head, exponent)?;
        let mut sums = [0; D];
        Self::levels(body, &mut sums);
        let unit = const { tables::inverse_unit(Self::UNIT, D) };
        let multiplier = Multiplier::new::<62>(scale.times(unit), negative);
        unrotate::wide(FixedCodec::<D, I8>::SHAPE, &self.base.signs, &mut sums, multiplier, out);
        Ok(())
    }

    /// Levels of a body: the coded bits run through a register, once around, and plain bits come from beside them.
    ///
    /// [`trellis::levels`] does whole bytes at once, in twenty times the code.
    #[inline(never)]
    fn levels(body: &[u8], levels: &mut [i32; D]) {
        let n = D / 8;
        let (coded, plain) = body.split_at_checked(n).unwrap_or_default();
        let bit_of =
            |plane: &[u8], i: usize, bit: usize| usize::from(plane.get(i).map_or(0, |b| b >> bit & 1));
        // The ring before coordinate 0.
        let mut window = 0;
        for t in D - 8..D {
            window = window << 1 | bit_of(coded, t % n, t / n);
        }
        for (bit, run) in levels.chunks_exact_mut(n).enumerate() {
            for (i, level) in run.iter_mut().enumerate() {
                window = (window << 1 | bit_of(coded, i, bit)) % WINDOWS;
                let part = match Self::CODE.plain {
                    Plain::Bits(_) => {
                        (0..Self::PLAIN_BITS).fold(0, |part, p| part | bit_of(plain, p * n + i, bit) << p)
                    }
                    Plain::PairBit => bit_of(plain, i / 2, bit),
                    Plain::PairOfThree => {
                        let symbol = (0..3).fold(0, |s, p| s | bit_of(plain, (p * n + i) / 2, bit) << p);
                        if i % 2 == 0 { symbol / 3 } else { symbol % 3 }
                    }
                };
                let parity = usize::from(Self::PARITIES_OF[window]);
                *level = i32::from(Self::LEVELS[(parity + PARITIES * part) % MAX_LEVELS]);
                stay_rolled();
            }
        }
    }

    /// Encodes `x * 2^exponent` into a block of `N` = [`Self::BLOCK_BYTES`] bytes.
    ///
    /// # Errors
    /// The scale is above the largest f16, 65504; the block holds zeros then. So it does for zero
    /// vectors and for scales below 2^-25, which are no error.
    #[inline]
    pub fn encode<T: Sample, const N: usize>(
        &self,
        x: &[T; D],
        exponent: i32,
        workspace: &mut TrellisWorkspace<D>,
        block: &mut [u8; N],
    ) -> Result<(), EncodeError> {
        self.encode_with(Portable, x, exponent, workspace, block)
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
        workspace: &mut TrellisWorkspace<D>,
        block: &mut [u8; N],
    ) -> Result<(), EncodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        const { assert!(Self::CODE.memory == 3, "codes with 256 states only decode") };
        block.fill(0);
        let Some((head, body)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return Ok(()) };
        let TrellisWorkspace { y, targets, decisions, warm_up } = workspace;
        let (squared, finished) = self.base.rotate_with(kernels, x, y);
        FixedCodec::<D, I8>::finish(y, finished);
        if squared == 0 {
            return Ok(());
        }
        let norm = Norm::new(squared, tables::sigma(D));
        let predicted = Self::targets(y, norm, targets);
        let state = Self::close(targets, warm_up);
        let moments = Self::write(y, norm.shift, targets, state, decisions, body);
        let stored = if moments.cross.mantissa == 0 {
            Ok(0)
        } else {
            let assumed = norm.value.normalised().times(predicted);
            let scale =
                moments.scale(self.base.mode, norm.value, assumed, const { Units::new(Self::UNIT, D) });
            to_f16(scale.shifted(clamp_exponent(exponent)))
        };
        let bits = stored.unwrap_or(0);
        *head = bits.to_le_bytes();
        if bits == 0 {
            body.fill(0);
        }
        stored.map(|_| ())
    }

    /// The search alone, for a test.
    #[cfg(test)]
    pub(super) fn search(targets: &[i16; D], body: &mut [u8]) {
        let state = Self::close(targets, &mut [0; WARM_UP]);
        Self::write(&[0; D], 0, targets, state, &mut [0; D], body);
    }

    /// Coordinates in half level units at the predicted scale, rounded and clamped. Returns the reciprocal of
    /// that scale.
    #[inline(always)]
    fn targets(y: &[i32; D], norm: Norm, targets: &mut [i16; D]) -> Real {
        // Of peaks in the upper half of v, whose sigma is sigma / 2^16.
        let (offset, slope) = const {
            let predictor = Self::CODE.predictor;
            let sigma = tables::sigma(D) as f64 / 65_536.0;
            (
                (predictor.offset as f64 * 32_768.0) as i32,
                (predictor.slope as f64 * 134_217_728.0 / sigma) as i32,
            )
        };
        let mut peak = 0;
        for (target, &y) in targets.iter_mut().zip(y) {
            let upper = ((y >> norm.shift) * norm.reciprocal) >> 16;
            *target = upper as i16;
            peak = peak.max(upper.unsigned_abs());
        }
        // Q15, between a half and one and a half. |slope| < 1/4 and sigma >= 1024, so the product fits.
        let predicted = (offset - ((peak as i32 * slope) >> 12)).clamp(16_384, 49_152);
        let unit = const {
            let sigma = tables::sigma(D) as f64 / 65_536.0;
            (RESOLUTION as f64 * Self::UNIT / sigma * 262_144.0) as u32
        };
        // Q18, times at most 2^15 in the sum below.
        let factor = ((predicted as u32 * unit) >> 15) as i32;
        let limit = const { Self::CODE.limit() };
        for target in targets {
            *target = ((i32::from(*target) * factor + (1 << 17)) >> 18).clamp(-limit, limit) as i16;
        }
        let one = Real { mantissa: 1 << 31, exponent: -31 };
        one.over(Real { mantissa: predicted as u32, exponent: -15 }).normalised()
    }

    /// First pass: the state at coordinate 0, from the coordinates on either side of it.
    #[inline(always)]
    fn close(targets: &[i16; D], decisions: &mut [u8; WARM_UP]) -> usize {
        let mut metrics = [0; 8];
        let before = const { (D - WARM_UP % D) % D };
        Self::pass(targets, before, &mut metrics, decisions);
        Self::pass(targets, 0, &mut metrics, decisions);
        let (mut state, mut least) = (0, i32::MAX);
        for (i, &metric) in metrics.iter().enumerate() {
            if metric < least {
                (state, least) = (i, metric);
            }
        }
        for &decision in decisions.iter().rev() {
            state = Self::before(state, decision);
        }
        state
    }

    /// The state before `state`.
    #[inline(always)]
    const fn before(state: usize, decision: u8) -> usize {
        (state >> 1 | ((decision >> (state & 7) & 1) as usize) << 2) & 7
    }

    /// Add, compare and select over as many coordinates as there are decisions, from `first` on.
    #[inline(never)]
    fn pass(targets: &[i16; D], first: usize, metrics: &mut [i32; 8], decisions: &mut [u8]) {
        let parities = const {
            let code = Self::CODE;
            [code.parity(0), code.parity(2), code.parity(4), code.parity(6)]
        };
        let (newest, oldest) = const { (Self::CODE.parity(1), Self::CODE.parity(8)) };
        let (mut m, mut least, mut t) = (*metrics, 0, first);
        for (n, decision) in decisions.iter_mut().enumerate() {
            let target = targets.get(t).copied().unwrap_or(0);
            t = if t + 1 < D { t + 1 } else { 0 };
            let Some(row) = Self::TRELLIS.rows_of(target).first() else { return };
            let (mut next, mut bits) = ([0; 8], 0);
            for i in 0..4 {
                for bit in 0..2 {
                    let parity = parities[i] ^ (newest * bit);
                    // Sums saturate at 255; where one of two is above that, this is the same as saturating both.
                    let zero = (m[i] + i32::from(row[parity % PARITIES])).min(255);
                    let one = m[i + 4] + i32::from(row[(parity ^ oldest) % PARITIES]);
                    // Negative where the upper one wins; no branch.
                    let difference = one - zero;
                    next[2 * i + bit] = zero + (difference & difference >> 31);
                    bits = bits >> 1 | (difference as u32 >> 31) << 7;
                }
            }
            *decision = bits as u8;
            m = next;
            match n % 4 {
                1 => least = m.iter().fold(255, |least, &v| least.min(v)),
                3 => m = m.map(|v| (v - least).max(0)),
                _ => {}
            }
        }
        *metrics = m;
    }

    /// Second pass: once around from `state` to `state`; writes the bits and sums up the moments.
    #[inline(always)]
    fn write(
        y: &[i32; D],
        shift: u32,
        targets: &[i16; D],
        start: usize,
        decisions: &mut [u8; D],
        body: &mut [u8],
    ) -> Moments {
        let mut metrics = [255; 8];
        metrics[start % 8] = 0;
        Self::pass(targets, 0, &mut metrics, decisions);
        let (mut state, mut cross, mut energy) = (start, 0, 0);
        let n = D / 8;
        for t in (0..D).rev() {
            let (target, y) = (i32::from(targets[t]), y[t] >> shift);
            let from = Self::before(state, decisions[t]);
            let parity = Self::PARITIES_OF[(from << 1 | state & 1) % 16];
            let (mut best, mut symbol, mut least) = (0, 0, i32::MAX);
            for part in 0..1 << Self::PLAIN_BITS {
                let level = i32::from(Self::LEVELS[(usize::from(parity) + PARITIES * part) % MAX_LEVELS]);
                let difference = target - RESOLUTION * level;
                if difference * difference < least {
                    (best, symbol, least) = (level, part, difference * difference);
                }
            }
            cross += y * best;
            energy += (best * best) as u32;
            // Coded bit, then the plain ones, a plane of n bytes each.
            let bits = state & 1 | symbol << 1;
            for plane in 0..=Self::PLAIN_BITS {
                if let Some(byte) = body.get_mut(plane * n + t % n) {
                    *byte |= ((bits >> plane & 1) as u8) << (t / n);
                }
            }
            state = from;
            stay_rolled();
        }
        Moments { cross: Real { mantissa: cross.max(0) as u32, exponent: shift as i32 }, energy }
    }
}

/// Contents of a register of nine bits.
const WINDOWS: usize = 512;

/// Parity of each content.
const fn parities(code: &Code) -> [u8; WINDOWS] {
    let (mut out, mut window) = ([0; WINDOWS], 0);
    while window < WINDOWS {
        out[window] = code.parity(window) as u8;
        window += 1;
    }
    out
}

//! The part of a trellis block after the scale: the tables of a code, the levels of a body, and the search.

use crate::CodecId;
use crate::code::Code;
use crate::code::trellis::{self, MAX_LEVELS, PARITIES, Plain, RESOLUTION, Trellis, WARM_UP};
use crate::fixed::math::{Norm, Real};
use crate::fixed::scale::Units;
use crate::fixed::tables;
use crate::fixed::transform::stay_rolled;
use core::marker::PhantomData;

/// The tables of a code, and the functions that use them.
pub(in crate::fixed) struct Body<const D: usize, C>(PhantomData<C>);

impl<const D: usize, C: Code> Body<D, C> {
    const TRELLIS: &'static Trellis<'static> = match C::ID.trellis() {
        Some(trellis) => trellis,
        // Placeholder for codecs without a trellis, in functions that choose by the code; never called.
        None => match CodecId::T2S8.trellis() {
            Some(trellis) => trellis,
            None => panic!("t2s8 is a trellis code"),
        },
    };
    pub(super) const CODE: trellis::Code = Self::TRELLIS.code;
    /// Plain bits per coordinate, if they are not shared.
    const PLAIN_BITS: usize = match Self::CODE.plain {
        Plain::Bits(bits) => bits as usize,
        Plain::PairOfThree | Plain::PairOfSix | Plain::Quarters(_) => 0,
    };
    /// Parity of each value of the register, newest bit lowest.
    const PARITIES_OF: &'static [u8; WINDOWS] = &parities(&Self::CODE);
    const LEVELS: &'static [i8; MAX_LEVELS] = &Self::CODE.levels;
    pub(super) const UNIT: f64 = Self::CODE.per_sigma as f64;
    /// The search knows the energy, so the bound costs nothing.
    pub(super) const UNITS: Units = Units::new(Self::UNIT, D, f64::MIN_POSITIVE);
    /// Bytes of a body: a plane of coded bits, and the plain planes.
    pub(super) const BYTES: usize = Self::CODE.plain.body_bytes(D);

    /// Levels of a body. The coded bits run once around through a register, and the plain bits are read with
    /// them.
    ///
    /// [`trellis::levels`] handles whole bytes at once, with twenty times the code.
    #[inline(never)]
    pub(super) fn levels(body: &[u8], levels: &mut [i32; D]) {
        let n = D / 8;
        let (coded, plain) = body.split_at_checked(n).unwrap_or_default();
        let bit_of =
            |plane: &[u8], i: usize, bit: usize| usize::from(plane.get(i).map_or(0, |b| b >> bit & 1));
        // The last bits of the ring, which come before coordinate 0.
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
                    // Not a code of eight states, so never asked for.
                    Plain::Quarters(_) => 0,
                    Plain::PairOfThree | Plain::PairOfSix => {
                        let planes = if let Plain::PairOfThree = Self::CODE.plain { 3 } else { 5 };
                        let symbol =
                            (0..planes).fold(0, |s, p| s | (bit_of(plain, (p * n + i) / 2, bit) as u8) << p);
                        let (even, odd) = trellis::pair_parts(Self::CODE.plain, symbol);
                        usize::from(if i % 2 == 0 { even } else { odd })
                    }
                };
                let parity = usize::from(Self::PARITIES_OF[window]);
                *level = i32::from(Self::LEVELS[(parity + PARITIES * part) % MAX_LEVELS]);
                stay_rolled();
            }
        }
    }

    /// Calls `each` with every coordinate and its level, in the order of the bytes. It is for codes with
    /// eight states, and handles eight coordinates at a time.
    ///
    /// Bit b of byte i of a plane is coordinate b D / 8 + i, so the register of eight coordinates is a few
    /// bytes.
    #[inline(always)]
    pub(in crate::fixed) fn lanes(body: &[u8], mut each: impl FnMut(usize, i32)) {
        let n = D / 8;
        let (coded, plain) = body.split_at_checked(n).unwrap_or_default();
        let byte = |plane: &[u8], i: usize| plane.get(i).copied().unwrap_or(0);
        // The bytes before a run's first byte are the last bytes of the run before it, which is one bit
        // lower.
        let wrapped = |back: usize| byte(coded, (4 * n - back) % n).rotate_left(back.div_ceil(n) as u32);
        let mut window = [0, wrapped(1), wrapped(2), wrapped(3)];
        for i in 0..n {
            window[0] = byte(coded, i);
            let mut indices = [0; 2];
            let mut add = |bits: u8, place: usize| {
                for (half, index) in indices.iter_mut().enumerate() {
                    // Spreads four bits to the low ends of four bytes.
                    let four = u32::from(bits) >> (4 * half) & 15;
                    *index |= ((four * 0x0020_4081) & 0x0101_0101) << place;
                }
            };
            for (place, taps) in Self::CODE.generators.into_iter().rev().enumerate() {
                let tapped = |back: usize| if taps >> back & 1 == 1 { window[back] } else { 0 };
                add(tapped(0) ^ tapped(1) ^ tapped(2) ^ tapped(3), place);
            }
            for part in 0..Self::PLAIN_BITS {
                add(byte(plain, part * n + i), 3 + part);
            }
            for bit in 0..8 {
                let index = (indices[bit / 4] >> (8 * (bit % 4))) as usize % MAX_LEVELS;
                each(bit * n + i, i32::from(Self::LEVELS[index]));
            }
            window = [0, window[0], window[1], window[2]];
        }
    }

    /// Only the search, for a test.
    #[cfg(test)]
    pub(in crate::fixed) fn search(targets: &[i16; D], body: &mut [u8]) {
        let state = Self::close(targets, &mut [0; WARM_UP]);
        Self::write(&[0; D], 0, targets, state, &mut [0; D], body);
    }

    /// Coordinates in half level units at the predicted scale, rounded and clamped. Returns the reciprocal of
    /// that scale.
    #[inline(always)]
    pub(super) fn targets(y: &[i32; D], norm: Norm, targets: &mut [i16; D]) -> Real {
        // Offset and slope for peaks in the upper half of v, whose sigma is sigma / 2^16.
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
        // In Q18; the sum below multiplies it by at most 2^15.
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
    pub(super) fn close(targets: &[i16; D], decisions: &mut [u8; WARM_UP]) -> usize {
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

    /// Add, compare and select; one decision per coordinate, starting at `first`.
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
                    // Sums saturate at 255. If one of the two is above 255, this equals saturating both.
                    let zero = (m[i] + i32::from(row[parity % PARITIES])).min(255);
                    let one = m[i + 4] + i32::from(row[(parity ^ oldest) % PARITIES]);
                    // Negative if the upper path wins; no branch.
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

    /// Second pass: runs once around from `state` to `state` and writes the bits. Returns the sums of y times
    /// level and of squared levels.
    #[inline(always)]
    pub(super) fn write(
        y: &[i32; D],
        shift: u32,
        targets: &[i16; D],
        start: usize,
        decisions: &mut [u8; D],
        body: &mut [u8],
    ) -> (Real, u32) {
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
            // The coded bit, then the plain bits; each goes to its own plane of n bytes.
            let bits = state & 1 | symbol << 1;
            for plane in 0..=Self::PLAIN_BITS {
                if let Some(byte) = body.get_mut(plane * n + t % n) {
                    *byte |= ((bits >> plane & 1) as u8) << (t / n);
                }
            }
            state = from;
            stay_rolled();
        }
        (Real { mantissa: cross.max(0) as u32, exponent: shift as i32 }, energy)
    }
}

/// Number of values of a register of nine bits.
const WINDOWS: usize = 512;

/// Parity of each value of the register.
const fn parities(code: &trellis::Code) -> [u8; WINDOWS] {
    let (mut out, mut window) = ([0; WINDOWS], 0);
    while window < WINDOWS {
        out[window] = code.parity(window) as u8;
        window += 1;
    }
    out
}

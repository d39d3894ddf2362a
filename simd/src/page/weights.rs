//! Weights of tokens as integers: what sums of values multiply levels with.
//!
//! Weights times scales are rounded to 14 bits against the largest of the page and taken apart into two
//! 7-bit halves that fit every machine's byte products.

use super::{MAX_SLOTS, SLOT_STEP};
use crate::lines::Machine;
use tqkv_core::machine::Lanes;

/// Largest weight: 14 bits.
const STEPS: f32 = 16383.0;

/// 1.5 * 2^23: adding and taking it away rounds a small number to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// Below this there is no reciprocal; such values are lost in any sum.
const LEAST: f32 = 1e-30;

/// Weights of the tokens of a page as bytes, four tokens a dword.
pub(super) struct Weights {
    pub(super) high: [[u8; 4]; MAX_SLOTS / 4],
    pub(super) low: [[u8; 4]; MAX_SLOTS / 4],
}

impl Weights {
    pub(super) const ZERO: Self = Self { high: [[0; 4]; MAX_SLOTS / 4], low: [[0; 4]; MAX_SLOTS / 4] };
}

/// Weights times scales of the slots of a page.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    /// Of slots from `from` on; of others the weight is 0.
    pub(super) given: &'a [f32],
    pub(super) from: usize,
    /// Of all slots, f16.
    pub(super) scales: &'a [u16],
}

/// Tokens of a register of weights; lines never hold more.
const RUN: usize = SLOT_STEP;

impl Products<'_> {
    /// The runs that hold a slot of the range.
    #[inline(always)]
    fn runs(&self) -> core::ops::Range<usize> {
        self.from / RUN..(self.from + self.given.len()).div_ceil(RUN)
    }

    #[inline(always)]
    fn run<I: Machine>(&self, isa: I, run: usize) -> I::V {
        let scales = self.scales.as_chunks::<RUN>().0.get(run).unwrap_or(&[0; RUN]);
        let whole = (run * RUN).checked_sub(self.from).and_then(|at| self.given.get(at..)?.first_chunk());
        let given = match whole {
            Some(given) => isa.load(given),
            None => isa.load(&self.edge(run)),
        };
        given * isa.load_halves(scales)
    }

    /// The weights of a run of which some slots are outside of the range.
    #[cold]
    fn edge(&self, run: usize) -> [f32; RUN] {
        core::array::from_fn(|i| {
            let at = (run * RUN + i).checked_sub(self.from);
            at.and_then(|at| self.given.get(at)).copied().unwrap_or(0.0)
        })
    }

    /// The largest of the products, and of their negatives; at least 0.
    #[inline(always)]
    pub(super) fn bounds<I: Machine>(&self, isa: I) -> [f32; 2] {
        let zero = isa.splat(0.0);
        let (mut most, mut least) = (zero, zero);
        for run in self.runs() {
            let products = self.run(isa, run);
            let sizes = products.max_abs(zero);
            // Twice what is positive, twice what is negative.
            most = most.max_abs(products + sizes);
            least = least.max_abs(products - sizes);
        }
        [most.max() * 0.5, least.max() * 0.5]
    }

    /// Rounds the products times `sign`, where that is positive, against the largest of these; returns what
    /// one step is worth, 0 where nothing is positive. Slots outside of the range get the weight 0.
    #[inline(always)]
    pub(super) fn round<I: Machine>(&self, isa: I, sign: f32, largest: f32, weights: &mut Weights) -> f32 {
        if largest < LEAST {
            return 0.0;
        }
        let (zero, signs, half, round) =
            (isa.splat(0.0), isa.splat(sign), isa.splat(STEPS / largest * 0.5), isa.splat(ROUND));
        let high = weights.high.as_flattened_mut().as_chunks_mut::<RUN>().0;
        let low = weights.low.as_flattened_mut().as_chunks_mut::<RUN>().0;
        for run in self.runs() {
            let (Some(high), Some(low)) = (high.get_mut(run), low.get_mut(run)) else { break };
            let products = self.run(isa, run) * signs;
            let weights = (products + products.max_abs(zero)) * half + round - round;
            // Rounds down, as the fraction is never a half.
            let upper = (weights - isa.splat(63.5)) * isa.splat(1.0 / 128.0) + round - round;
            isa.write_codes::<8>(isa.round_i8(upper), high);
            isa.write_codes::<8>(isa.round_i8(weights - upper * isa.splat(128.0)), low);
        }
        largest * (sign / STEPS)
    }
}

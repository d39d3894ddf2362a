//! Weights of tokens as integers: what sums of values multiply levels with.
//!
//! Weights times scales are rounded to 14 bits against the largest of the part and taken apart into two
//! 7-bit halves that fit every machine's byte products.

use super::SLOT_STEP;
use super::columns::TOGETHER;
use crate::lines::Machine;
use tqkv_core::machine::Lanes;

/// Largest weight: 14 bits.
const STEPS: f32 = 16383.0;

/// Below this there is no reciprocal; such values are lost in any sum.
const LEAST: f32 = 1e-30;

/// Tokens whose weights are rounded together; lines never hold more.
pub(super) const RUN: usize = SLOT_STEP;

/// Lines of a run where a line has the same few code bytes of four tokens.
pub(super) const RUN_LINES: usize = RUN / 4;

/// Weights of a run of tokens as bytes, four tokens a dword: for each head the high halves and the low ones.
/// Heads are neighbours, so kernels go through one slice whatever the number of heads.
pub(super) type Run = [Halves; TOGETHER];

/// The high halves of a head's weights, and the low ones.
pub(super) type Halves = [[[u8; 4]; RUN_LINES]; 2];

/// Of tokens without weight.
pub(super) const NO_HALVES: Halves = [[[0; 4]; RUN_LINES]; 2];

/// [`NO_HALVES`] of every head.
pub(super) const NONE: Run = [NO_HALVES; TOGETHER];

/// Weights times scales of the slots of a page.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    /// Of slots from `from` on; of others the weight is 0.
    pub(super) given: &'a [f32],
    pub(super) from: usize,
    /// Of all slots, f16.
    pub(super) scales: &'a [u16],
}

impl Products<'_> {
    /// The runs that hold a slot of the range.
    #[inline(always)]
    pub(super) fn runs(&self) -> core::ops::Range<usize> {
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

    /// Rounds the products times `sign`, where that is positive, against `largest` of them, as weights of
    /// head `head`. Slots of the runs outside of the range get the weight 0.
    #[inline(always)]
    pub(super) fn round<I: Machine>(
        &self,
        isa: I,
        sign: f32,
        largest: f32,
        head: usize,
        weights: &mut [Run],
    ) {
        let (zero, steps) = (isa.splat(0.0), isa.splat(sign * (STEPS / largest)));
        for (run, weights) in self.runs().zip(weights) {
            let Some(halves) = weights.get_mut(head) else { break };
            let steps = isa.larger(self.run(isa, run) * steps, zero);
            isa.write_halves(steps, bytemuck::must_cast_mut(halves));
        }
    }
}

/// The largest of the products of one head, and of their negatives; at least 0.
#[inline(always)]
pub(super) fn bounds<'a, I: Machine>(isa: I, parts: impl Iterator<Item = Products<'a>>) -> [f32; 2] {
    let zero = isa.splat(0.0);
    let (mut largest, mut least) = (zero, zero);
    for part in parts {
        for run in part.runs() {
            let products = part.run(isa, run);
            largest = isa.larger(largest, products);
            least = isa.larger(least, zero - products);
        }
    }
    [largest.max(), least.max()]
}

/// What one step of weights is worth that are rounded against `largest`; 0 where nothing is to be summed.
#[inline(always)]
pub(super) fn step(sign: f32, largest: f32) -> f32 {
    if largest < LEAST { 0.0 } else { largest * (sign / STEPS) }
}

//! Weights of tokens as integers, the factors of levels in sums of values.
//!
//! Weights times scales are rounded to 14 bits against the largest of the part. They are split into two 7-bit
//! halves, which fit the byte products of every machine.

use super::SLOT_STEP;
use crate::lines::Machine;
use tqkv_core::unstable::machine::Lanes;

/// Largest weight: 14 bits.
const STEPS: f32 = 16383.0;

/// Below this a number has no reciprocal; such values vanish in any sum.
const LEAST: f32 = 1e-30;

/// Tokens whose weights are rounded together; a line never holds more tokens.
pub(super) const RUN: usize = SLOT_STEP;

/// Lines of a run, if a line holds the same few code bytes of four tokens.
pub(super) const RUN_LINES: usize = RUN / 4;

/// Heads that share the look-ups of a column.
pub(super) const TOGETHER: usize = 4;

/// Weights of a run of tokens as bytes, four tokens per dword: for each head the high halves, then the low
/// halves. Heads are neighbours, so kernels read one slice for any number of heads.
pub(super) type Run = [Halves; TOGETHER];

/// The high halves of a head's weights, then the low halves.
pub(super) type Halves = [[[u8; 4]; RUN_LINES]; 2];

/// The halves of tokens without weight.
pub(super) const NO_HALVES: Halves = [[[0; 4]; RUN_LINES]; 2];

/// [`NO_HALVES`] for every head.
pub(super) const NONE: Run = [NO_HALVES; TOGETHER];

/// Weights times scales of the slots of a page.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    /// Weights of the slots from `from` on; all other slots have weight 0.
    pub(super) given: &'a [f32],
    pub(super) from: usize,
    /// f16 scales of all slots.
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

    /// The weights of a run that is partly outside the range.
    #[cold]
    fn edge(&self, run: usize) -> [f32; RUN] {
        core::array::from_fn(|i| {
            let at = (run * RUN + i).checked_sub(self.from);
            at.and_then(|at| self.given.get(at)).copied().unwrap_or(0.0)
        })
    }

    /// Rounds the products times `sign`, if positive, against `largest`, as weights of head `head`. Slots
    /// outside the range get the weight 0.
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

/// The largest product of one head, and the largest of the negated products; at least 0.
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

/// The value of one step of weights that are rounded against `largest`; 0 if there is nothing to sum.
#[inline(always)]
pub(super) fn step(sign: f32, largest: f32) -> f32 {
    if largest < LEAST { 0.0 } else { largest * (sign / STEPS) }
}

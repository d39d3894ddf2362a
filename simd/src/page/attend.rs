//! Attention over pages, part by part: scores, online softmax, weighted sum of values. The cache runs this
//! loop, and the benchmarks time it.
//!
//! A running maximum and sum per query head carry the result over any number of pages. Two runs over
//! different pages can be [`merge`]d. A caller may split a sequence into spans at fixed positions and merge
//! them in order. The bits then do not depend on the number of threads.

use super::{MAX_HEADS, MAX_PART, MAX_PARTS, MAX_TOGETHER, exp};
use crate::level::{Kernel, Level};
use crate::lines::Machine;
use arrayvec::ArrayVec;
use tqkv_core::unstable::machine::Lanes;

/// The running state of one query head, without its accumulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Largest logit.
    pub max: f32,
    /// Sum of exp(logit - max); the output is the accumulator divided by it. NaN as soon as a logit is NaN or
    /// infinite.
    pub sum: f32,
}

impl Attention {
    /// The state before any token.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

impl Default for Attention {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Keys and values of a sequence, and the queries that attend to them. The tokens are stored in parts (a
/// page, or a few uncompressed rows). Each part is scored and summed at once.
pub trait AttentionParts {
    /// The first token from `from` on whose part is attended to. Tokens before it are skipped without being read.
    /// It is beyond all tokens if there is none.
    fn first(&self, from: usize) -> usize {
        from
    }

    /// One past the last token of the part that holds token `from`.
    fn part_end(&self, from: usize) -> usize;

    /// Logits of tokens `from..to` of one part for every query head: `[heads, n]`. A token that is not attended
    /// to has the logit -inf.
    fn scores(&self, from: usize, to: usize, logits: &mut [f32]);

    /// Multiplies the sums of each head by its factor ([`rescale`]).
    fn rescale(&mut self, factors: &[f32]);

    /// Returns true if the part that begins with token `from` may be processed together with the one whose last
    /// token is `before`. This saves the work that is done once per part: maxima, rounding of weights, and
    /// moving sums out of registers.
    fn joins(&self, _before: usize, _from: usize) -> bool {
        false
    }

    /// Adds the weighted values of up to [`MAX_PARTS`] parts, in order.
    fn accumulate(&mut self, parts: &[WeightedPart<'_>]);
}

/// Tokens `from..to` of one part, with one weight per head and token: `[heads, n]`.
#[derive(Clone, Copy, Debug)]
pub struct WeightedPart<'a> {
    /// The first token.
    pub from: usize,
    /// One past the last token.
    pub to: usize,
    /// Weights, relative to each head's largest logit so far.
    pub weights: &'a [f32],
}

/// Attends with every query head over tokens `from..end`, part by part, with at most [`MAX_PART`] tokens of
/// each. Up to [`MAX_PARTS`] parts that join are processed together, with at most [`MAX_TOGETHER`] tokens.
/// `state` has one entry per head. At the end, divide the sums of `parts` by its `sum`.
///
/// # Panics
/// There are more heads than [`MAX_HEADS`].
pub fn attend(
    level: Level,
    parts: &mut impl AttentionParts,
    mut from: usize,
    end: usize,
    state: &mut [Attention],
) {
    let mut room = [0.0; MAX_HEADS * MAX_TOGETHER];
    from = parts.first(from);
    while from < end {
        let mut ranges = ArrayVec::<(usize, usize), MAX_PARTS>::new();
        let mut logits = ArrayVec::<&mut [f32], MAX_PARTS>::new();
        let (mut left, mut rest) = (MAX_TOGETHER, &mut room[..]);
        let until = |from: usize| end.min(parts.part_end(from)).min(from + MAX_PART);
        let mut to = until(from);
        loop {
            debug_assert!(to > from, "the part of {from} ends at {to}");
            let (part, others) = rest.split_at_mut(state.len() * (to - from));
            parts.scores(from, to, part);
            ranges.push((from, to));
            logits.push(part);
            (rest, left, from) = (others, left - (to - from), parts.first(to));
            debug_assert!(from >= to, "the part after {to} begins at {from}");
            if ranges.is_full() || from >= end || !parts.joins(to - 1, from) {
                break;
            }
            to = until(from);
            if to - from > left {
                break;
            }
        }
        let factors = level.run(Soften { logits: &mut logits, state });
        parts.rescale(&factors[..state.len()]);
        let mut softened = ArrayVec::<WeightedPart<'_>, MAX_PARTS>::new();
        for (&(from, to), weights) in ranges.iter().zip(&logits) {
            softened.push(WeightedPart { from, to, weights });
        }
        parts.accumulate(&softened);
    }
}

/// Turns logits (`[heads, n]`, 1/sqrt(dim) included) into weights relative to each head's running maximum,
/// and adds them to `state`. Returns the factors for the sums that each head has so far ([`rescale`]). A
/// logit of -inf has weight 0; a NaN makes the sum NaN. The result is equal to the bit on every level.
///
/// # Panics
/// There are more heads than [`MAX_HEADS`].
pub fn soften(level: Level, logits: &mut [f32], state: &mut [Attention]) -> [f32; MAX_HEADS] {
    assert!(state.len() <= MAX_HEADS, "at most MAX_HEADS heads");
    level.run(Soften { logits: &mut [logits], state })
}

/// Multiplies the sums of each head (`[heads, dim]`) by its factor.
pub fn rescale(factors: &[f32], dim: usize, sums: &mut [f32]) {
    for (factor, sums) in factors.iter().zip(sums.chunks_exact_mut(dim)) {
        if *factor != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= factor);
        }
    }
}

struct Soften<'a, 'b> {
    /// One `[heads, n]` per part.
    logits: &'a mut [&'b mut [f32]],
    state: &'a mut [Attention],
}

impl Kernel for Soften<'_, '_> {
    type Output = [f32; MAX_HEADS];

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) -> [f32; MAX_HEADS] {
        let (mut factors, mut largest) = ([1.0; MAX_HEADS], [0.0; MAX_HEADS]);
        let heads = self.state.len();
        // All heads first: a maximum waits for its lanes, but not for the next head.
        for (h, (max, state)) in largest.iter_mut().zip(&*self.state).enumerate() {
            let parts = self.logits.iter().map(|part| of_head(part, h, heads));
            *max = larger(max_of(isa, parts), state.max);
        }
        for (h, state) in self.state.iter_mut().enumerate() {
            factors[h] = soften_head(isa, self.logits, (h, heads), largest[h], state);
        }
        factors
    }
}

/// The values of head `h` of `heads` in a part.
#[inline(always)]
fn of_head(part: &[f32], h: usize, heads: usize) -> &[f32] {
    let n = part.len() / heads;
    part.get(h * n..(h + 1) * n).unwrap_or_default()
}

/// Lanes of a sum of weights.
const LANES: usize = 16;

/// The larger number; the second one if they cannot be compared.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The lanes as one register of the machine, the others `rest`. Its folds wait four times instead of once per
/// lane.
#[inline(always)]
fn widen<I: Machine>(isa: I, lanes: [f32; LANES], rest: f32) -> I::V {
    let mut wide = [rest; 32];
    wide[..LANES].copy_from_slice(&lanes);
    isa.load(&wide)
}

/// The largest of a head's logits; -inf if none is larger.
#[inline(always)]
fn max_of<'a, I: Machine>(isa: I, parts: impl Iterator<Item = &'a [f32]>) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for logits in parts {
        let (wholes, rest) = logits.as_chunks::<LANES>();
        for whole in wholes {
            for (lane, logit) in lanes.iter_mut().zip(whole) {
                *lane = larger(*logit, *lane);
            }
        }
        for (lane, logit) in lanes.iter_mut().zip(rest) {
            *lane = larger(*logit, *lane);
        }
    }
    widen(isa, lanes, f32::NEG_INFINITY).max()
}

/// Turns the logits of head `h` of `heads` into weights relative to `max`. Returns the factor for the sums so
/// far.
#[inline(always)]
fn soften_head<I: Machine>(
    isa: I,
    parts: &mut [&mut [f32]],
    (h, heads): (usize, usize),
    max: f32,
    state: &mut Attention,
) -> f32 {
    let mut sums = [0.0; LANES];
    for part in parts {
        let n = part.len() / heads;
        let logits = part.get_mut(h * n..(h + 1) * n).unwrap_or_default();
        if max == f32::NEG_INFINITY {
            // A comparison with NaN is false, so a logit may be NaN here.
            if logits.iter().any(|logit| logit.is_nan()) {
                state.sum = f32::NAN;
            }
            logits.fill(0.0);
            continue;
        }
        let (wholes, rest) = logits.as_chunks_mut::<LANES>();
        for whole in wholes {
            for (sum, logit) in sums.iter_mut().zip(whole) {
                *logit = exp(*logit - max);
                *sum += *logit;
            }
        }
        for (sum, logit) in sums.iter_mut().zip(rest) {
            *logit = exp(*logit - max);
            *sum += *logit;
        }
    }
    if max == f32::NEG_INFINITY {
        return 1.0;
    }
    let rescale = if state.max == max { 1.0 } else { exp(state.max - max) };
    state.sum = state.sum * rescale + widen(isa, sums, 0.0).sum();
    state.max = max;
    rescale
}

/// Merges the state of `from` into `into`, for one head. Returns the factors for the accumulators of `into`
/// and `from`; with these, their sum is the accumulator of both.
pub fn merge(into: &mut Attention, from: &Attention) -> [f32; 2] {
    if from.max == f32::NEG_INFINITY && !from.sum.is_nan() {
        return [1.0, 0.0];
    }
    let max = if from.max > into.max { from.max } else { into.max };
    let factors = [exp(into.max - max), exp(from.max - max)];
    into.sum = into.sum * factors[0] + from.sum * factors[1];
    into.max = max;
    factors
}

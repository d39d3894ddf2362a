//! Attention over pages: scores, online softmax, weighted sum of values, part by part. The loop of the cache, and the
//! one that is timed.
//!
//! A running maximum and sum for each query head make the result of any number of pages; two runs
//! over different pages can be [`merge`]d. Who splits a sequence into spans at fixed places and
//! merges them in order gets the same bits from any number of threads.

use super::{MAX_HEADS, MAX_PART, exp};
use crate::level::{Kernel, Level};
use crate::lines::Machine;

/// What one query head has seen so far, beside its accumulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Largest logit.
    pub max: f32,
    /// Sum of exp(logit - max); the output is the accumulator divided by it. NaN from the first logit on that is
    /// NaN or infinite.
    pub sum: f32,
}

impl Attention {
    /// Nothing seen.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

impl Default for Attention {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Keys and values of a sequence, and the queries that attend to them. They lie in parts (a page, a few uncompressed
/// rows), each of which is scored and summed at once.
pub trait Parts {
    /// One past the last token of the part that holds token `from`.
    fn part_end(&self, from: usize) -> usize;

    /// Logits of tokens `from..to` of one part for every query head: `[heads, n]`.
    fn scores(&self, from: usize, to: usize, logits: &mut [f32]);

    /// Multiplies what each head has summed by its factor ([`rescale`]).
    fn rescale(&mut self, factors: &[f32]);

    /// Adds the weighted values of tokens `from..to` of one part: `weights` is `[heads, n]`.
    fn accumulate(&mut self, from: usize, to: usize, weights: &[f32]);
}

/// Attends with every query head over tokens `from..end`, part by part and at most [`MAX_PART`] at once. `state` has one
/// entry a head; what `parts` has summed in the end is to be divided by its `sum`.
///
/// # Panics
/// More heads than [`MAX_HEADS`].
pub fn attend(level: Level, parts: &mut impl Parts, mut from: usize, end: usize, state: &mut [Attention]) {
    let mut logits = [0.0; MAX_HEADS * MAX_PART];
    while from < end {
        let to = end.min(parts.part_end(from)).min(from + MAX_PART);
        let logits = &mut logits[..state.len() * (to - from)];
        parts.scores(from, to, logits);
        let factors = soften(level, logits, state);
        parts.rescale(&factors[..state.len()]);
        parts.accumulate(from, to, logits);
        from = to;
    }
}

/// Turns logits (`[heads, n]`, 1/sqrt(dim) included) into weights relative to each head's running maximum, and
/// takes them up in `state`. Returns by what the sums that each head made so far must be multiplied
/// ([`rescale`]). Logits of -inf weigh nothing; one that is NaN makes the sum NaN. Equal to the bit on every level.
///
/// # Panics
/// More heads than [`MAX_HEADS`].
pub fn soften(level: Level, logits: &mut [f32], state: &mut [Attention]) -> [f32; MAX_HEADS] {
    assert!(state.len() <= MAX_HEADS, "at most MAX_HEADS heads");
    level.run(Soften { logits, state })
}

/// Multiplies the sums of each head (`[heads, dim]`) by its factor.
pub fn rescale(factors: &[f32], dim: usize, sums: &mut [f32]) {
    for (factor, sums) in factors.iter().zip(sums.chunks_exact_mut(dim)) {
        if *factor != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= factor);
        }
    }
}

struct Soften<'a> {
    logits: &'a mut [f32],
    state: &'a mut [Attention],
}

impl Kernel for Soften<'_> {
    type Output = [f32; MAX_HEADS];

    #[inline(always)]
    fn run<I: Machine>(self, _: I) -> [f32; MAX_HEADS] {
        let mut factors = [1.0; MAX_HEADS];
        let len = self.logits.len() / self.state.len().max(1);
        let heads = self.logits.chunks_exact_mut(len.max(1)).zip(self.state);
        for ((logits, state), factor) in heads.zip(&mut factors) {
            *factor = soften_head(logits, state);
        }
        factors
    }
}

/// Lanes of a sum of weights.
const LANES: usize = 16;

/// The larger; the second where they cannot be compared.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Folds lanes by halves: four steps that wait for each other instead of fifteen.
macro_rules! fold {
    ($lanes:ident, $join:expr) => {{
        let mut lanes = $lanes;
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = $join(lanes[i], lanes[i + half]);
            }
            half /= 2;
        }
        lanes[0]
    }};
}

/// The largest lane.
#[inline(always)]
fn largest(lanes: [f32; LANES]) -> f32 {
    fold!(lanes, larger)
}

/// The sum of the lanes, halves first.
#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    fold!(lanes, core::ops::Add::add)
}

/// Turns logits into weights relative to the running maximum; returns what sums made so far must
/// be multiplied by.
#[inline(always)]
fn soften_head(logits: &mut [f32], state: &mut Attention) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (wholes, rest) = logits.as_chunks_mut::<LANES>();
    for whole in wholes.iter() {
        for (lane, logit) in lanes.iter_mut().zip(whole) {
            *lane = larger(*logit, *lane);
        }
    }
    for (lane, logit) in lanes.iter_mut().zip(rest.iter()) {
        *lane = larger(*logit, *lane);
    }
    let max = larger(largest(lanes), state.max);
    if max == f32::NEG_INFINITY {
        // NaN is not larger than anything, so it may be here.
        if logits.iter().any(|logit| logit.is_nan()) {
            state.sum = f32::NAN;
        }
        logits.fill(0.0);
        return 1.0;
    }
    let mut sums = [0.0; LANES];
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
    let rescale = if state.max == max { 1.0 } else { exp(state.max - max) };
    state.sum = state.sum * rescale + total(sums);
    state.max = max;
    rescale
}

/// Joins what `from` has seen to what `into` has seen, one head each. Returns the factors for what
/// `into` and `from` have summed: their sum is then that of both.
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

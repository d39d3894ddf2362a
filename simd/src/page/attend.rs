//! Attention over pages: scores, online softmax, weighted sum of values, part by part. The loop of the cache,
//! and the one that is timed.
//!
//! A running maximum and sum for each query head make the result of any number of pages; two runs
//! over different pages can be [`merge`]d. Who splits a sequence into spans at fixed places and
//! merges them in order gets the same bits from any number of threads.

use super::{MAX_HEADS, MAX_PART, MAX_PARTS, exp};
use crate::level::{Kernel, Level};
use crate::lines::Machine;
use tqkv_core::machine::Lanes;

/// What one query head has seen so far, beside its accumulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Largest logit.
    pub max: f32,
    /// Sum of exp(logit - max); the output is the accumulator divided by it. NaN from the first logit on that
    /// is NaN or infinite.
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

/// Keys and values of a sequence, and the queries that attend to them. They lie in parts (a page, a few
/// uncompressed rows), each of which is scored and summed at once.
pub trait Parts {
    /// One past the last token of the part that holds token `from`.
    fn part_end(&self, from: usize) -> usize;

    /// Logits of tokens `from..to` of one part for every query head: `[heads, n]`.
    fn scores(&self, from: usize, to: usize, logits: &mut [f32]);

    /// Multiplies what each head has summed by its factor ([`rescale`]).
    fn rescale(&mut self, factors: &[f32]);

    /// Whether the part that begins with token `from` may be taken together with the one that ends before it,
    /// which saves what is done once for each: maxima, rounding of weights, sums that leave their registers.
    fn joins(&self, _from: usize) -> bool {
        false
    }

    /// Adds the weighted values of up to [`MAX_PARTS`] parts that follow each other.
    fn accumulate(&mut self, parts: &[Part<'_>]);
}

/// Tokens `from..to` of one part, with the weight of each for each head: `[heads, n]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part<'a> {
    /// The first token.
    pub from: usize,
    /// One past the last.
    pub to: usize,
    /// Relative to each head's largest logit so far.
    pub weights: &'a [f32],
}

/// Attends with every query head over tokens `from..end`, part by part (or [`MAX_PARTS`] that join) and at
/// most [`MAX_PART`] of each. `state` has one entry a head; what `parts` has summed in the end is to be
/// divided by its `sum`.
///
/// # Panics
/// More heads than [`MAX_HEADS`].
pub fn attend(level: Level, parts: &mut impl Parts, mut from: usize, end: usize, state: &mut [Attention]) {
    let mut room = [[0.0; MAX_HEADS * MAX_PART]; MAX_PARTS];
    while from < end {
        let mut ends = [from; MAX_PARTS];
        let mut logits: [&mut [f32]; MAX_PARTS] = Default::default();
        let mut count = 0;
        for (at, room) in room.iter_mut().enumerate() {
            if at > 0 && (from == end || !parts.joins(from)) {
                break;
            }
            let to = end.min(parts.part_end(from)).min(from + MAX_PART);
            let part = &mut room[..state.len() * (to - from)];
            parts.scores(from, to, part);
            (ends[at], logits[at], count) = (to, part, at + 1);
            from = to;
        }
        let factors = level.run(Soften { logits: &mut logits[..count], state });
        parts.rescale(&factors[..state.len()]);
        let mut softened = [Part::default(); MAX_PARTS];
        for (part, (weights, &to)) in softened.iter_mut().zip(logits.iter().zip(&ends)) {
            *part = Part { from: to - weights.len() / state.len().max(1), to, weights };
        }
        parts.accumulate(&softened[..count]);
    }
}

/// Turns logits (`[heads, n]`, 1/sqrt(dim) included) into weights relative to each head's running maximum,
/// and takes them up in `state`. Returns by what the sums that each head made so far must be multiplied
/// ([`rescale`]). Logits of -inf weigh nothing; one that is NaN makes the sum NaN. Equal to the bit on every
/// level.
///
/// # Panics
/// More heads than [`MAX_HEADS`].
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
    /// `[heads, n]` of each part.
    logits: &'a mut [&'b mut [f32]],
    state: &'a mut [Attention],
}

impl Kernel for Soften<'_, '_> {
    type Output = [f32; MAX_HEADS];

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) -> [f32; MAX_HEADS] {
        let (mut factors, mut largest) = ([1.0; MAX_HEADS], [0.0; MAX_HEADS]);
        let heads = self.state.len();
        // Of all heads first: each maximum waits for its lanes, and the next head's need not.
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

/// What head `h` of `heads` has of a part.
#[inline(always)]
fn of_head(part: &[f32], h: usize, heads: usize) -> &[f32] {
    let n = part.len() / heads;
    part.get(h * n..(h + 1) * n).unwrap_or_default()
}

/// Lanes of a sum of weights.
const LANES: usize = 16;

/// The larger; the second where they cannot be compared.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Lanes of a machine's register, the others `rest`: its folds wait four times, and not for each lane.
#[inline(always)]
fn widen<I: Machine>(isa: I, lanes: [f32; LANES], rest: f32) -> I::V {
    let mut wide = [rest; 32];
    wide[..LANES].copy_from_slice(&lanes);
    isa.load(&wide)
}

/// The largest of a head's logits; -inf where none is larger.
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

/// Turns the logits of head `h` of `heads` into weights relative to `max`; returns what sums made so far must
/// be multiplied by.
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
            // NaN is not larger than anything, so it may be here.
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

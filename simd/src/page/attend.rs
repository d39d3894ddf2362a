//! Attention over one page: scores, online softmax, weighted sum of values, in one go.
//!
//! A running maximum and sum for each query head make the result of any number of pages; two runs
//! over different pages can be [`merge`]d. Who splits a sequence into spans at fixed places and
//! merges them in order gets the same bits from any number of threads.

use super::keys::KeyPages;
use super::query::Queries;
use super::values::ValuePages;
use super::{Line, MAX_HEADS, MAX_SLOTS, exp};
use crate::level::{Kernel, Level};
use crate::lines::Machine;

/// What one query head has seen so far, beside its accumulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Largest logit.
    pub max: f32,
    /// Sum of exp(logit - max); the output is the accumulator divided by it.
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

/// Attends with every query over the first `len` slots of a page of keys and one of values.
///
/// `scale` multiplies the logits (1/sqrt(dim)), `next` is the page of keys that follows (empty
/// where there is none), `state` has one entry a query and `acc` one vector of `dim` values, in
/// the rotated domain of the values.
///
/// # Panics
/// A page is too short, `len` exceeds its slots, or `state` and `acc` are not one for each query.
#[expect(clippy::too_many_arguments, reason = "two pages with their arrangements, the queries, the state")]
pub fn attend(
    level: Level,
    (keys, key_page): (&KeyPages, &[Line]),
    (values, value_page): (&ValuePages, &[Line]),
    len: usize,
    queries: &Queries,
    scale: f32,
    next: &[Line],
    state: &mut [Attention],
    acc: &mut [f32],
) {
    assert!(len <= keys.slots().min(values.slots()), "slots of this page");
    assert!(
        state.len() == queries.len() && acc.len() == state.len() * keys.plan.dim,
        "one state for each query"
    );
    if len == 0 || queries.is_empty() {
        return;
    }
    let mut attend = |logits: &mut [f32]| {
        keys.scores(level, key_page, 0, queries, value_page, logits);
        rescale(&soften(level, scale, logits, state), keys.plan.dim, acc);
        values.accumulate(level, value_page, 0, logits, next, acc);
    };
    // Only as much memory as is needed: clearing it counts beside a page of few bits.
    match queries.len() * len {
        few @ ..=MAX_SLOTS => attend(&mut [0.0; MAX_SLOTS][..few]),
        many => attend(&mut [0.0; MAX_HEADS * MAX_SLOTS][..many]),
    }
}

/// Turns logits (`[heads, n]`, times `scale`) into weights relative to each head's running maximum, and
/// takes them up in `state`. Returns by what the sums that each head made so far must be multiplied
/// ([`rescale`]). Logits of -inf weigh nothing. Equal to the bit on every level.
///
/// # Panics
/// More heads than [`MAX_HEADS`].
pub fn soften(level: Level, scale: f32, logits: &mut [f32], state: &mut [Attention]) -> [f32; MAX_HEADS] {
    assert!(state.len() <= MAX_HEADS, "at most MAX_HEADS heads");
    level.run(Soften { scale, logits, state })
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
    scale: f32,
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
            *factor = soften_head(logits, self.scale, state);
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
fn soften_head(logits: &mut [f32], scale: f32, state: &mut Attention) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (wholes, rest) = logits.as_chunks_mut::<LANES>();
    for whole in wholes.iter_mut() {
        for (lane, logit) in lanes.iter_mut().zip(whole) {
            *logit *= scale;
            *lane = larger(*logit, *lane);
        }
    }
    for (lane, logit) in lanes.iter_mut().zip(rest.iter_mut()) {
        *logit *= scale;
        *lane = larger(*logit, *lane);
    }
    let max = larger(largest(lanes), state.max);
    if max == f32::NEG_INFINITY {
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
    if from.max == f32::NEG_INFINITY {
        return [1.0, 0.0];
    }
    let max = if from.max > into.max { from.max } else { into.max };
    let factors = [exp(into.max - max), exp(from.max - max)];
    into.sum = into.sum * factors[0] + from.sum * factors[1];
    into.max = max;
    factors
}

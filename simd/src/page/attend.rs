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
    let mut logits = [0.0; MAX_HEADS * MAX_SLOTS];
    let logits = &mut logits[..queries.len() * len];
    keys.scores(level, key_page, 0, queries, value_page, logits);
    level.run(Soften { len, scale, logits, state, acc });
    values.accumulate(level, value_page, 0, logits, next, acc);
}

/// Logits of all heads to weights, and what was summed so far to the new maxima.
pub(super) struct Soften<'a> {
    pub(super) len: usize,
    pub(super) scale: f32,
    pub(super) logits: &'a mut [f32],
    pub(super) state: &'a mut [Attention],
    pub(super) acc: &'a mut [f32],
}

impl Kernel for Soften<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, _: I) {
        let dim = self.acc.len() / self.state.len().max(1);
        let heads = self.logits.chunks_exact_mut(self.len.max(1)).zip(self.state);
        for ((logits, state), acc) in heads.zip(self.acc.chunks_exact_mut(dim.max(1))) {
            let rescale = soften(logits, self.scale, state);
            if rescale != 1.0 {
                acc.iter_mut().for_each(|sum| *sum *= rescale);
            }
        }
    }
}

/// Lanes of a sum of weights.
const LANES: usize = 16;

/// Turns logits into weights relative to the running maximum; returns what sums made so far must
/// be multiplied by.
#[inline(always)]
fn soften(logits: &mut [f32], scale: f32, state: &mut Attention) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (wholes, rest) = logits.as_chunks_mut::<LANES>();
    for whole in wholes.iter_mut() {
        for (lane, logit) in lanes.iter_mut().zip(whole) {
            *logit *= scale;
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    for (lane, logit) in lanes.iter_mut().zip(rest.iter_mut()) {
        *logit *= scale;
        *lane = if *logit > *lane { *logit } else { *lane };
    }
    let max = lanes.iter().fold(state.max, |m, &v| if v > m { v } else { m });
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
    state.sum = state.sum * rescale + sums.iter().sum::<f32>();
    state.max = max;
    rescale
}

/// Joins what `from` has seen to what `into` has seen: one head each, with accumulators.
pub fn merge(into: &mut Attention, acc: &mut [f32], from: &Attention, from_acc: &[f32]) {
    if from.max == f32::NEG_INFINITY {
        return;
    }
    let max = if from.max > into.max { from.max } else { into.max };
    let (keep, add) = (exp(into.max - max), exp(from.max - max));
    for (sum, &other) in acc.iter_mut().zip(from_acc) {
        *sum = *sum * keep + other * add;
    }
    into.sum = into.sum * keep + from.sum * add;
    into.max = max;
}

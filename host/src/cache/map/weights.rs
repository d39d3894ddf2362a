//! Weights of keys by the attention that they get.

use tqkv_simd::Level;
use tqkv_simd::page::{Attention, soften};

/// Largest weight of a key, in means.
const LARGEST_WEIGHT: f64 = 50.0;

/// The part of the model's attention that weights of keys depend on.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct WeightRule {
    pub(in crate::cache) scale: f32,
    pub(in crate::cache) soft_cap: Option<f32>,
    pub(in crate::cache) window: Option<usize>,
    /// Query heads of the KV head.
    pub(in crate::cache) group: usize,
}

impl WeightRule {
    /// Weights of the first `count` keys after the sinks, with a mean of 1. A weight is the sum of p (1 - p)
    /// over queries with their positions, for the attention p that the key gets. `None` if none gets any.
    pub(super) fn weights<'a>(
        &self,
        (keys, dim): (&[f32], usize),
        sinks: usize,
        count: usize,
        queries: impl Iterator<Item = (usize, &'a [f32])>,
    ) -> Option<Vec<f64>> {
        let mut weights = vec![0.0; count];
        for (position, query) in queries {
            self.add(keys.chunks_exact(dim), sinks, (position, query), &mut weights);
        }
        limit_weights(&mut weights)?;
        Some(weights)
    }

    fn add<'a>(
        &self,
        keys: impl ExactSizeIterator<Item = &'a [f32]>,
        sinks: usize,
        (position, query): (usize, &[f32]),
        weights: &mut [f64],
    ) {
        // Keys that the query sees and that are here: the sinks, then the window.
        let end = (position + 1).min(keys.len());
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut logits = vec![f32::NEG_INFINITY; end];
        for (i, key) in keys.take(end).enumerate() {
            if i < sinks || i >= first {
                logits[i] = self.logit(query, key);
            }
        }
        let mut state = [Attention::EMPTY];
        soften(Level::Portable, &mut logits, &mut state);
        for (weight, p) in weights.iter_mut().zip(logits.iter().skip(sinks)) {
            let p = f64::from(*p) / f64::from(state[0].sum);
            *weight += p * (1.0 - p);
        }
    }

    fn logit(&self, query: &[f32], key: &[f32]) -> f32 {
        let logit = dot(query, key) * f64::from(self.scale);
        self.soft_cap.map_or(logit, |cap| f64::from(cap) * near_tanh(logit / f64::from(cap))) as f32
    }
}

/// The product of two vectors, in eight sums: one order for all machines, and vector units can follow it.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(*a) * f64::from(*b);
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += f64::from(*a) * f64::from(*b);
    }
    sums.iter().fold(0.0, |sum, lane| sum + lane)
}

/// This is tanh within 2.4 %. That of the system's library has other bits on other machines.
fn near_tanh(x: f64) -> f64 {
    let x = x.clamp(-3.0, 3.0);
    x * (27.0 + x * x) / (27.0 + 9.0 * x * x)
}

/// Gives the weights of keys a mean of 1 and an upper limit. `None` if no key got attention.
pub(crate) fn limit_weights(weights: &mut [f64]) -> Option<()> {
    normalise(weights)?;
    weights.iter_mut().for_each(|weight| *weight = weight.min(LARGEST_WEIGHT));
    normalise(weights)
}

/// Divides weights by their mean. `None` if that is not a positive number: then no key got attention.
fn normalise(weights: &mut [f64]) -> Option<()> {
    let mean = weights.iter().fold(0.0, |sum, weight| sum + weight) / weights.len() as f64;
    weights.iter_mut().for_each(|weight| *weight /= mean);
    (mean.is_finite() && mean > 0.0).then_some(())
}

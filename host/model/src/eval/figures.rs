//! The results of an evaluation for one setting.

use super::scores::ScoreFigures;
use serde::Serialize;
use tqkv::cache::HeadStats;

/// Statistics of a cache for one KV head at the end of a window ([`HeadStats`]), as means over the windows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadFigures {
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// Squared error of keys divided by their squared norm.
    pub key_error: f64,
    /// Squared error of values over their squared norm.
    pub value_error: f64,
    /// Share of the keys' energy that remains after their mean is subtracted. 1 if keys are not centred.
    pub centred_energy: f64,
    /// Number of means that the keys have had.
    pub means: f64,
    /// Bytes of memory held.
    pub allocated_bytes: f64,
}

impl HeadFigures {
    pub(super) fn none(layer: usize, kv_head: usize) -> Self {
        let (key_error, value_error, centred_energy, means, allocated_bytes) = (0.0, 0.0, 0.0, 0.0, 0.0);
        Self { layer, kv_head, key_error, value_error, centred_energy, means, allocated_bytes }
    }

    /// Adds the figures of a window, weighted by `share`.
    pub(super) fn add(&mut self, stats: &HeadStats, share: f64) {
        self.key_error += share * stats.key_error;
        self.value_error += share * stats.value_error;
        self.centred_energy += share * stats.centred_energy;
        self.means += share * stats.means as f64;
        self.allocated_bytes += share * stats.allocated_bytes as f64;
    }
}

/// Mean KL of the tokens whose answers a text told at each depth, nats per token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DepthFigures {
    /// Told in tokens 0 to 127, from which a cache learns the map of keys.
    pub first_page: f64,
    /// Told in the first half of what lies between that page and the questions.
    pub middle: f64,
    /// Told in the second half, 64 tokens or more before the questions.
    pub end: f64,
}

/// Figures of one setting.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalResult {
    /// Name of the setting.
    pub name: String,
    /// Mean negative log likelihood, nats per token.
    pub nll: f64,
    /// exp(nll).
    pub perplexity: f64,
    /// Difference of the nll to the reference.
    pub nll_delta: f64,
    /// Mean KL(reference || setting), nats per token.
    pub kl: f64,
    /// The same of each window.
    pub kl_of_windows: Vec<f64>,
    /// The same by the depth at which the texts told what they ask for. `None` for texts that do not say.
    pub kl_by_depth: Option<DepthFigures>,
    /// The KL that one position in a hundred exceeds.
    pub kl_p99: f64,
    /// The KL that one position in a thousand exceeds.
    pub kl_p999: f64,
    /// Share of positions where the most likely token is the reference's.
    pub top1_agreement: f64,
    /// Share of positions where the most likely token is the one that the text has.
    pub right: f64,
    /// Share of the answers that are right, of those that a text asks for. `None` for texts that ask for none.
    ///
    /// Where a text has one question, the setting generates the answer greedily, and its score is the share of the wanted
    /// strings that it has, as in RULER. Elsewhere an answer is right if each of its tokens is the likeliest one, which a
    /// greedy answer would be too.
    pub answers: Option<f64>,
    /// Bytes that the cache has allocated at the end of a window, per token. Mean over the windows.
    pub cache_bytes_per_token: f64,
    /// Mean cosine between the residual stream after each layer and the reference's. Empty unless requested.
    pub layer_cosine: Vec<f64>,
    /// One entry per KV head, layers in order. Empty unless requested, and for caches without statistics.
    pub heads: Vec<HeadFigures>,
    /// Squared error of the attention outputs over their squared norm, where both caches receive the same
    /// queries, keys and values. Mean over the layers. `None` unless requested.
    pub attention_error: Option<f64>,
    /// One entry per query head, layers in order. Empty unless requested.
    pub scores: Vec<ScoreFigures>,
}

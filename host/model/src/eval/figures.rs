//! What an evaluation finds out about a setting.

use super::scores::ScoreFigures;
use serde::Serialize;
use tqkv::cache::HeadStats;

/// What a cache knows of one KV head at the end of a window, as [`HeadStats`]; means over the windows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadFigures {
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// Squared error of keys over their squared norm.
    pub key_error: f64,
    /// Squared error of values over their squared norm.
    pub value_error: f64,
    /// Energy of the keys that is left when their mean is taken off: 1 where they are not centred.
    pub centred_energy: f64,
    /// Means that the keys have had.
    pub means: f64,
    /// Bytes of memory held.
    pub allocated_bytes: f64,
}

impl HeadFigures {
    pub(super) fn none(layer: usize, kv_head: usize) -> Self {
        let (key_error, value_error, centred_energy, means, allocated_bytes) = (0.0, 0.0, 0.0, 0.0, 0.0);
        Self { layer, kv_head, key_error, value_error, centred_energy, means, allocated_bytes }
    }

    /// Adds a window's figures, `share` of them.
    pub(super) fn add(&mut self, stats: &HeadStats, share: f64) {
        self.key_error += share * stats.key_error;
        self.value_error += share * stats.value_error;
        self.centred_energy += share * stats.centred_energy;
        self.means += share * stats.means as f64;
        self.allocated_bytes += share * stats.allocated_bytes as f64;
    }
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
    /// nll minus that of the reference.
    pub nll_delta: f64,
    /// Mean KL(reference || setting), nats per token.
    pub kl: f64,
    /// The KL that one position of a hundred exceeds.
    pub kl_p99: f64,
    /// The KL that one position of a thousand exceeds.
    pub kl_p999: f64,
    /// Share of positions where the likeliest token is the reference's.
    pub top1_agreement: f64,
    /// Bytes allocated by the cache at the end of a window, per token; mean over the windows.
    pub cache_bytes_per_token: f64,
    /// Mean cosine between the residual stream after each layer and the reference's; empty unless asked for.
    pub layer_cosine: Vec<f64>,
    /// One a KV head, layers in order; empty unless asked for, and of a cache that does not keep count.
    pub heads: Vec<HeadFigures>,
    /// Squared error of the attention outputs over their squared norm, where the reference is fed the same queries, keys and
    /// values; mean over the layers. `None` unless asked for.
    pub attention_error: Option<f64>,
    /// One a query head, layers in order; empty unless asked for.
    pub scores: Vec<ScoreFigures>,
}

//! What a `config.json` says of latent attention.

use super::fields::RawConfig;
use super::number::count;
use crate::error::ModelError;

/// Attention over latent vectors (multi-head latent attention): each token has one vector that is key and value of all heads,
/// and a positional part of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector.
    pub rank: usize,
    /// Width between the two projections of queries, where there are two.
    pub query_rank: Option<usize>,
    /// Coordinates of a head's query that meet the vector.
    pub content_dim: usize,
    /// Coordinates that RoPE turns, shared by all heads in the key.
    pub position_dim: usize,
    /// Coordinates of a head's value.
    pub value_dim: usize,
}

impl Latent {
    pub(super) fn read(raw: &RawConfig) -> Result<Self, ModelError> {
        Ok(Self {
            rank: count("kv_lora_rank", raw.kv_lora_rank)?,
            query_rank: raw.q_lora_rank.map(|rank| count("q_lora_rank", Some(rank))).transpose()?,
            content_dim: count("qk_nope_head_dim", raw.qk_nope_head_dim)?,
            position_dim: count("qk_rope_head_dim", raw.qk_rope_head_dim)?,
            value_dim: count("v_head_dim", raw.v_head_dim)?,
        })
    }
}

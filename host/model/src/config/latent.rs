//! Reads the fields of a `config.json` about latent attention.

use super::fields::RawConfig;
use super::number::count;
use crate::error::ModelError;

/// Attention over latent vectors (multi-head latent attention). Each token has one vector that is key and
/// value of all heads, and a positional part of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latent {
    /// Width of the latent vector.
    pub rank: usize,
    /// Width between the two projections of queries. `None` if there is one projection.
    pub query_rank: Option<usize>,
    /// Coordinates of a head's query that are multiplied with the latent vector, through the key projection.
    pub content_dim: usize,
    /// Coordinates that RoPE turns. In the key all heads share them.
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

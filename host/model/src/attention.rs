//! Attention of a layer, without the cache: makes queries, keys and values.

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::ModelError;
use crate::latent::{LatentAttend, LatentWeights};
use crate::linear::Linear;
use crate::norm::rms_norm;
use crate::rope::RopeTable;
use tqkv::error::CacheError;

/// The projections that make a layer's queries, keys and values.
#[derive(Debug)]
pub(crate) enum AttentionWeights {
    Heads(Heads),
    Latent(LatentWeights),
}

/// Each KV head has keys and values of its own.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    /// Weights of the per-head norms, `[head_dim]`, queries then keys.
    pub(crate) qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// `[num_kv_heads, head_dim]`, added to keys after RoPE. No checkpoint has it; [`crate::biased`] makes
    /// it.
    pub(crate) key_bias: Option<Vec<f32>>,
}

impl AttentionWeights {
    /// Reads the weights of an attention. `name` is its prefix in the checkpoint.
    pub(crate) fn read(tensors: &Checkpoint, c: &Config, name: &str) -> Result<Self, ModelError> {
        match &c.latent {
            None => Heads::read(tensors, c, name).map(Self::Heads),
            Some(fields) => LatentWeights::read(tensors, c, fields, name).map(Self::Latent),
        }
    }

    /// Inputs of the output projection.
    pub(crate) const fn out_values(c: &Config) -> usize {
        let value_dim = match &c.latent {
            None => c.head_dim,
            Some(latent) => latent.value_dim,
        };
        c.num_heads * value_dim
    }

    /// The inputs of the output projection for `x`, `[n, hidden_size]`.
    pub(crate) fn forward(
        &self,
        x: &[f32],
        c: &Config,
        table: &RopeTable,
        attend: &mut LatentAttend<'_>,
    ) -> Result<Vec<f32>, CacheError> {
        match self {
            Self::Heads(heads) => heads.forward(x, c, table, attend),
            Self::Latent(latent) => latent.forward(x, c, table, attend),
        }
    }
}

impl Heads {
    fn read(tensors: &Checkpoint, c: &Config, name: &str) -> Result<Self, ModelError> {
        let (queries, keys) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let part = |part: &str| format!("{name}.{part}");
        let linear = |name: &str, outputs| tensors.linear(&part(name), outputs, c.hidden_size, c.qkv_bias);
        let [q, k, v] = if c.family().is_fused {
            tensors.fused(&part("qkv_proj"), [queries, keys, keys], c.hidden_size)?
        } else {
            [linear("q_proj", queries)?, linear("k_proj", keys)?, linear("v_proj", keys)?]
        };
        let norm = |name: &str| tensors.norm(&part(name), c.head_dim, c);
        let qk_norm = if c.family().head_norms { Some((norm("q_norm")?, norm("k_norm")?)) } else { None };
        Ok(Self { q, k, v, qk_norm, key_bias: None })
    }

    fn forward(
        &self,
        x: &[f32],
        c: &Config,
        table: &RopeTable,
        attend: &mut LatentAttend<'_>,
    ) -> Result<Vec<f32>, CacheError> {
        let (mut q, mut k, v) = (self.q.forward(x), self.k.forward(x), self.v.forward(x));
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            q = rms_norm(&q, q_norm, c.rms_norm_eps);
            k = rms_norm(&k, k_norm, c.rms_norm_eps);
        }
        table.apply(&mut q, c.num_heads, c.head_dim, 0);
        table.apply(&mut k, c.num_kv_heads, c.head_dim, 0);
        if let Some(bias) = &self.key_bias {
            for key in k.chunks_exact_mut(bias.len()) {
                key.iter_mut().zip(bias).for_each(|(k, b)| *k += b);
            }
        }
        let mut attended = vec![0.0; q.len()];
        attend(&q, &k, &v, &mut attended)?;
        Ok(attended)
    }
}

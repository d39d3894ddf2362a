//! A cache of decoded vectors: each token is encoded to a block and decoded again.
//!
//! It measures the effect of a format on a model, not its speed or size:
//!
//! * Every token is encoded when it comes. There are no sinks and no hot window, and no mean is subtracted.
//! * Decoded vectors are held as f32. `allocated_bytes` counts the blocks that they came from.
//!
//! An estimator of dot products is linear in the query, so attention to decoded vectors equals attention by
//! the estimator.

use crate::choice::{Choice, Coders};
use crate::rotation::RotationKind;
use crate::side_coders::{SIDES, SideCoders};
use rayon::prelude::*;
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv_core::{KvShape, Options};

/// Attention of a model over decoded blocks.
#[derive(Debug)]
pub struct DecodedCache {
    dense: DenseCache,
    is_latent: bool,
    coders: SideCoders,
}

impl DecodedCache {
    /// An empty cache for the attention of `spec`. `choices` are the formats of keys and values.
    ///
    /// # Errors
    /// An attention that no cache computes, or choices without blocks of the head dims.
    pub fn new(
        spec: &CacheSpec,
        choices: [Choice; 2],
        options: Options,
        rotation: Option<RotationKind>,
    ) -> Result<Self, CacheError> {
        let (dense, is_latent) = (DenseCache::new(spec)?, spec.position_dim > 0);
        Ok(Self { dense, is_latent, coders: SideCoders::both(spec, choices, options, rotation)? })
    }

    /// Tokens that a layer holds.
    fn tokens(&self, layer: usize) -> usize {
        self.dense.keys(layer, 0).map_or(0, |keys| keys.len() / self.dense.shape().head_dim)
    }

    /// Encodes and decodes `x`, `[n, num_kv_heads, dim]`. Another shape comes back unchanged: the check that
    /// follows refuses it.
    fn through(&mut self, side: usize, layer: usize, x: &[f32]) -> Result<Vec<f32>, CacheError> {
        let KvShape { num_layers, num_kv_heads, head_dim, value_dim, .. } = self.dense.shape();
        let dim = [head_dim, value_dim][side];
        let mut decoded = x.to_vec();
        if x.is_empty() || layer >= num_layers || !x.len().is_multiple_of(num_kv_heads * dim) {
            return Ok(decoded);
        }
        let held = self.tokens(layer);
        if held == 0 {
            self.coders.learn_side(side, layer, x);
        }
        let coders = self.coders.of(side, layer);
        decoded.par_chunks_exact_mut(dim).enumerate().try_for_each(|(row, x)| {
            coders[row % num_kv_heads].pass(x).map_err(|why| {
                let token = held + row / num_kv_heads;
                CacheError::Encode(format!("layer {layer}, {} of token {token}: {why}", SIDES[side]))
            })
        })?;
        Ok(decoded)
    }
}

impl AttentionCache for DecodedCache {
    fn shape(&self) -> KvShape {
        self.dense.shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let keys = self.through(0, layer, k)?;
        // Latent vectors contain their values, which are decoded with them.
        let values = if self.is_latent { v.to_vec() } else { self.through(1, layer, v)? };
        self.dense.attend_chunk(layer, q, &keys, &values, out)
    }

    fn len(&self) -> usize {
        self.dense.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.dense.truncate(len)
    }

    fn reset(&mut self) {
        self.dense.reset();
    }

    fn allocated_bytes(&self) -> usize {
        let KvShape { num_layers, num_kv_heads, .. } = self.dense.shape();
        let slot = |layer: usize| {
            let coders =
                [0, 1].map(|side| self.coders.of(side, layer).first().map_or(0, Coders::block_bytes));
            coders.iter().sum::<usize>() * num_kv_heads
        };
        (0..num_layers).map(|layer| self.tokens(layer) * slot(layer)).sum()
    }
}

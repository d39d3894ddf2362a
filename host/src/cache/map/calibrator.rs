//! Learns moments from windows of text, for caches to come.

use super::moments::{Setting, Sums};
use super::weights::WeightRule;
use crate::cache::calibration::Calibration;
use crate::cache::layer::LayerKind;
use crate::cache::spec::{CacheSpec, KeyMap};
use crate::error::CacheError;
use rayon::prelude::*;
use tqkv_core::KvShape;

/// Most queries per query head and window that teach, and fewest keys before the first of them.
const SAMPLES: usize = 64;

/// Learns a [`Calibration`] from the queries and keys of windows of text. Keys weigh as they do where a cache
/// learns from its first page.
#[derive(Debug)]
pub struct Calibrator {
    spec: CacheSpec,
    /// `[num_layers, num_kv_heads]`
    heads: Vec<Sums>,
    tokens: u64,
}

impl Calibrator {
    /// A calibrator for caches with the shape, the attention, RoPE and sinks of `spec`.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`] if no cache of this shape has a map, or if RoPE is not known.
    pub fn new(spec: &CacheSpec) -> Result<Self, CacheError> {
        let spec = CacheSpec { key_map: KeyMap::Full, calibration: None, ..spec.clone() };
        spec.check()?;
        let num_layers = spec.shape.num_layers;
        if !(0..num_layers).all(|layer| spec.has_map(layer)) {
            return Err(CacheError::BadSpec(
                "moments of latent vectors: expected separate keys and values".into(),
            ));
        }
        let sums = |layer| {
            let rope = spec.rope_at(layer)?;
            Some(Sums::new(&Setting::new(rope, spec.shape.head_dim, spec.sinks_at(layer), false)))
        };
        let heads =
            (0..num_layers * spec.shape.num_kv_heads).filter_map(|i| sums(i / spec.shape.num_kv_heads));
        Ok(Self { heads: heads.collect(), spec, tokens: 0 })
    }

    /// Fewest tokens of a window.
    pub fn least_tokens(&self) -> usize {
        self.spec.sinks + 2 * SAMPLES
    }

    /// Learns from one layer of a window of text: queries `[tokens, num_heads, head_dim]` and keys
    /// `[tokens, num_kv_heads, head_dim]` of positions from 0 on, after RoPE.
    ///
    /// # Errors
    /// A layer that is not there, other lengths, or fewer than [`Calibrator::least_tokens`] tokens.
    pub fn learn(&mut self, layer: usize, q: &[f32], k: &[f32]) -> Result<(), CacheError> {
        let KvShape { num_heads, num_kv_heads, head_dim: dim, .. } = self.spec.shape;
        let tokens = self.spec.shape.check_tokens(layer, k.len(), k.len())?;
        let least = self.least_tokens();
        if tokens < least || q.len() != tokens * num_heads * dim {
            return Err(CacheError::BadSpec(format!(
                "a window of {tokens} tokens and {} values of queries: expected at least {least} tokens, and {} values",
                q.len(),
                tokens * num_heads * dim
            )));
        }
        let (sinks, group) = (self.spec.sinks_at(layer), self.spec.shape.group());
        let rule = WeightRule {
            scale: self.spec.scale.unwrap_or(1.0 / (dim as f32).sqrt()),
            soft_cap: self.spec.soft_cap,
            window: match self.spec.kind(layer) {
                LayerKind::Sliding(window) => Some(window),
                LayerKind::Full | LayerKind::None => None,
            },
            group,
        };
        let first = sinks + SAMPLES;
        let stride = (tokens - first).div_ceil(SAMPLES);
        let heads = &mut self.heads[layer * num_kv_heads..(layer + 1) * num_kv_heads];
        heads.par_iter_mut().enumerate().for_each(|(kv_head, sums)| {
            let of_head = k.chunks_exact(dim).skip(kv_head).step_by(num_kv_heads);
            let keys: Vec<f32> = of_head.flatten().copied().collect();
            let queries = || {
                (first..tokens).step_by(stride).flat_map(|position| {
                    let at = (position * num_heads + kv_head * group) * dim;
                    q[at..at + rule.group * dim].chunks_exact(dim).map(move |query| (position, query))
                })
            };
            let Some(weights) = rule.weights((&keys, dim), sinks, tokens - sinks, queries()) else { return };
            queries().for_each(|(position, query)| sums.add_query(query, position));
            let keys = keys.chunks_exact(dim).enumerate().skip(sinks);
            keys.zip(&weights).for_each(|((position, key), weight)| sums.add_key(key, position, *weight));
        });
        if layer == 0 {
            self.tokens += tokens as u64;
        }
        Ok(())
    }

    /// The moments so far, for a model with this hash.
    pub fn finish(&self, model: [u8; 32]) -> Calibration {
        let rope = (0..self.spec.shape.num_layers).filter_map(|layer| self.spec.rope_at(layer).cloned());
        let heads = self.heads.iter().map(Sums::kept).collect();
        Calibration::new(model, self.tokens, &self.spec.shape, rope.collect(), heads)
    }
}

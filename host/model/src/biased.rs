//! The biased variant: keys with a large constant part, in a model that has none.
//!
//! In the first and the last layer of some large models every key contains the same large vector. Qwen2.5 is
//! the known example. Most of this vector is in a few channels. Softmax cancels it: <q, k + b> is <q, k> plus
//! a number that is the same for all tokens. A codec does not cancel it, because its error grows with the
//! norm of the vectors that it stores. A cache that first subtracts the mean of its keys does.
//!
//! Here the constant is added after RoPE, where it is the same at every position. Attention in exact
//! arithmetic stays the same, so any measured difference comes from the cache. Keys of many times their norm
//! also lose digits in f16. A comparison therefore needs the f16 row of the biased model.

use crate::attention::AttentionWeights;
use crate::error::ModelError;
use crate::{Model, shipped};

/// Channels of a KV head that hold most of the constant.
pub const BIASED_CHANNELS: usize = 4;
/// The share of the constant's energy in these channels.
pub const BIASED_SHARE: f32 = 0.75;

/// Tokens whose keys give the mean key norm.
const SAMPLE: usize = 256;
/// Bytes of text that hold this many tokens in any vocabulary.
const SAMPLE_BYTES: usize = 8 << 10;

impl Model {
    /// This model with a constant in every key of the first and the last layer. In exact arithmetic it is the
    /// same function.
    ///
    /// The norm of the constant is `factor` times the mean key norm of the layer, taken over the first 256
    /// tokens of [`shipped::HELDOUT_TEXT`]. Each layer and KV head has a fixed direction. [`BIASED_CHANNELS`]
    /// random channels share [`BIASED_SHARE`] of the energy equally, and the other channels share the rest.
    /// The signs are random.
    ///
    /// # Errors
    /// [`ModelError::BadKeyBias`] for a negative or non-finite factor, [`ModelError::Variant`],
    /// [`ModelError::Streamed`], and errors of the run over the text.
    /// running the text refuses.
    pub fn into_biased_variant(mut self, factor: f32) -> Result<Self, ModelError> {
        if !(factor.is_finite() && factor >= 0.0) {
            return Err(ModelError::BadKeyBias(factor));
        }
        if let Some(what) = self.kept_apart() {
            return Err(ModelError::Variant { variant: "biased", what });
        }
        let text = &shipped::HELDOUT_TEXT[..SAMPLE_BYTES];
        let tokens = self.first_tokens(text, SAMPLE.min(self.config.context))?;
        let mut cache = self.config.dense_cache()?;
        self.hidden(&tokens, 0, &mut cache, &mut |_, _, _| {})?;
        let (heads, dim) = (self.config.num_kv_heads, self.config.head_dim);
        let last = self.config.num_layers - 1;
        for layer in [0, last] {
            let keys =
                (0..heads).filter_map(|head| cache.keys(layer, head)).flat_map(|k| k.chunks_exact(dim));
            let norms: Vec<f32> = keys.map(|key| key.iter().map(|x| x * x).sum::<f32>().sqrt()).collect();
            let mean = norms.iter().sum::<f32>() / norms.len() as f32;
            let directions = (0..heads).flat_map(|head| direction(dim, (layer * heads + head) as u64));
            let bias = directions.map(|x| factor * mean * x).collect();
            if let AttentionWeights::Heads(heads) = &mut self.weights.layers.resident_mut()?[layer].attention
            {
                heads.key_bias = Some(bias);
            }
        }
        Ok(self)
    }

    /// A property of the model with which attention would not cancel a constant in the keys.
    fn kept_apart(&self) -> Option<&'static str> {
        let c = &self.config;
        [
            (c.latent.is_some(), "latent attention"),
            (c.soft_cap.is_some(), "a soft cap of attention's logits"),
            (!c.sink_logits.is_empty(), "learned sinks"),
        ]
        .into_iter()
        .find_map(|(has, what)| has.then_some(what))
    }
}

/// A unit vector with most of its energy in a few channels.
fn direction(dim: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let strong = random.choose_multiple(0..dim, BIASED_CHANNELS.min(dim));
    let others = dim - strong.len();
    let share = if others == 0 { 1.0 } else { BIASED_SHARE };
    (0..dim)
        .map(|channel| {
            let energy = if strong.contains(&channel) {
                share / strong.len() as f32
            } else {
                (1.0 - share) / others as f32
            };
            if random.bool() { energy.sqrt() } else { -energy.sqrt() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_unit_vectors_that_few_channels_dominate() {
        for (dim, seed) in [(128, 0), (128, 1), (64, 7), (8, 2), (2, 3)] {
            let x = direction(dim, seed);
            let mut energy: Vec<f32> = x.iter().map(|x| x * x).collect();
            energy.sort_by(|a, b| b.total_cmp(a));
            assert!((energy.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{x:?}");
            let strong: f32 = energy[..BIASED_CHANNELS.min(dim)].iter().sum();
            assert!(strong > BIASED_SHARE - 1e-5, "{x:?}");
            assert_eq!(x, direction(dim, seed));
        }
        assert_ne!(direction(128, 0), direction(128, 1));
    }
}

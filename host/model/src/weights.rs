//! The weights of a model, as the forward pass uses them.

use crate::checkpoint::{Access, Checkpoint};
use crate::config::Config;
use crate::error::ModelError;
use crate::linear::Linear;
use crate::size::WeightBytes;
use crate::stream::Layers;

/// All weights of a model except its learned sinks.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab_size, hidden_size]`. Also the output head of a tied model.
    pub(crate) embedding: Linear,
    pub(crate) layers: Layers,
    pub(crate) norm: Vec<f32>,
    /// `None` if the embedding is the output head.
    pub(crate) head: Option<Linear>,
    /// Bytes of the tensors, streamed ones included.
    pub(crate) bytes: WeightBytes,
}

impl Weights {
    /// Reads every tensor that `config` needs. Streamed layers stay in their files.
    pub(crate) fn read(config: &Config, tensors: Checkpoint, access: Access) -> Result<Self, ModelError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let head = if config.tie_word_embeddings {
            None
        } else {
            Some(tensors.linear("lm_head", vocab, hidden, false)?)
        };
        let embedding = tensors.linear("model.embed_tokens", vocab, hidden, false)?;
        let norm = tensors.norm("model.norm", hidden, config)?;
        // The layers come last, because they check that all tensors were read.
        let (layers, bytes) = match access {
            Access::Mapped => (Layers::resident(config, &tensors)?, WeightBytes::of_requested(&tensors)),
            Access::Streamed => Layers::streamed(config, tensors)?,
        };
        Ok(Self { embedding, layers, norm, head, bytes })
    }
}

/// Learned sinks, `[num_layers, num_heads]`. Empty if the family has none.
pub(crate) fn read_sinks(config: &Config, tensors: &Checkpoint) -> Result<Vec<f32>, ModelError> {
    let layers = if config.family().has_sinks { config.num_layers } else { 0 };
    let mut sinks = Vec::new();
    for layer in 0..layers {
        sinks.extend(tensors.vector(&format!("model.layers.{layer}.self_attn.sinks"), config.num_heads)?);
    }
    Ok(sinks)
}

impl Checkpoint {
    /// The weights of a norm, with the offset of the config added.
    pub(crate) fn norm(&self, name: &str, len: usize, c: &Config) -> Result<Vec<f32>, ModelError> {
        let mut weights = self.vector(&format!("{name}.weight"), len)?;
        weights.iter_mut().for_each(|weight| *weight += c.norm_offset);
        Ok(weights)
    }
}

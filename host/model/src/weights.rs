//! The weights of a model, layer by layer, as the forward pass uses them.

use crate::attention::Attention;
use crate::checkpoint::{Access, Checkpoint};
use crate::config::Config;
use crate::error::ModelError;
use crate::linear::Linear;
use crate::mlp::Mlp;
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
}

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) attention: Attention,
    pub(crate) o: Linear,
    /// Norm of the attention's output, before it is added to the residual stream.
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) mlp: Mlp,
    /// Norm of the MLP's output, before it is added to the residual stream.
    pub(crate) post_mlp_norm: Option<Vec<f32>>,
}

impl Layer {
    pub(crate) fn read(tensors: &Checkpoint, c: &Config, index: usize) -> Result<Self, ModelError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| tensors.norm(&name(part), c.hidden_size, c);
        let (mlp_norm, post_attention_norm, post_mlp_norm) = if c.family().post_norms {
            let (after, last) = (norm("post_attention_layernorm")?, norm("post_feedforward_layernorm")?);
            (norm("pre_feedforward_layernorm")?, Some(after), Some(last))
        } else {
            (norm("post_attention_layernorm")?, None, None)
        };
        let attended = Attention::out_values(c);
        Ok(Self {
            attention_norm: norm("input_layernorm")?,
            attention: Attention::read(tensors, c, &name("self_attn"))?,
            o: tensors.linear(&name("self_attn.o_proj"), c.hidden_size, attended, c.output_bias)?,
            post_attention_norm,
            mlp_norm,
            mlp: Mlp::read(tensors, c, index, &name("mlp"))?,
            post_mlp_norm,
        })
    }
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
        Ok(Self {
            embedding: tensors.linear("model.embed_tokens", vocab, hidden, false)?,
            norm: tensors.norm("model.norm", hidden, config)?,
            head,
            // The layers come last, because they check that all tensors were read.
            layers: match access {
                Access::Mapped => Layers::resident(config, &tensors)?,
                Access::Streamed => Layers::streamed(config, tensors)?,
            },
        })
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

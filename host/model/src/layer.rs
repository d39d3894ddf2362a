//! The weights of one decoder layer, as the forward pass uses them.

use crate::attention::AttentionWeights;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::ModelError;
use crate::linear::Linear;
use crate::mlp::Mlp;

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) attention: AttentionWeights,
    pub(crate) o: Linear,
    /// Norm of the output of attention, before it is added.
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) mlp: Mlp,
    /// Norm of the output of the MLP, before it is added.
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
        let attended = AttentionWeights::out_values(c);
        Ok(Self {
            attention_norm: norm("input_layernorm")?,
            attention: AttentionWeights::read(tensors, c, &name("self_attn"))?,
            o: tensors.linear(&name("self_attn.o_proj"), c.hidden_size, attended, c.output_bias)?,
            post_attention_norm,
            mlp_norm,
            mlp: Mlp::read(tensors, c, index, &name("mlp"))?,
            post_mlp_norm,
        })
    }
}

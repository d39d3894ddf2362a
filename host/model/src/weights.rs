//! The weights of a model, layer by layer, as the forward pass uses them.

use crate::checkpoint::{Access, Checkpoint};
use crate::config::{Architecture, Config};
use crate::error::ModelError;
use crate::linear::Linear;
use crate::stream::Layers;

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab_size, hidden_size]`; also the head of a tied model.
    pub(crate) embedding: Linear,
    pub(crate) layers: Layers,
    pub(crate) norm: Vec<f32>,
    /// `None` where the embedding is the head.
    pub(crate) head: Option<Linear>,
}

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    /// Qwen3: weights of the per-head norms, `[head_dim]`, queries then keys.
    pub(crate) qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// `[num_kv_heads, head_dim]`, added to keys after RoPE; no checkpoint has it, [`crate::biased`] makes it.
    pub(crate) key_bias: Option<Vec<f32>>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Layer {
    pub(crate) fn read(tensors: &Checkpoint, c: &Config, index: usize) -> Result<Self, ModelError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| tensors.vector(&name(&format!("{part}.weight")), c.hidden_size);
        let head_norm = |part: &str| tensors.vector(&name(&format!("self_attn.{part}.weight")), c.head_dim);
        let (queries, keys) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let qk_norm = match c.architecture {
            Architecture::Qwen3 => Some((head_norm("q_norm")?, head_norm("k_norm")?)),
            Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 => None,
        };
        Ok(Self {
            attention_norm: norm("input_layernorm")?,
            q: tensors.linear(&name("self_attn.q_proj"), queries, c.hidden_size, c.qkv_bias)?,
            k: tensors.linear(&name("self_attn.k_proj"), keys, c.hidden_size, c.qkv_bias)?,
            v: tensors.linear(&name("self_attn.v_proj"), keys, c.hidden_size, c.qkv_bias)?,
            o: tensors.linear(&name("self_attn.o_proj"), c.hidden_size, queries, c.output_bias)?,
            qk_norm,
            key_bias: None,
            mlp_norm: norm("post_attention_layernorm")?,
            gate: tensors.linear(&name("mlp.gate_proj"), c.intermediate_size, c.hidden_size, false)?,
            up: tensors.linear(&name("mlp.up_proj"), c.intermediate_size, c.hidden_size, false)?,
            down: tensors.linear(&name("mlp.down_proj"), c.hidden_size, c.intermediate_size, false)?,
        })
    }
}

impl Weights {
    /// Reads every tensor that `config` asks for; those of the layers stay where they are if they are to be streamed.
    pub(crate) fn read(config: &Config, tensors: Checkpoint, access: Access) -> Result<Self, ModelError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let head = if config.tie_word_embeddings {
            None
        } else {
            Some(tensors.linear("lm_head", vocab, hidden, false)?)
        };
        Ok(Self {
            embedding: tensors.linear("model.embed_tokens", vocab, hidden, false)?,
            norm: tensors.vector("model.norm.weight", hidden)?,
            head,
            layers: match access {
                Access::Mapped => Layers::resident(config, &tensors)?,
                Access::Streamed => Layers::streamed(config, tensors)?,
            },
        })
    }
}

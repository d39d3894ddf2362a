//! The fields of a `config.json`: those that are read, and those without an effect on the result.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::family::Family;
use crate::error::ModelError;

/// The file as written. [`refuse_unread`] has checked that no other field matters.
#[derive(Debug, Deserialize)]
pub(super) struct RawConfig {
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) vocab_size: usize,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: Option<f64>,
    pub(super) rope_theta: Option<f64>,
    pub(super) rope_local_base_freq: Option<f64>,
    pub(super) rope_scaling: Option<Map<String, Value>>,
    /// The newer spelling: theta and scaling in one object, or one object per kind of layer.
    pub(super) rope_parameters: Option<Map<String, Value>>,
    pub(super) partial_rotary_factor: Option<f64>,
    pub(super) tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default)]
    pub(super) mlp_bias: bool,
    pub(super) hidden_act: Option<String>,
    pub(super) hidden_activation: Option<String>,
    pub(super) query_pre_attn_scalar: Option<f64>,
    pub(super) attn_logit_softcapping: Option<f64>,
    pub(super) final_logit_softcapping: Option<f64>,
    /// Only [`crate::gguf`] writes this field, because norms in GGUF files include the 1.
    pub(super) norms_include_one: Option<bool>,
    pub(super) swiglu_limit: Option<f64>,
    pub(super) swiglu_alpha: Option<f64>,
    pub(super) eos_token_id: Option<Eos>,
    /// Experts, by the names of the different families.
    pub(super) num_experts: Option<usize>,
    pub(super) num_local_experts: Option<usize>,
    pub(super) n_routed_experts: Option<usize>,
    pub(super) num_experts_per_tok: Option<usize>,
    pub(super) moe_intermediate_size: Option<usize>,
    pub(super) norm_topk_prob: Option<bool>,
    pub(super) decoder_sparse_step: Option<usize>,
    pub(super) mlp_only_layers: Option<Vec<usize>>,
    pub(super) n_shared_experts: Option<usize>,
    pub(super) first_k_dense_replace: Option<usize>,
    pub(super) moe_layer_freq: Option<usize>,
    pub(super) routed_scaling_factor: Option<f64>,
    pub(super) topk_method: Option<String>,
    pub(super) scoring_func: Option<String>,
    /// Latent attention.
    pub(super) kv_lora_rank: Option<usize>,
    pub(super) q_lora_rank: Option<usize>,
    pub(super) qk_nope_head_dim: Option<usize>,
    pub(super) qk_rope_head_dim: Option<usize>,
    pub(super) v_head_dim: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Eos {
    One(u32),
    Many(Vec<u32>),
}

impl Eos {
    pub(super) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

/// Fields that are read for every family.
const READ: [&str; 19] = [
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
];

/// Fields without an effect on logits: origin of the file, token ids, training, sampling, and settings of
/// other programs.
#[rustfmt::skip]
const OF_NO_MATTER: [&str; 62] = [
    "_name_or_path", "name_or_path", "auto_map", "transformers_version", "transformers.js_config", "tokenizer_class",
    "unsloth_version", "unsloth_fixed", "torch_dtype", "dtype", "torchscript", "task_specific_params", "id2label",
    "label2id", "problem_type", "finetuning_task", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "cls_token_id", "unk_token_id", "decoder_start_token_id", "initializer_range", "initializer_factor",
    "attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout", "residual_dropout",
    "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "output_router_logits", "ep_size",
    "use_cache", "cache_implementation", "pretraining_tp", "gradient_checkpointing", "return_dict",
    "output_attentions", "output_hidden_states", "_attn_implementation", "_attn_implementation_autoset",
    "attn_implementation", "use_flash_attn", "chunk_size_feed_forward", "max_length", "min_length", "do_sample",
    "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_return_sequences", "repetition_penalty",
    "length_penalty", "diversity_penalty", "num_beam_groups",
];

/// Refuses a file with a field that would change the result and is not computed. Also refuses a file without
/// a required field.
pub(super) fn refuse_unread(fields: &Map<String, Value>, family: &Family) -> Result<(), ModelError> {
    let class = family.name();
    if let Some(name) = family.required.iter().find(|name| !fields.contains_key(**name)) {
        return Err(ModelError::Config(format!("missing field `{name}`, which {class} needs")));
    }
    let is_known = |name: &&str| {
        let lists = [&READ[..], &OF_NO_MATTER, family.required, family.optional];
        lists.iter().any(|list| list.contains(name))
    };
    match fields.iter().find(|(name, value)| !is_known(&name.as_str()) && !is_nothing(value)) {
        Some((name, value)) => {
            // For a quantisation config the name of the method is enough.
            let value = value.get("quant_method").unwrap_or(value);
            Err(ModelError::Config(format!("{name} is {}, which is not computed for {class}", shown(value))))
        }
        None => Ok(()),
    }
}

/// True if a value switches nothing on.
pub(crate) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The start of a value, on one line.
pub(crate) fn shown(value: &Value) -> String {
    const MOST: usize = 40;
    let text = value.to_string();
    if text.chars().count() <= MOST { text } else { text.chars().take(MOST).chain(['\u{2026}']).collect() }
}

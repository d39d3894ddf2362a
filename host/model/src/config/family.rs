//! The families of models, and their differences from Llama.

use crate::error::ModelError;

/// The decoder families that the runner computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, and models with the same tensors: TinyLlama, SmolLM, Yi and others.
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: Llama with biases on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm on every query and key head before RoPE.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Phi-3: q, k and v in one tensor, RoPE on a part of each head.
    Phi3,
    /// Gemma 2: norms before and after attention and MLP, windows in every other layer, soft caps.
    Gemma2,
    /// Gemma 3, text: norms of heads as well, and another RoPE in layers with a window.
    Gemma3,
    /// gpt-oss: learned sinks, experts with biases.
    GptOss,
    /// DeepSeek-V2: latent attention, shared and routed experts.
    DeepseekV2,
}

/// The features of a family that differ from Llama.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) architecture: Architecture,
    /// The name in `architectures` of `config.json`.
    class: &'static str,
    /// Fields that must exist. For a missing one the model library would use a default that is unknown here.
    pub(super) required: &'static [&'static str],
    /// Other fields that are read.
    pub(super) optional: &'static [&'static str],
    /// RMSNorm on every query and key head before RoPE.
    pub(crate) head_norms: bool,
    /// Norms of the outputs of attention and MLP, before they are added to the residual stream.
    pub(crate) post_norms: bool,
    /// Added to the stored weights of norms.
    pub(crate) norm_offset: f32,
    /// Embeddings are multiplied by the square root of their width.
    pub(crate) scales_embedding: bool,
    /// q, k and v in one tensor, gate and up in another.
    pub(crate) is_fused: bool,
    /// A learned sink for each query head.
    pub(crate) has_sinks: bool,
    /// Biases on q, k and v, independent of the config.
    pub(super) qkv_bias: bool,
    /// The gate of the MLP is GELU by tanh.
    pub(super) is_gelu: bool,
    /// The head is the embedding, unless the config has another value.
    pub(super) is_tied: bool,
    /// RoPE may turn only a part of each head.
    pub(super) partial_rotary: bool,
    /// RoPE turns neighbours together.
    pub(super) is_interleaved: bool,
    /// RoPE may be scaled in one of the known ways.
    pub(super) has_rope_scaling: bool,
    /// Layers with a window have a RoPE of their own.
    pub(super) has_local_rope: bool,
    /// Base of the RoPE frequencies if the file has none.
    pub(super) rope_theta: f64,
}

const LLAMA: Family = Family {
    architecture: Architecture::Llama,
    class: "LlamaForCausalLM",
    required: &[],
    // The class has no windows, so these fields have no effect.
    optional: &["sliding_window", "use_sliding_window", "max_window_layers", "is_llama_config"],
    head_norms: false,
    post_norms: false,
    norm_offset: 0.0,
    scales_embedding: false,
    is_fused: false,
    has_sinks: false,
    qkv_bias: false,
    is_gelu: false,
    is_tied: false,
    partial_rotary: false,
    is_interleaved: false,
    has_rope_scaling: true,
    has_local_rope: false,
    rope_theta: 10_000.0,
};

const WINDOWS: &[&str] = &["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"];

const GEMMA2: Family = Family {
    architecture: Architecture::Gemma2,
    class: "Gemma2ForCausalLM",
    required: &[
        "head_dim",
        "query_pre_attn_scalar",
        "sliding_window",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    optional: &["layer_types", "hidden_activation", "sliding_window_size"],
    post_norms: true,
    norm_offset: 1.0,
    scales_embedding: true,
    is_gelu: true,
    is_tied: true,
    ..LLAMA
};

static FAMILIES: [Family; 10] = [
    LLAMA,
    Family { architecture: Architecture::Mistral, class: "MistralForCausalLM", optional: WINDOWS, ..LLAMA },
    Family {
        architecture: Architecture::Qwen2,
        class: "Qwen2ForCausalLM",
        optional: WINDOWS,
        qkv_bias: true,
        ..LLAMA
    },
    Family {
        architecture: Architecture::Qwen3,
        class: "Qwen3ForCausalLM",
        optional: WINDOWS,
        head_norms: true,
        ..LLAMA
    },
    Family {
        architecture: Architecture::Qwen3Moe,
        class: "Qwen3MoeForCausalLM",
        required: &["num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"],
        // Only `use_sliding_window` switches a window on, and that field is not read.
        optional: &[
            "num_experts",
            "num_local_experts",
            "sliding_window",
            "max_window_layers",
            "decoder_sparse_step",
            "mlp_only_layers",
        ],
        head_norms: true,
        ..LLAMA
    },
    Family {
        architecture: Architecture::Phi3,
        class: "Phi3ForCausalLM",
        // The original context has an effect only together with RoPE scaling.
        optional: &[
            "sliding_window",
            "original_max_position_embeddings",
            "full_attn_mod",
            "interpolate_factor",
        ],
        is_fused: true,
        partial_rotary: true,
        // Its own kind of scaling is not supported, and the model library treats other kinds as that one.
        has_rope_scaling: false,
        ..LLAMA
    },
    GEMMA2,
    Family {
        architecture: Architecture::Gemma3,
        class: "Gemma3ForCausalLM",
        required: &["head_dim", "query_pre_attn_scalar", "sliding_window"],
        optional: &[
            "layer_types",
            "hidden_activation",
            "sliding_window_pattern",
            "_sliding_window_pattern",
            "rope_local_base_freq",
            "norms_include_one",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ],
        head_norms: true,
        has_local_rope: true,
        rope_theta: 1_000_000.0,
        ..GEMMA2
    },
    Family {
        architecture: Architecture::GptOss,
        class: "GptOssForCausalLM",
        required: &["head_dim", "sliding_window", "layer_types", "num_local_experts", "num_experts_per_tok"],
        optional: &["swiglu_limit", "swiglu_alpha", "experts_per_token", "initial_context_length"],
        has_sinks: true,
        rope_theta: 150_000.0,
        ..LLAMA
    },
    Family {
        architecture: Architecture::DeepseekV2,
        class: "DeepseekV2ForCausalLM",
        required: &[
            "kv_lora_rank",
            "q_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "first_k_dense_replace",
            "n_routed_experts",
            "n_shared_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "routed_scaling_factor",
        ],
        is_interleaved: true,
        optional: &["qk_head_dim", "moe_layer_freq", "topk_method", "scoring_func", "n_group", "topk_group"],
        ..LLAMA
    },
];

impl Family {
    pub(super) const fn name(&self) -> &'static str {
        self.class
    }
}

impl Architecture {
    /// Every accepted architecture.
    pub const ALL: &'static [Self] = &[
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Phi3,
        Self::Gemma2,
        Self::Gemma3,
        Self::GptOss,
        Self::DeepseekV2,
    ];

    /// The name in `architectures` of `config.json`.
    pub fn name(self) -> &'static str {
        self.family().class
    }

    /// The features of the family.
    pub(crate) fn family(self) -> &'static Family {
        FAMILIES.iter().find(|family| family.architecture == self).unwrap_or(&FAMILIES[0])
    }

    pub(super) fn from_name(name: &str) -> Result<Self, ModelError> {
        FAMILIES.iter().find(|family| family.class == name).map(|family| family.architecture).ok_or_else(
            || {
                let accepted = FAMILIES.each_ref().map(|family| family.class).join(", ");
                ModelError::UnsupportedArchitecture { got: name.to_owned(), accepted }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_its_family() {
        let families: Vec<_> = FAMILIES.iter().map(|family| family.architecture).collect();
        assert_eq!(families, Architecture::ALL);
        assert!(
            Architecture::ALL.iter().all(|each| Architecture::from_name(each.name()).ok() == Some(*each))
        );
    }
}

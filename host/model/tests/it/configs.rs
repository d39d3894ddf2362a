//! Each `config.json` of a well-known model must be accepted and read correctly.

use serde_json::{Value, json};
use tqkv::cache::LayerKind;
use tqkv_model::layers::LayerFields;
use tqkv_model::{Activation, Config, RopeScaling};

/// Fields that the files of every family have.
fn common() -> Value {
    json!({ "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "initializer_range": 0.02, "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0", "use_cache": true, "rms_norm_eps": 1e-6 })
}

fn with(changes: Value) -> Value {
    let mut config = common();
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

/// Names of the models, and their configs.
fn known() -> Vec<(&'static str, Value)> {
    vec![
        (
            "Llama 3.1 8B",
            with(json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256, "max_position_embeddings": 131072, "mlp_bias": false, "pretraining_tp": 1,
            "rope_theta": 500000.0, "eos_token_id": [128001, 128008, 128009], "rope_scaling": { "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3" } })),
        ),
        (
            "SmolLM2 135M",
            with(json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
            "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "vocab_size": 49152, "max_position_embeddings": 8192, "is_llama_config": true, "mlp_bias": false,
            "pad_token_id": 2, "pretraining_tp": 1, "rope_interleaved": false, "rope_theta": 100000,
            "tie_word_embeddings": true, "transformers.js_config": { "kv_cache_dtype": { "q4f16": "float16" } } })),
        ),
        (
            "Mistral 7B v0.1",
            with(json!({ "architectures": ["MistralForCausalLM"], "model_type": "mistral",
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096,
            "rope_theta": 10000.0 })),
        ),
        (
            "Qwen2.5 0.5B",
            with(json!({ "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
            "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "vocab_size": 151936, "max_position_embeddings": 32768, "max_window_layers": 24, "sliding_window": 32768,
            "use_sliding_window": false, "use_mrope": false, "rope_theta": 1000000.0, "tie_word_embeddings": true })),
        ),
        (
            "Qwen2.5 7B with its long context",
            with(json!({ "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
            "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 131072, "max_window_layers": 28,
            "sliding_window": 131072, "use_sliding_window": false, "rope_theta": 1000000.0,
            "rope_scaling": { "factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn" } })),
        ),
        (
            "Qwen3 0.6B",
            with(json!({ "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
            "head_dim": 128, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960, "max_window_layers": 28,
            "sliding_window": null, "use_sliding_window": false, "rope_theta": 1000000, "tie_word_embeddings": true })),
        ),
        (
            "Qwen3 30B-A3B",
            with(json!({ "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "hidden_size": 2048, "head_dim": 128, "intermediate_size": 6144, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960,
            "max_window_layers": 48, "sliding_window": null, "use_sliding_window": false, "rope_theta": 1000000.0,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true,
            "num_experts": 128, "num_experts_per_tok": 8, "output_router_logits": false, "router_aux_loss_coef": 0.001 })),
        ),
        (
            "Phi-3 mini 4k",
            with(json!({ "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
            "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "vocab_size": 32064, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
            "sliding_window": 2047, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "pad_token_id": 32000, "rope_theta": 10000.0,
            "_name_or_path": "Phi-3-mini-4k-instruct",
            "auto_map": { "AutoConfig": "configuration_phi3.Phi3Config" } })),
        ),
        (
            "Gemma 2 2B",
            with(
                json!({ "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304,
            "head_dim": 256, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
            "num_key_value_heads": 4, "vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window": 4096,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid",
            "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
            "rope_theta": 10000.0, "tie_word_embeddings": null, "pad_token_id": 0 }),
            ),
        ),
        (
            "Gemma 3 1B",
            with(json!({ "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
            "hidden_size": 1152, "head_dim": 256, "intermediate_size": 6912, "num_hidden_layers": 26,
            "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144, "max_position_embeddings": 32768,
            "sliding_window": 512, "sliding_window_pattern": 6, "attn_logit_softcapping": null,
            "final_logit_softcapping": null, "cache_implementation": "hybrid", "hidden_act": null,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000,
            "rope_theta": 1000000, "tie_word_embeddings": null, "eos_token_id": [1, 106] })),
        ),
        (
            "gpt-oss 20B, widened",
            with(json!({ "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
            "attention_bias": true, "experts_per_token": 4, "hidden_size": 2880, "head_dim": 64, "intermediate_size": 2880,
            "initial_context_length": 4096, "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 8,
            "vocab_size": 201088, "max_position_embeddings": 131072, "layer_types": ["sliding_attention", "full_attention"],
            "num_experts_per_tok": 4, "num_local_experts": 32, "output_router_logits": false, "router_aux_loss_coef": 0.9,
            "sliding_window": 128, "swiglu_limit": 7.0, "rope_theta": 150000, "rope_scaling": { "beta_fast": 32.0,
            "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
            "truncate": false } })),
        ),
        (
            "DeepSeek-V2-Lite",
            with(json!({ "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
            "auto_map": { "AutoConfig": "configuration_deepseek.DeepseekV2Config" }, "aux_loss_alpha": 0.001,
            "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
            "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
            "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
            "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
            "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 10000,
            "rope_scaling": { "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn" }, "routed_scaling_factor": 1.0,
            "scoring_func": "softmax", "seq_aux": true, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
            "vocab_size": 102400 })),
        ),
    ]
}

/// The config of the first model of an architecture.
pub(crate) fn of(architecture: &str) -> Value {
    let is_of = |config: &Value| config["architectures"][0] == architecture;
    known().into_iter().map(|(_, config)| config).find(is_of).expect("a known model of each architecture")
}

fn read(name: &str) -> Config {
    let (_, config) = known().into_iter().find(|(known, _)| *known == name).unwrap();
    Config::from_json(config.to_string().as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn configs_of_well_known_models_are_accepted() {
    for (name, _) in known() {
        let config = read(name);
        let spec = config.cache_spec();
        assert_eq!(spec.shape, config.kv_shape(), "{name}");
        config.dense_cache().unwrap();
    }
}

/// The kind of each layer is looked up in lists, which may be as long as the file.
#[test]
fn long_lists_in_a_small_file_take_no_long_time() {
    let clock = std::time::Instant::now();
    let base = json!({ "num_attention_heads": 2, "hidden_size": 256, "sliding_window": 512 });
    for layers in [4096, 1 << 20] {
        for (name, value) in [
            ("sliding_window_pattern", json!("L".repeat(1 << 20))),
            ("attn_layer_indices", json!(vec![1 << 30; 1 << 17])),
        ] {
            let mut config = base.clone();
            (config["num_hidden_layers"], config[name]) = (json!(layers), value);
            let fields: LayerFields = serde_json::from_value(config).unwrap();
            assert_eq!(fields.kinds().ok().map(|kinds| kinds.len()), (layers == 4096).then_some(4096));
        }
    }
    assert!(clock.elapsed().as_secs() < 5, "{:?}", clock.elapsed());
}

#[test]
fn configs_are_read_as_what_they_say() {
    let qwen = read("Qwen2.5 7B with its long context");
    let RopeScaling::Yarn { factor, amplitude, original_context, is_truncated, .. } = qwen.rotary.scaling
    else {
        panic!("{:?}", qwen.rotary)
    };
    assert_eq!((factor, original_context, is_truncated), (4.0, 32768.0, true));
    assert!((amplitude - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);

    let phi = read("Phi-3 mini 4k");
    assert_eq!(phi.kinds, vec![LayerKind::Sliding(2047); 32]);

    let gemma = read("Gemma 2 2B");
    assert_eq!((gemma.soft_cap, gemma.final_soft_cap, gemma.scale), (Some(50.0), Some(30.0), None));
    assert_eq!(gemma.kinds[..2], [LayerKind::Sliding(4096), LayerKind::Full]);
    assert!(gemma.tie_word_embeddings && gemma.activation == Activation::GeluTanh);

    let gemma = read("Gemma 3 1B");
    let full: Vec<_> = (0..26).filter(|layer| gemma.kinds[*layer] == LayerKind::Full).collect();
    assert_eq!(full, [5, 11, 17, 23]);
    assert_eq!((gemma.rotary.theta, gemma.local_rotary.unwrap().theta), (1e6, 1e4));
    assert_eq!(gemma.eos_tokens, [1, 106]);

    let oss = read("gpt-oss 20B, widened");
    assert_eq!(oss.activation, Activation::Clamped { alpha: 1.702, limit: 7.0 });
    assert!(oss.refused_by_gpu().unwrap().contains("learned sinks"));

    let deepseek = read("DeepSeek-V2-Lite");
    let shape = deepseek.kv_shape();
    assert_eq!((shape.num_kv_heads, shape.head_dim, shape.value_dim), (1, 576, 512));
    let mscale = 0.1 * 0.707 * 40f64.ln() + 1.0;
    let scale = f64::from(deepseek.scale.unwrap());
    assert!((scale / (mscale * mscale / 192f64.sqrt()) - 1.0).abs() < 1e-6, "{scale}");
    let experts = deepseek.experts.unwrap();
    assert_eq!((experts.shared_size, experts.layers[..2].to_vec()), (2816, vec![false, true]));
}

//! Shapes of well-known models: the fields of their published `config.json` that a cache depends on.

/// Name and fields of each model.
pub(super) const KNOWN: [(&str, &str); 9] = [
    (
        "Llama 2 7B",
        r#"{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
            "max_position_embeddings": 4096}"#,
    ),
    (
        "Llama 3.1 8B",
        r#"{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
            "max_position_embeddings": 131072}"#,
    ),
    (
        "Llama 3.1 70B",
        r#"{"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
            "max_position_embeddings": 131072}"#,
    ),
    (
        "Qwen2.5 3B",
        r#"{"model_type": "qwen2", "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 2048,
            "max_position_embeddings": 32768}"#,
    ),
    (
        "Qwen2.5 14B",
        r#"{"model_type": "qwen2", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "hidden_size": 5120,
            "max_position_embeddings": 131072}"#,
    ),
    (
        "Qwen3 14B",
        r#"{"model_type": "qwen3", "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8,
            "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 40960}"#,
    ),
    (
        "Gemma 3 27B (sliding)",
        r#"{"model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
            "sliding_window": 1024, "sliding_window_pattern": 6, "max_position_embeddings": 131072}"#,
    ),
    (
        "Qwen3.5 27B (hybrid)",
        r#"{"model_type": "qwen3_5_text", "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
            "full_attention_interval": 4, "max_position_embeddings": 262144}"#,
    ),
    (
        "DeepSeek V3 (latent)",
        r#"{"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 163840}"#,
    ),
];

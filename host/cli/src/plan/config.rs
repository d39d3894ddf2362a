//! The shape of a cache from a Hugging Face `config.json`.

use serde::Deserialize;
use tqkv::cache::LayerKind;
use tqkv_model::layers::LayerFields;

use super::{CacheShape, PlanError, Windowed};

#[derive(Deserialize)]
struct Config {
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    /// Coordinates of a value, if different from a key.
    v_head_dim: Option<usize>,
    hidden_size: Option<usize>,
    max_position_embeddings: Option<u64>,
    /// Multi-head latent attention: the width of the latent vector, without its `qk_rope_head_dim` positional
    /// values.
    kv_lora_rank: Option<usize>,
    qk_rope_head_dim: Option<usize>,
    /// Number of last layers that use the keys and values of earlier layers.
    num_kv_shared_layers: Option<usize>,
    /// Multimodal models nest the language model's shape here.
    text_config: Option<Box<Config>>,
    #[serde(flatten)]
    layers: LayerFields,
}

impl CacheShape {
    /// Reads the shape from the text of a `config.json`.
    ///
    /// Defaults: `num_key_value_heads` is `num_attention_heads`, `head_dim` is `hidden_size /
    /// num_attention_heads`, and `v_head_dim` is `head_dim`. A `text_config` replaces the whole. With
    /// `kv_lora_rank`, a token is one latent vector per layer, of which `qk_rope_head_dim` coordinates stay
    /// f16. [`LayerFields::kinds`] reads the kind of each layer.
    ///
    /// # Errors
    /// [`PlanError::Json`], [`PlanError::Missing`], [`PlanError::Layers`].
    pub fn from_config(json: &str) -> Result<Self, PlanError> {
        let mut config: Config = serde_json::from_str(json)?;
        while let Some(text) = config.text_config.take() {
            config = *text;
        }
        let shape = match config.kv_lora_rank {
            Some(rank) => {
                let rank = used(Some(rank), "kv_lora_rank")?;
                Self::latent(0, rank, used(config.qk_rope_head_dim, "qk_rope_head_dim")?)
            }
            None => {
                let (num_kv_heads, head_dim) = config.vectors()?;
                let value_dim =
                    config.v_head_dim.map_or(Ok(head_dim), |dim| used(Some(dim), "v_head_dim"))?;
                Self { value_dim, ..Self::new(0, num_kv_heads, head_dim) }
            }
        };
        let (num_layers, windowed) = config.layers()?;
        Ok(Self { num_layers, windowed, context: config.max_position_embeddings, ..shape })
    }
}

fn used(value: Option<usize>, name: &'static str) -> Result<usize, PlanError> {
    value.filter(|&n| n > 0).ok_or(PlanError::Missing(name))
}

impl Config {
    /// Number of KV heads, and coordinates of a key.
    fn vectors(&self) -> Result<(usize, usize), PlanError> {
        let heads = used(self.num_attention_heads, "num_attention_heads");
        let kv_heads = match self.num_key_value_heads {
            None => heads,
            some => used(some, "num_key_value_heads"),
        };
        let head_dim = match self.head_dim {
            None => {
                let hidden = used(self.hidden_size, "head_dim or hidden_size")?;
                let heads = used(self.num_attention_heads, "head_dim or num_attention_heads")?;
                Some(hidden / heads).filter(|_| hidden % heads == 0)
            }
            some => some,
        };
        Ok((kv_heads?, used(head_dim, "head_dim")?))
    }

    /// Number of layers with a cache, and those with a window.
    fn layers(&self) -> Result<(usize, Option<Windowed>), PlanError> {
        let mut kinds = self.layers.kinds()?;
        let own = kinds.len().saturating_sub(self.num_kv_shared_layers.unwrap_or(0));
        kinds.truncate(own);
        kinds.retain(|&kind| kind != LayerKind::None);
        let layers = used(Some(kinds.len()), "layer with attention")?;
        let windows = kinds.iter().filter_map(|kind| match kind {
            LayerKind::Sliding(tokens) => Some(*tokens as u64),
            LayerKind::Full | LayerKind::None => None,
        });
        let tokens = windows.clone().max();
        Ok((layers, tokens.map(|tokens| Windowed { layers: windows.count(), tokens })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_fall_back_as_the_model_library_does() {
        let shape = |json| CacheShape::from_config(json).map(|s| (s.num_layers, s.num_kv_heads, s.head_dim));
        let nested =
            r#"{"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}}"#;
        assert_eq!(shape(nested).unwrap(), (2, 4, 64));
        let explicit =
            r#"{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 96}"#;
        assert_eq!(shape(explicit).unwrap(), (2, 1, 96));
        for (json, word) in [
            ("[]", "config.json"),
            ("{", "config.json"),
            ("{}", "hidden_size"),
            (r#"{"num_hidden_layers": -1}"#, "config.json"),
            (r#"{"head_dim": 64, "num_attention_heads": 4}"#, "num_hidden_layers"),
            (r#"{"head_dim": 64, "num_hidden_layers": 4}"#, "num_attention_heads"),
            (
                r#"{"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 256}"#,
                "num_attention_heads",
            ),
            (r#"{"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 256}"#, "head_dim"),
        ] {
            let error = shape(json).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }

    #[test]
    fn a_latent_is_one_vector_a_token() {
        let json = r#"{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
            "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 163840}"#;
        let shape = CacheShape::from_config(json).unwrap();
        let expected = CacheShape { context: Some(163_840), ..CacheShape::latent(61, 512, 64) };
        assert_eq!(shape, expected);
        let f16 = "f16".parse().unwrap();
        assert_eq!(shape.bytes_per_token(f16).unwrap(), 61 * 576 * 2);
        // 64 coordinates encode the position, and stay f16.
        assert_eq!(shape.bytes_per_token("s4".parse().unwrap()).unwrap(), 61 * (512 / 2 + 2 + 2 * 64));
    }

    #[test]
    fn values_and_keys_have_their_own_dims() {
        let json = r#"{"num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
            "v_head_dim": 128}"#;
        let shape = CacheShape::from_config(json).unwrap();
        assert_eq!(shape, CacheShape { value_dim: 128, ..CacheShape::new(48, 4, 192) });
        assert_eq!(shape.bytes_per_token("f16".parse().unwrap()).unwrap(), 48 * 4 * 2 * (192 + 128));
        // A latent vector holds key and value, independent of the dims that it expands to.
        let json = r#"{"num_hidden_layers": 8, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "head_dim": 72, "v_head_dim": 128, "linear_attn_config": {"full_attn_layers": [4, 8]}}"#;
        let shape = CacheShape::from_config(json).unwrap();
        assert_eq!(shape, CacheShape::latent(2, 512, 64));
    }

    #[test]
    fn windows_are_those_of_the_layers_that_have_them() {
        let windowed = |fields: &str| {
            let json = format!(
                r#"{{"num_hidden_layers": 12, "num_attention_heads": 2, "hidden_size": 256, {fields}}}"#
            );
            let shape = CacheShape::from_config(&json)?;
            Ok((shape.num_layers, shape.windowed.map(|w| (w.layers, w.tokens))))
        };
        for (fields, expected) in [
            (r#""sliding_window": null"#, (12, None)),
            (r#""sliding_window": 4096"#, (12, Some((12, 4096)))),
            (r#""sliding_window": 4096, "use_sliding_window": false"#, (12, None)),
            (
                r#""sliding_window": 512, "use_sliding_window": true, "max_window_layers": 9"#,
                (12, Some((3, 512))),
            ),
            (r#""sliding_window": 512, "model_type": "llama""#, (12, None)),
            (r#""sliding_window": 512, "model_type": "qwen2""#, (12, None)),
            (r#""sliding_window": 512, "architectures": ["Qwen2MoeForCausalLM"]"#, (12, None)),
            (r#""sliding_window": 512, "sliding_window_pattern": 6"#, (12, Some((10, 512)))),
            (r#""sliding_window": 512, "model_type": "gemma2""#, (12, Some((6, 512)))),
            (
                r#""sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "linear_attention"]"#,
                (2, Some((1, 8))),
            ),
        ] {
            let found: Result<_, PlanError> = windowed(fields);
            assert_eq!(found.unwrap(), expected, "{fields}");
        }
        for (fields, expected) in [
            (r#""sliding_window": 512, "_sliding_window_pattern": 4"#, (12, Some((9, 512)))),
            (
                r#""sliding_window": 512, "_sliding_window_pattern": 4, "sliding_window_pattern": 4"#,
                (12, Some((9, 512))),
            ),
            (r#""sliding_window": 512, "sliding_window_pattern": "LLLG""#, (12, Some((9, 512)))),
            (r#""sliding_window": 512, "sliding_window_pattern": "LLLLL""#, (12, Some((11, 512)))),
            (r#""layer_types": ["conv", "full_attention"], "sliding_window": 9"#, (1, None)),
            (r#""layers_block_type": ["mamba", "hybrid", "mamba", "attention"]"#, (2, None)),
            (
                r#""num_kv_shared_layers": 5, "sliding_window": 8, "sliding_window_pattern": 3"#,
                (7, Some((5, 8))),
            ),
            (
                r#""block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 2048"#,
                (4, Some((4, 2048))),
            ),
            (r#""hybrid_override_pattern": "M-M*-ME*M-M-""#, (2, None)),
            (r#""full_attention_interval": 4"#, (3, None)),
            (r#""attn_layer_period": 8, "attn_layer_offset": 4"#, (1, None)),
            (r#""attn_layer_indices": [1, 9, 40]"#, (2, None)),
            (r#""full_attn_idxs": [2, 5, 8, 10]"#, (4, None)),
            (r#""attn_type_list": [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1]"#, (4, None)),
            (r#""linear_attn_config": {"full_attn_layers": [4, 8, 12], "kda_layers": [1]}"#, (3, None)),
        ] {
            let found: Result<_, PlanError> = windowed(fields);
            assert_eq!(found.unwrap(), expected, "{fields}");
        }
        let none: Result<_, PlanError> = windowed(r#""attn_layer_indices": []"#);
        assert!(none.unwrap_err().to_string().contains("layer with attention"));
        let odd: Result<_, PlanError> = windowed(r#""hybrid_override_pattern": "M?""#);
        assert!(odd.unwrap_err().to_string().contains("'?'"));
        let found: Result<_, PlanError> = windowed(r#""layer_types": ["telepathy"]"#);
        let error = found.unwrap_err().to_string();
        assert!(error.contains("telepathy") && error.contains("sliding_attention"), "{error}");
    }
}

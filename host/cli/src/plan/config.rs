//! The shape of a cache from a Hugging Face `config.json`.

use serde::Deserialize;

use super::{CacheShape, PlanError, Windowed};

/// Kinds of layers in `layer_types`: those that keep every token, those with a window, those without keys.
pub(super) const LAYER_TYPES: [&str; 6] =
    ["full_attention", "attention", "sliding_attention", "chunked_attention", "linear_attention", "mamba"];

#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_size: Option<usize>,
    max_position_embeddings: Option<u64>,
    /// Multi-head latent attention: one vector of this many and `qk_rope_head_dim` values a token.
    kv_lora_rank: Option<usize>,
    qk_rope_head_dim: Option<usize>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    /// First layer with a window, where windows can be switched off.
    max_window_layers: Option<usize>,
    /// Every how many layers one sees all tokens.
    sliding_window_pattern: Option<usize>,
    attention_chunk_size: Option<u64>,
    layer_types: Option<Vec<String>>,
    /// Multimodal models keep the language model's shape one level down.
    text_config: Option<Box<Config>>,
}

impl CacheShape {
    /// Reads the shape from the text of a `config.json`.
    ///
    /// `num_key_value_heads` defaults to `num_attention_heads`, `head_dim` to `hidden_size / num_attention_heads`,
    /// and a `text_config` stands for the whole. With `kv_lora_rank` a token is one latent vector a layer.
    ///
    /// # Errors
    /// [`PlanError::Json`], [`PlanError::Missing`], [`PlanError::LayerType`].
    pub(crate) fn from_config(json: &str) -> Result<Self, PlanError> {
        let mut config: Config = serde_json::from_str(json)?;
        while let Some(text) = config.text_config.take() {
            config = *text;
        }
        let (num_kv_heads, head_dim) = config.vectors()?;
        let (num_layers, windowed) = config.layers()?;
        let latent = config.kv_lora_rank.is_some();
        Ok(Self {
            num_layers,
            num_kv_heads,
            head_dim,
            latent,
            windowed,
            context: config.max_position_embeddings,
        })
    }
}

fn used(value: Option<usize>, name: &'static str) -> Result<usize, PlanError> {
    value.filter(|&n| n > 0).ok_or(PlanError::Missing(name))
}

impl Config {
    /// Vectors of a token in a layer, and their coordinates.
    fn vectors(&self) -> Result<(usize, usize), PlanError> {
        if let Some(rank) = self.kv_lora_rank {
            return Ok((
                1,
                used(rank.checked_add(used(self.qk_rope_head_dim, "qk_rope_head_dim")?), "kv_lora_rank")?,
            ));
        }
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

    /// Layers with a cache, and those of them with a window.
    fn layers(&self) -> Result<(usize, Option<Windowed>), PlanError> {
        if let Some(types) = &self.layer_types {
            return self.typed_layers(types);
        }
        let layers = used(self.num_hidden_layers, "num_hidden_layers")?;
        let Some(tokens) = self.sliding_window.filter(|_| self.use_sliding_window.unwrap_or(true)) else {
            return Ok((layers, None));
        };
        let pattern = self.sliding_window_pattern.or(match self.model_type.as_deref() {
            Some("gemma2") => Some(2),
            Some("gemma3" | "gemma3_text") => Some(6),
            Some(_) | None => None,
        });
        let full = match (pattern, self.use_sliding_window) {
            (Some(pattern), _) => layers.checked_div(pattern).unwrap_or(0),
            (None, Some(true)) => self.max_window_layers.unwrap_or(0).min(layers),
            (None, _) => 0,
        };
        Ok((layers, Some(Windowed { layers: layers - full, tokens })))
    }

    fn typed_layers(&self, types: &[String]) -> Result<(usize, Option<Windowed>), PlanError> {
        let (mut layers, mut windowed) = (0, Windowed { layers: 0, tokens: 0 });
        for kind in types {
            let window = match kind.as_str() {
                "full_attention" | "attention" => None,
                "sliding_attention" => self.sliding_window,
                "chunked_attention" => self.attention_chunk_size,
                // A state of fixed size, no keys.
                "linear_attention" | "mamba" => continue,
                other => return Err(PlanError::LayerType(other.to_owned())),
            };
            layers += 1;
            if let Some(tokens) = window {
                windowed = Windowed { layers: windowed.layers + 1, tokens: windowed.tokens.max(tokens) };
            }
        }
        let layers = used(Some(layers), "layer_types with attention")?;
        Ok((layers, Some(windowed).filter(|windowed| windowed.layers > 0)))
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
        let expected = CacheShape { latent: true, context: Some(163_840), ..CacheShape::new(61, 1, 576) };
        assert_eq!(shape, expected);
        let f16 = "f16".parse().unwrap();
        assert_eq!(shape.bytes_per_token(f16).unwrap(), 61 * 576 * 2);
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
        let found: Result<_, PlanError> = windowed(r#""layer_types": ["telepathy"]"#);
        let error = found.unwrap_err().to_string();
        assert!(error.contains("telepathy") && error.contains("sliding_attention"), "{error}");
    }
}

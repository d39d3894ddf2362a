//! The shape of a cache from a Hugging Face `config.json`.

use serde::Deserialize;

use super::{CacheShape, PlanError, Windowed};

/// Names of kinds of layers: those that keep every token, those with a window, those with a state of fixed size or none at all.
pub(super) const LAYER_TYPES: [&str; 15] = [
    "full_attention",
    "attention",
    "hybrid",
    "sliding_attention",
    "sliding_window_attention",
    "local_attention",
    "chunked_attention",
    "linear_attention",
    "mamba",
    "mamba2",
    "recurrent",
    "conv",
    "gated_delta_net",
    "moe",
    "mlp",
];

/// What a layer keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Full,
    Window(u64),
    None,
}

#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    /// Coordinates of a value, where they are not those of a key.
    v_head_dim: Option<usize>,
    hidden_size: Option<usize>,
    max_position_embeddings: Option<u64>,
    /// Multi-head latent attention: one vector of this many and `qk_rope_head_dim` values a token.
    kv_lora_rank: Option<usize>,
    qk_rope_head_dim: Option<usize>,
    sliding_window: Option<u64>,
    /// The window of models that are recurrent between their attention layers.
    attention_window_size: Option<u64>,
    use_sliding_window: Option<bool>,
    /// First layer with a window, where windows can be switched off.
    max_window_layers: Option<usize>,
    /// Every how many layers one sees all tokens, or a period written in letters, L for those with a window.
    sliding_window_pattern: Option<Pattern>,
    /// The same, by the name that the model library writes; files may have both.
    #[serde(rename = "_sliding_window_pattern")]
    written_window_pattern: Option<Pattern>,
    attention_chunk_size: Option<u64>,
    /// A kind a layer; `block_types` is repeated.
    layer_types: Option<Vec<String>>,
    layers_block_type: Option<Vec<String>>,
    block_types: Option<Vec<String>>,
    /// Of hybrid models, one letter a layer: * is attention.
    hybrid_override_pattern: Option<String>,
    /// Every how many layers one has attention, the others being linear.
    full_attention_interval: Option<usize>,
    attn_layer_period: Option<usize>,
    attn_layer_offset: Option<usize>,
    /// The layers with attention, from 0.
    #[serde(alias = "full_attn_idxs")]
    attn_layer_indices: Option<Vec<usize>>,
    /// 1 a layer with attention, 0 one without.
    attn_type_list: Option<Vec<u8>>,
    linear_attn_config: Option<LinearConfig>,
    /// Last layers, which use the keys and values of earlier ones.
    num_kv_shared_layers: Option<usize>,
    /// Multimodal models keep the language model's shape one level down.
    text_config: Option<Box<Config>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Pattern {
    Every(usize),
    Letters(String),
}

#[derive(Deserialize)]
struct LinearConfig {
    /// The layers with attention, from 1.
    full_attn_layers: Option<Vec<usize>>,
}

/// More layers than any model has.
const MOST_LAYERS: usize = 1 << 20;

impl CacheShape {
    /// Reads the shape from the text of a `config.json`.
    ///
    /// `num_key_value_heads` defaults to `num_attention_heads`, `head_dim` to `hidden_size / num_attention_heads`,
    /// `v_head_dim` to that, and a `text_config` stands for the whole. With `kv_lora_rank` a token is one latent vector a
    /// layer. Layers are full, windowed or without keys as the first of these fields says that is there: a kind a layer, the
    /// places of attention layers, every how many there is one, a window for all or in a pattern.
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
        let value_dim = if latent { None } else { config.v_head_dim };
        Ok(Self {
            num_layers,
            num_kv_heads,
            head_dim,
            value_dim: value_dim.map_or(Ok(head_dim), |dim| used(Some(dim), "v_head_dim"))?,
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
        let mut kinds = self.kinds()?;
        let own = kinds.len().saturating_sub(self.num_kv_shared_layers.unwrap_or(0));
        kinds.truncate(own);
        kinds.retain(|&kind| kind != Kind::None);
        let layers = used(Some(kinds.len()), "layer with attention")?;
        let windows = kinds.iter().filter_map(|kind| match kind {
            Kind::Window(tokens) => Some(*tokens),
            Kind::Full | Kind::None => None,
        });
        let tokens = windows.clone().max();
        Ok((layers, tokens.map(|tokens| Windowed { layers: windows.count(), tokens })))
    }

    /// What each layer keeps.
    fn kinds(&self) -> Result<Vec<Kind>, PlanError> {
        if let Some(types) = self.layer_types.as_ref().or(self.layers_block_type.as_ref()) {
            // Some list more layers than there are.
            let layers = self.num_hidden_layers.unwrap_or(types.len());
            return types.iter().take(layers).map(|kind| self.kind(kind)).collect();
        }
        let layers = used(self.num_hidden_layers.filter(|&n| n <= MOST_LAYERS), "num_hidden_layers")?;
        if let Some(types) = self.block_types.as_ref().filter(|types| !types.is_empty()) {
            return types.iter().cycle().take(layers).map(|kind| self.kind(kind)).collect();
        }
        if let Some(letters) = &self.hybrid_override_pattern {
            let kind = |letter| match letter {
                '*' => Ok(Kind::Full),
                'M' | '-' | 'E' => Ok(Kind::None),
                other => Err(PlanError::LayerType(other.to_string())),
            };
            return letters.chars().take(layers).map(kind).collect();
        }
        let here = |attends: &dyn Fn(usize) -> bool| {
            (0..layers)
                .map(|layer| if attends(layer) { self.windowed(layer, layers) } else { Kind::None })
                .collect()
        };
        let zero_based = |period, offset| move |layer: usize| layer % period == offset % period;
        Ok(match self {
            Self { attn_layer_indices: Some(indices), .. } => here(&|layer| indices.contains(&layer)),
            Self { linear_attn_config: Some(LinearConfig { full_attn_layers: Some(places) }), .. } => {
                here(&|layer| places.contains(&(layer + 1)))
            }
            Self { attn_type_list: Some(flags), .. } => here(&|layer| flags.get(layer) == Some(&1)),
            Self { full_attention_interval: Some(every), .. } if *every > 0 => {
                here(&zero_based(*every, *every - 1))
            }
            Self { attn_layer_period: Some(every), .. } if *every > 0 => {
                here(&zero_based(*every, self.attn_layer_offset.unwrap_or(0)))
            }
            _ => here(&|_| true),
        })
    }

    /// What a layer of a named kind keeps.
    fn kind(&self, name: &str) -> Result<Kind, PlanError> {
        let window = |tokens: Option<u64>| tokens.map_or(Kind::Full, Kind::Window);
        Ok(match name {
            // Layers of both kinds have keys beside their state.
            "full_attention" | "hybrid" => Kind::Full,
            "attention" => window(self.attention_window_size),
            "sliding_attention" | "sliding_window_attention" | "local_attention" => {
                window(self.sliding_window.or(self.attention_window_size))
            }
            "chunked_attention" => window(self.attention_chunk_size),
            "linear_attention" | "mamba" | "mamba2" | "recurrent" | "conv" | "gated_delta_net" | "moe"
            | "mlp" => Kind::None,
            other => return Err(PlanError::LayerType(other.to_owned())),
        })
    }

    /// Whether an attention layer has a window, where no list says so.
    fn windowed(&self, layer: usize, layers: usize) -> Kind {
        let Some(tokens) = self.sliding_window.filter(|_| self.use_sliding_window.unwrap_or(true)) else {
            return Kind::Full;
        };
        let pattern = self.sliding_window_pattern.as_ref().or(self.written_window_pattern.as_ref());
        let every = match (pattern, self.model_type.as_deref()) {
            (Some(Pattern::Letters(letters)), _) => {
                let letters: Vec<_> = letters.chars().collect();
                // The last layer of a lettered pattern always sees all.
                let local = layer + 1 < layers && letters.get(layer % letters.len().max(1)) == Some(&'L');
                return if local { Kind::Window(tokens) } else { Kind::Full };
            }
            (Some(Pattern::Every(every)), _) => Some(*every),
            (None, Some("gemma2")) => Some(2),
            (None, Some("gemma3" | "gemma3_text")) => Some(6),
            (None, _) => None,
        };
        let full = match (every, self.use_sliding_window) {
            (Some(0), _) => false,
            (Some(every), _) => (layer + 1).is_multiple_of(every),
            (None, Some(true)) => layer < self.max_window_layers.unwrap_or(0),
            (None, _) => false,
        };
        if full { Kind::Full } else { Kind::Window(tokens) }
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
    fn values_and_keys_have_their_own_dims() {
        let json = r#"{"num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
            "v_head_dim": 128}"#;
        let shape = CacheShape::from_config(json).unwrap();
        assert_eq!(shape, CacheShape { value_dim: 128, ..CacheShape::new(48, 4, 192) });
        assert_eq!(shape.bytes_per_token("f16".parse().unwrap()).unwrap(), 48 * 4 * 2 * (192 + 128));
        // A latent holds both, whatever the dims that it is unfolded to.
        let json = r#"{"num_hidden_layers": 8, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "head_dim": 72, "v_head_dim": 128, "linear_attn_config": {"full_attn_layers": [4, 8]}}"#;
        let shape = CacheShape::from_config(json).unwrap();
        assert_eq!(shape, CacheShape { latent: true, ..CacheShape::new(2, 1, 576) });
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

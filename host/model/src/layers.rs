//! What the layers of a model keep, as a Hugging Face `config.json` says it.
//!
//! Of every family that says so in a known way, hybrids without attention in some layers included: more than
//! the runner computes ([`crate::Config`]), since a cache can be planned for models that are run elsewhere.

use serde::Deserialize;
use tqkv::cache::LayerKind;

use crate::error::ModelError;

/// Layers that keep every token.
const FULL: [&str; 2] = ["full_attention", "hybrid"];
/// Layers with a window, where the file has one.
const WINDOWED: [&str; 5] =
    ["attention", "sliding_attention", "sliding_window_attention", "local_attention", "chunked_attention"];
/// Layers with a state of fixed size, or no state at all.
const WITHOUT_KEYS: [&str; 8] =
    ["linear_attention", "mamba", "mamba2", "recurrent", "conv", "gated_delta_net", "moe", "mlp"];

/// Layers from which on Qwen's slide, where the file has windows switched on and does not say.
const DEFAULT_WINDOW_LAYERS: usize = 28;

/// More layers than any model has; few enough to look each up in whatever lists a file has.
const MOST_LAYERS: usize = 1 << 12;

/// The fields of a `config.json` that say what its layers keep.
#[derive(Debug, Deserialize)]
pub struct LayerFields {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    num_hidden_layers: Option<usize>,
    pub(crate) sliding_window: Option<usize>,
    /// The window of models that are recurrent between their attention layers.
    attention_window_size: Option<usize>,
    use_sliding_window: Option<bool>,
    /// First layer with a window, where windows can be switched on.
    max_window_layers: Option<usize>,
    /// Every how many layers one sees all tokens, or a period written in letters, L for those with a window.
    sliding_window_pattern: Option<Pattern>,
    /// The same, by the name that the model library writes; files may have both.
    #[serde(rename = "_sliding_window_pattern")]
    written_window_pattern: Option<Pattern>,
    attention_chunk_size: Option<usize>,
    /// A kind a layer; `block_types` is repeated.
    pub(crate) layer_types: Option<Vec<String>>,
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
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pattern {
    Every(usize),
    Letters(String),
}

#[derive(Debug, Deserialize)]
struct LinearConfig {
    /// The layers with attention, from 1.
    full_attn_layers: Option<Vec<usize>>,
}

fn unknown(kind: &str) -> ModelError {
    let accepted = [&FULL[..], &WINDOWED, &WITHOUT_KEYS].concat().join(", ");
    ModelError::Config(format!("layer type '{kind}' is not known, accepted are {accepted}"))
}

impl LayerFields {
    /// What each layer keeps, as the first of these fields says that is there: a kind a layer, the places of
    /// attention layers, every how many there is one, a window for all or in a pattern. Llama has no windows,
    /// and those of Qwen are off unless switched on; others have theirs on where one is named.
    ///
    /// # Errors
    /// [`ModelError::Config`] where the number of layers is missing, or a kind is not known.
    pub fn kinds(&self) -> Result<Vec<LayerKind>, ModelError> {
        if let Some(types) = self.layer_types.as_ref().or(self.layers_block_type.as_ref()) {
            // Some list more layers than there are.
            let layers = self.num_hidden_layers.unwrap_or(types.len());
            return types.iter().take(layers).map(|kind| self.kind(kind)).collect();
        }
        let layers = self.num_hidden_layers.filter(|n| (1..=MOST_LAYERS).contains(n));
        let layers = layers.ok_or_else(|| {
            ModelError::Config(format!("num_hidden_layers is missing or none from 1 to {MOST_LAYERS}"))
        })?;
        if let Some(types) = self.block_types.as_ref().filter(|types| !types.is_empty()) {
            return types.iter().cycle().take(layers).map(|kind| self.kind(kind)).collect();
        }
        if let Some(letters) = &self.hybrid_override_pattern {
            let kind = |letter| match letter {
                '*' => Ok(LayerKind::Full),
                'M' | '-' | 'E' => Ok(LayerKind::None),
                other => Err(unknown(&other.to_string())),
            };
            return letters.chars().take(layers).map(kind).collect();
        }
        let here = |attends: &dyn Fn(usize) -> bool| {
            (0..layers)
                .map(|layer| if attends(layer) { self.windowed(layer, layers) } else { LayerKind::None })
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
    fn kind(&self, name: &str) -> Result<LayerKind, ModelError> {
        let window = |tokens: Option<usize>| tokens.map_or(LayerKind::Full, LayerKind::Sliding);
        match name {
            "attention" => Ok(window(self.attention_window_size)),
            "chunked_attention" => Ok(window(self.attention_chunk_size)),
            _ if FULL.contains(&name) => Ok(LayerKind::Full),
            _ if WINDOWED.contains(&name) => Ok(window(self.sliding_window.or(self.attention_window_size))),
            _ if WITHOUT_KEYS.contains(&name) => Ok(LayerKind::None),
            other => Err(unknown(other)),
        }
    }

    /// The window, where it is in use.
    fn window(&self) -> Option<usize> {
        let is = |family: &dyn Fn(&str) -> bool| {
            self.model_type.iter().chain(self.architectures.iter().flatten()).any(|name| family(name))
        };
        let is_llama = is(&|name| ["llama", "LlamaForCausalLM"].contains(&name));
        let is_qwen = is(&|name| name.to_ascii_lowercase().starts_with("qwen"));
        self.sliding_window.filter(|_| !is_llama && self.use_sliding_window.unwrap_or(!is_qwen))
    }

    /// The name of the family, or of its class; empty where the file has neither.
    fn family(&self) -> &str {
        let class = || self.architectures.as_ref()?.first();
        self.model_type.as_ref().or_else(class).map_or("", String::as_str)
    }

    /// Whether an attention layer has a window, where no list says so.
    fn windowed(&self, layer: usize, layers: usize) -> LayerKind {
        let Some(tokens) = self.window() else { return LayerKind::Full };
        let pattern = self.sliding_window_pattern.as_ref().or(self.written_window_pattern.as_ref());
        let family = self.family();
        let every = match (pattern, family) {
            (Some(Pattern::Letters(letters)), _) => {
                let letters = letters.as_bytes();
                // The last layer of a lettered pattern always sees all.
                let local = layer + 1 < layers && letters.get(layer % letters.len().max(1)) == Some(&b'L');
                return if local { LayerKind::Sliding(tokens) } else { LayerKind::Full };
            }
            (Some(Pattern::Every(every)), _) => Some(*every),
            (None, "gemma2" | "Gemma2ForCausalLM") => Some(2),
            (None, "gemma3" | "gemma3_text" | "Gemma3ForCausalLM") => Some(6),
            (None, _) => None,
        };
        let full = match (every, self.use_sliding_window) {
            (Some(0), _) => false,
            (Some(every), _) => (layer + 1).is_multiple_of(every),
            (None, Some(true)) => layer < self.max_window_layers.unwrap_or(DEFAULT_WINDOW_LAYERS),
            (None, _) => false,
        };
        if full { LayerKind::Full } else { LayerKind::Sliding(tokens) }
    }
}

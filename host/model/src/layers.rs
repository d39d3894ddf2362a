//! The kind of each layer of a model, read from a Hugging Face `config.json`.
//!
//! This covers every family with known fields, hybrids without attention in some layers included. These are
//! more than the runner computes ([`crate::Config`]): a cache can be planned for models that run elsewhere.

use serde::Deserialize;
use tqkv::cache::LayerKind;

use crate::error::ModelError;

/// Kinds of layers that keep every token.
const FULL: [&str; 6] = [
    "full_attention",
    "hybrid",
    "indexed_attention",
    "deepseek_sparse_attention",
    "qwen_sparse_attention",
    "minimax_m3_sparse",
];
/// Kinds of layers with a window, if the file has a window.
const WINDOWED: [&str; 6] = [
    "attention",
    "sliding_attention",
    "hybrid_sliding",
    "sliding_window_attention",
    "local_attention",
    "chunked_attention",
];
/// Kinds of layers with a state of fixed size, or without a state.
const WITHOUT_KEYS: [&str; 8] =
    ["linear_attention", "mamba", "mamba2", "recurrent", "conv", "gated_delta_net", "moe", "mlp"];

/// The default of `max_window_layers` in Qwen, if windows are switched on.
const DEFAULT_WINDOW_LAYERS: usize = 28;

/// More layers than any model has. Few enough to look each one up in the lists of the file.
const MOST_LAYERS: usize = 1 << 12;

/// The fields of a `config.json` that determine the kinds of layers.
#[derive(Debug, Deserialize)]
pub struct LayerFields {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    num_hidden_layers: Option<usize>,
    pub(crate) sliding_window: Option<usize>,
    /// The window of models with recurrent layers between the attention layers.
    attention_window_size: Option<usize>,
    use_sliding_window: Option<bool>,
    /// First layer with a window, in families that can switch windows on.
    max_window_layers: Option<usize>,
    /// Every n-th layer sees all tokens, or a period in letters where L is a layer with a window.
    sliding_window_pattern: Option<Pattern>,
    /// The same field by the name that the model library writes. A file may have both.
    #[serde(rename = "_sliding_window_pattern")]
    written_window_pattern: Option<Pattern>,
    attention_chunk_size: Option<usize>,
    /// One kind per layer. `block_types` is repeated.
    pub(crate) layer_types: Option<Vec<String>>,
    layers_block_type: Option<Vec<String>>,
    block_types: Option<Vec<String>>,
    /// Hybrid models have one letter per layer: * is attention.
    hybrid_override_pattern: Option<String>,
    /// Every n-th layer has attention, the others are linear.
    full_attention_interval: Option<usize>,
    attn_layer_period: Option<usize>,
    attn_layer_offset: Option<usize>,
    /// Indices of the layers with attention, from 0.
    #[serde(alias = "full_attn_idxs")]
    attn_layer_indices: Option<Vec<usize>>,
    /// 1 for a layer with attention, 0 for a layer without.
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
    /// Indices of the layers with attention, from 1.
    full_attn_layers: Option<Vec<usize>>,
}

fn unknown(kind: &str) -> ModelError {
    let accepted = [&FULL[..], &WINDOWED, &WITHOUT_KEYS].concat().join(", ");
    ModelError::Config(format!("layer type '{kind}' is not known, expected {accepted}"))
}

impl LayerFields {
    /// The kind of each layer. The first of these fields that exists determines it:
    ///
    /// * a list of kinds
    /// * the positions of attention layers
    /// * their period
    /// * a window, for all layers or in a pattern
    ///
    /// Llama has no windows. Qwen's windows are off unless switched on. In other families a window is on if
    /// the file has one.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the number of layers is missing, or a kind is unknown.
    pub fn kinds(&self) -> Result<Vec<LayerKind>, ModelError> {
        self.kinds_or(None)
    }

    /// The kind of each layer, with the rule of the family where no field has it. A rule is a period of
    /// letters, then other letters for the first and the last layer. F is full, S has a window, C has chunks,
    /// and - keeps nothing.
    pub(crate) fn kinds_or(&self, family: Option<&[String; 3]>) -> Result<Vec<LayerKind>, ModelError> {
        if let Some(types) = self.layer_types.as_ref().or(self.layers_block_type.as_ref()) {
            // Some files list more kinds than there are layers.
            let layers = self.num_hidden_layers.unwrap_or(types.len());
            return types.iter().take(layers).map(|kind| self.kind(kind)).collect();
        }
        let layers = self.num_hidden_layers.filter(|n| (1..=MOST_LAYERS).contains(n));
        let layers = layers.ok_or_else(|| {
            ModelError::Config(format!("num_hidden_layers is missing or not 1 to {MOST_LAYERS}"))
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
                .map(
                    |layer| if attends(layer) { self.windowed(layer, layers, None) } else { LayerKind::None },
                )
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
            _ => (0..layers).map(|layer| self.windowed(layer, layers, family)).collect(),
        })
    }

    /// The kind of a layer with this name.
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

    /// True if a window is set and in use.
    pub(crate) fn has_window(&self) -> bool {
        self.window().is_some()
    }

    /// True if the file lists kinds of layers, or has a pattern of windows.
    pub(crate) fn names_layers(&self) -> bool {
        let lists = [&self.layer_types, &self.layers_block_type, &self.block_types];
        let patterns = [&self.sliding_window_pattern, &self.written_window_pattern];
        lists.iter().any(|list| list.is_some()) || patterns.iter().any(|pattern| pattern.is_some())
    }

    /// The window, if it is in use.
    fn window(&self) -> Option<usize> {
        let is = |family: &dyn Fn(&str) -> bool| {
            self.model_type.iter().chain(self.architectures.iter().flatten()).any(|name| family(name))
        };
        let is_llama = is(&|name| ["llama", "LlamaForCausalLM"].contains(&name));
        let is_qwen = is(&|name| name.to_ascii_lowercase().starts_with("qwen"));
        self.sliding_window.filter(|_| !is_llama && self.use_sliding_window.unwrap_or(!is_qwen))
    }

    /// The family name, or the class name. Empty if the file has neither.
    fn family(&self) -> &str {
        let class = || self.architectures.as_ref()?.first();
        self.model_type.as_ref().or_else(class).map_or("", String::as_str)
    }

    /// The kind of a layer by the rule of its family.
    fn by_rule(&self, layer: usize, layers: usize, [period, first, last]: &[String; 3]) -> LayerKind {
        let at = |text: &str, i: usize| text.as_bytes().get(i % text.len().max(1)).copied();
        let ends = [(layer == 0).then_some(first), (layer + 1 == layers).then_some(last)];
        let own = ends.into_iter().flatten().find_map(|end| at(end, 0));
        let window = |tokens: Option<usize>| tokens.map_or(LayerKind::Full, LayerKind::Sliding);
        match own.or_else(|| at(period, layer)) {
            Some(b'S') => window(self.window()),
            Some(b'C') => window(self.attention_chunk_size),
            Some(b'-') => LayerKind::None,
            Some(_) | None => LayerKind::Full,
        }
    }

    /// The kind of an attention layer, if no list gives it.
    fn windowed(&self, layer: usize, layers: usize, rule: Option<&[String; 3]>) -> LayerKind {
        let pattern = self.sliding_window_pattern.as_ref().or(self.written_window_pattern.as_ref());
        if let Some(rule) = rule.filter(|_| pattern.is_none() && self.use_sliding_window != Some(true)) {
            return self.by_rule(layer, layers, rule);
        }
        let Some(tokens) = self.window() else { return LayerKind::Full };
        let family = self.family();
        let every = match (pattern, family) {
            (Some(Pattern::Letters(letters)), _) => {
                let letters = letters.as_bytes();
                // The last layer of a lettered pattern always sees all tokens.
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

//! `config.json` of a Hugging Face checkpoint, reduced to what the forward pass reads.

use serde::Deserialize;

use crate::error::ModelError;
use crate::layers::LayerFields;
use tqkv::KvShape;
use tqkv::cache::{CacheSpec, LayerKind};
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;

/// The decoder families the runner computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, and what shares its tensors: TinyLlama, SmolLM, Yi and so on.
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: Llama with biases on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm on every query and key head before RoPE.
    Qwen3,
}

impl Architecture {
    /// Every accepted architecture.
    pub const ALL: &'static [Self] = &[Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The name in `architectures` of `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    fn from_name(name: &str) -> Result<Self, ModelError> {
        Self::ALL.iter().copied().find(|a| a.name() == name).ok_or_else(|| {
            let accepted: Vec<&str> = Self::ALL.iter().map(|a| a.name()).collect();
            ModelError::UnsupportedArchitecture { got: name.to_owned(), accepted: accepted.join(", ") }
        })
    }
}

/// How RoPE frequencies are stretched beyond the trained context.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by the factor (position interpolation).
    Linear {
        /// The divisor, above 0.
        factor: f64,
    },
    /// Every frequency divided by one of its own, `head_dim / 2` of them, above 0: what GGUF files have.
    Factors(Vec<f64>),
    /// Llama 3.1: long wavelengths divided, short ones kept, a linear blend between.
    Llama3 {
        /// The divisor of the long wavelengths, above 0.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of the pre-training.
        original_context: f64,
    },
}

/// Shapes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the SwiGLU.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values per head, even.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence: `max_position_embeddings`.
    pub context: usize,
    /// What the queries of each layer see; empty where all see every token of the longest sequence. A query at position p
    /// of a layer with a window of w tokens sees the positions p - w + 1 to p.
    pub kinds: Vec<LayerKind>,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Stretching of the RoPE frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Whether q, k, v must have a bias.
    pub qkv_bias: bool,
    /// Whether the attention output must have a bias.
    pub output_bias: bool,
    /// Tokens that end a text; may be empty.
    pub eos_tokens: Vec<u32>,
}

/// The file as written; fields of no interest are ignored.
#[derive(Deserialize)]
struct RawConfig {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    /// The newer spelling: theta and scaling in one object.
    rope_parameters: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    hidden_act: Option<String>,
    eos_token_id: Option<Eos>,
}

#[derive(Deserialize)]
struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    /// Written by [`crate::gguf`] alone.
    factors: Option<Vec<f64>>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Eos {
    One(u32),
    Many(Vec<u32>),
}

impl Eos {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

/// Widths beyond this are no real model; below it no product of two widths overflows 64 bits.
const MAX_WIDTH: usize = 1 << 24;

impl Config {
    /// Reads and checks the bytes of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::UnsupportedArchitecture`], or [`ModelError::Config`] for a missing or malformed field, an
    /// impossible shape, or a feature the runner does not compute.
    pub fn from_json(json: &[u8]) -> Result<Self, ModelError> {
        // The architecture first: a foreign config should be refused by its name, not by the first missing field.
        let architecture = read_architecture(json)?;
        let raw: RawConfig = serde_json::from_slice(json).map_err(|e| ModelError::Config(e.to_string()))?;
        let num_kv_heads = raw.num_key_value_heads.unwrap_or(raw.num_attention_heads);
        let head_dim = match raw.head_dim {
            Some(dim) => dim,
            None => raw.hidden_size.checked_div(raw.num_attention_heads).unwrap_or(0),
        };
        let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
        let mut config = Self {
            architecture,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_layers: raw.num_hidden_layers,
            num_heads: raw.num_attention_heads,
            num_kv_heads,
            head_dim,
            vocab_size: raw.vocab_size,
            context: raw.max_position_embeddings,
            kinds: Vec::new(),
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope_theta: rope.and_then(|r| r.rope_theta).or(raw.rope_theta).unwrap_or(10_000.0),
            rope_scaling: rope.map_or(Ok(RopeScaling::None), rope_scaling)?,
            tie_word_embeddings: raw.tie_word_embeddings,
            qkv_bias: raw.attention_bias || architecture == Architecture::Qwen2,
            output_bias: raw.attention_bias && architecture != Architecture::Qwen2,
            eos_tokens: raw.eos_token_id.map_or_else(Vec::new, Eos::into_vec),
        };
        config.check(raw.hidden_act.as_deref(), raw.partial_rotary_factor)?;
        if architecture != Architecture::Llama {
            config.kinds = config.read_kinds(json)?;
        }
        Ok(config)
    }

    /// Adds the end tokens of a `generation_config.json`, where chat models keep theirs.
    ///
    /// # Errors
    /// [`ModelError::Config`] where the file is not JSON.
    pub fn add_generation_config(&mut self, json: &[u8]) -> Result<(), ModelError> {
        #[derive(Deserialize)]
        struct Generation {
            eos_token_id: Option<Eos>,
        }
        let raw: Generation = serde_json::from_slice(json)
            .map_err(|e| ModelError::Config(format!("generation_config.json: {e}")))?;
        for token in raw.eos_token_id.map_or_else(Vec::new, Eos::into_vec) {
            if !self.eos_tokens.contains(&token) {
                self.eos_tokens.push(token);
            }
        }
        Ok(())
    }

    /// The shape of this model's KV cache.
    pub const fn kv_shape(&self) -> KvShape {
        KvShape::new(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)
    }

    /// A compressed cache of this model's shape, whose layers see what the model's see.
    ///
    /// Where some slide there are no sinks: a cache sees them beside its window, and such a model does not.
    pub fn cache_spec(&self) -> CacheSpec {
        let spec = CacheSpec::from(self.kv_shape());
        if self.kinds.is_empty() { spec } else { spec.kinds(self.kinds.clone()).sinks(0) }
    }

    /// An empty exact cache of this model's shape, whose layers see what the model's see.
    ///
    /// # Errors
    /// None for a config that [`Config::from_json`] accepted.
    pub fn dense_cache(&self) -> Result<DenseCache, CacheError> {
        let shape = self.kv_shape();
        if self.kinds.is_empty() {
            DenseCache::new(shape)
        } else {
            DenseCache::with_kinds(shape, self.kinds.clone())
        }
    }

    /// The kinds of the layers: full or sliding, no others.
    fn read_kinds(&self, json: &[u8]) -> Result<Vec<LayerKind>, ModelError> {
        let bad = |what: String| Err(ModelError::Config(what));
        let fields: LayerFields =
            serde_json::from_slice(json).map_err(|e| ModelError::Config(e.to_string()))?;
        let types = fields.layer_types.iter().flatten();
        if let Some(other) = types.clone().find(|t| !["full_attention", "sliding_attention"].contains(&&***t))
        {
            return bad(format!(
                "layer type '{other}' is not computed; accepted: full_attention, sliding_attention"
            ));
        }
        let mut kinds = fields.kinds()?;
        if kinds.len() != self.num_layers {
            return bad(format!("layer_types names {} layers of {}", kinds.len(), self.num_layers));
        }
        let slides = |kind: &LayerKind| matches!(kind, LayerKind::Sliding(_));
        if types.clone().any(|t| t == "sliding_attention") && !kinds.iter().any(slides) {
            return bad("layer_types names sliding layers; sliding_window is missing".to_owned());
        }
        for kind in &mut kinds {
            match *kind {
                LayerKind::Sliding(0) => return bad("sliding_window is 0".to_owned()),
                LayerKind::None => return bad("layers without attention are not computed".to_owned()),
                // Within the window, windowed and full attention are the same.
                LayerKind::Sliding(window) if window >= self.context => *kind = LayerKind::Full,
                LayerKind::Sliding(_) | LayerKind::Full => {}
            }
        }
        Ok(if kinds.iter().any(slides) { kinds } else { Vec::new() })
    }

    fn check(&self, hidden_act: Option<&str>, partial_rotary: Option<f64>) -> Result<(), ModelError> {
        let bad = |what: String| Err(ModelError::Config(what));
        for (name, value) in [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_layers),
            ("num_attention_heads", self.num_heads),
            ("num_key_value_heads", self.num_kv_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.context),
        ] {
            if value == 0 || value > MAX_WIDTH {
                return bad(format!("{name} is {value}; accepted: 1 to {MAX_WIDTH}"));
            }
        }
        if let Err(error) = self.kv_shape().check() {
            return bad(error.to_string());
        }
        if let RopeScaling::Factors(factors) = &self.rope_scaling
            && 2 * factors.len() != self.head_dim
        {
            return bad(format!(
                "{} factors of RoPE frequencies, expected {}",
                factors.len(),
                self.head_dim / 2
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad(format!("head_dim {} is odd; RoPE needs an even one", self.head_dim));
        }
        for (name, value) in [("rms_norm_eps", f64::from(self.rms_norm_eps)), ("rope_theta", self.rope_theta)]
        {
            if !(value.is_finite() && value > 0.0) {
                return bad(format!("{name} is {value}; it must be a positive number"));
            }
        }
        match hidden_act {
            None | Some("silu" | "swish") => {}
            Some(other) => {
                return bad(format!("hidden_act {other} is not supported; accepted: silu, swish"));
            }
        }
        match partial_rotary {
            None | Some(1.0) => Ok(()),
            Some(other) => bad(format!("partial_rotary_factor {other} is not supported; accepted: 1")),
        }
    }
}

fn read_architecture(json: &[u8]) -> Result<Architecture, ModelError> {
    #[derive(Deserialize)]
    struct Head {
        architectures: Option<Vec<String>>,
    }
    let head: Head = serde_json::from_slice(json).map_err(|e| ModelError::Config(e.to_string()))?;
    match head.architectures.as_deref() {
        Some([name, ..]) => Architecture::from_name(name),
        Some([]) | None => Architecture::from_name("(none named)"),
    }
}

fn rope_scaling(raw: &RawRope) -> Result<RopeScaling, ModelError> {
    let need = |name: &str, value: Option<f64>| match value {
        Some(v) if v.is_finite() && v > 0.0 => Ok(v),
        Some(v) => {
            Err(ModelError::Config(format!("rope_scaling: {name} is {v}; it must be a positive number")))
        }
        None => Err(ModelError::Config(format!("rope_scaling: {name} is missing"))),
    };
    match raw.rope_type.as_deref() {
        None | Some("default") => Ok(RopeScaling::None),
        Some("factors") => {
            let factors = raw.factors.iter().flatten().map(|&factor| need("a factor", Some(factor)));
            Ok(RopeScaling::Factors(factors.collect::<Result<_, _>>()?))
        }
        Some("linear") => Ok(RopeScaling::Linear { factor: need("factor", raw.factor)? }),
        Some("llama3") => {
            let low_freq_factor = need("low_freq_factor", raw.low_freq_factor)?;
            let high_freq_factor = need("high_freq_factor", raw.high_freq_factor)?;
            if high_freq_factor <= low_freq_factor {
                return Err(ModelError::Config(format!(
                    "rope_scaling: high_freq_factor {high_freq_factor} must be above low_freq_factor {low_freq_factor}"
                )));
            }
            Ok(RopeScaling::Llama3 {
                factor: need("factor", raw.factor)?,
                low_freq_factor,
                high_freq_factor,
                original_context: need(
                    "original_max_position_embeddings",
                    raw.original_max_position_embeddings,
                )?,
            })
        }
        Some(other) => Err(ModelError::Config(format!(
            "rope_scaling type {other} is not supported; accepted: default, linear, llama3"
        ))),
    }
}

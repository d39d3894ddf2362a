//! `config.json` of a Hugging Face checkpoint, reduced to the fields that the forward pass reads.

mod experts;
mod family;
mod fields;
mod latent;
mod number;
mod rotary;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::layers::LayerFields;
pub use experts::Experts;
pub use family::Architecture;
pub(crate) use family::Family;
use fields::{Eos, RawConfig};
pub(crate) use fields::{is_nothing, shown};
pub use latent::Latent;
use number::{MAX_WIDTH, positive};
pub use rotary::{RopeScaling, Rotary};
use tqkv::KvShape;
use tqkv::cache::{CacheSpec, LayerKind};
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;

/// Shapes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP, in layers without experts.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`. Has no effect on latent attention.
    pub num_kv_heads: usize,
    /// Coordinates of a query and of a key. For latent attention these are the ones before the key projection
    /// is applied.
    pub head_dim: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence: `max_position_embeddings`.
    pub context: usize,
    /// The kind of each layer. Empty if all layers see every token of the longest sequence. If a layer has a
    /// window of w tokens, its query at position p sees the positions p - w + 1 to p.
    pub kinds: Vec<LayerKind>,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Added to the weights of every RMSNorm.
    pub norm_offset: f32,
    /// RoPE of all layers, except those of [`Config::local_rotary`].
    pub rotary: Rotary,
    /// RoPE of the layers with a window, if they have their own.
    pub local_rotary: Option<Rotary>,
    /// Factor of the attention logits. `None` is 1/sqrt(head_dim).
    pub scale: Option<f32>,
    /// Attention logits l become cap * tanh(l / cap).
    pub soft_cap: Option<f32>,
    /// The same cap for the logits of the vocabulary.
    pub final_soft_cap: Option<f32>,
    /// A learned logit for each query head of each layer, `[num_layers, num_heads]`. It takes weight and adds
    /// no value. The logits are weights, so they are here only after the model is loaded, and only in
    /// families with sinks.
    pub sink_logits: Vec<f32>,
    /// How the MLP joins its gate and its other half.
    pub activation: Activation,
    /// Experts in the MLPs of some layers.
    pub experts: Option<Experts>,
    /// Attention over latent vectors.
    pub latent: Option<Latent>,
    /// The output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// q, k and v must have a bias.
    pub qkv_bias: bool,
    /// The attention output must have a bias.
    pub output_bias: bool,
    /// The projections of the MLP must have a bias.
    pub mlp_bias: bool,
    /// Tokens that end a text. May be empty.
    pub eos_tokens: Vec<u32>,
}

/// How an MLP joins its gate g and its other half u.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// silu(g) * u
    Silu,
    /// gelu(g) * u, GELU by its approximation with tanh.
    GeluTanh,
    /// g * sigmoid(alpha * g) * (u + 1), with g at most `limit` and u within it.
    Clamped {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Upper limit of g, and limit of |u|.
        limit: f32,
    },
}

impl Config {
    /// Reads and checks the bytes of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::UnsupportedArchitecture`], or [`ModelError::Config`] for a missing or malformed field,
    /// an impossible shape, or a feature that the runner does not compute.
    pub fn from_json(json: &[u8]) -> Result<Self, ModelError> {
        let malformed = |error: serde_json::Error| ModelError::Config(error.to_string());
        let fields: Map<String, Value> = serde_json::from_slice(json).map_err(malformed)?;
        // The architecture is checked first, so that an unknown config is refused by its name, not by a
        // missing field.
        let architecture = read_architecture(&fields)?;
        let family = architecture.family();
        fields::refuse_unread(&fields, family)?;
        let raw: RawConfig = serde_json::from_slice(json).map_err(malformed)?;
        let has_latent = architecture == Architecture::DeepseekV2;
        let latent = has_latent.then(|| Latent::read(&raw)).transpose()?;
        let head_dim = match (&latent, raw.head_dim) {
            (Some(latent), _) => latent.content_dim + latent.position_dim,
            (None, Some(dim)) => dim,
            (None, None) => raw.hidden_size.checked_div(raw.num_attention_heads).unwrap_or(0),
        };
        let rotated = latent.as_ref().map_or(head_dim, |latent| latent.position_dim);
        let (rotary, local_rotary) = rotary::read(&raw, family, rotated)?;
        let mut config = Self {
            architecture,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_layers: raw.num_hidden_layers,
            num_heads: raw.num_attention_heads,
            num_kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            head_dim,
            vocab_size: raw.vocab_size,
            context: raw.max_position_embeddings,
            kinds: Vec::new(),
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
            norm_offset: if raw.norms_include_one == Some(true) { 0.0 } else { family.norm_offset },
            rotary,
            local_rotary,
            scale: scale(&raw, latent.as_ref(), head_dim)?,
            soft_cap: cap("attn_logit_softcapping", raw.attn_logit_softcapping)?,
            final_soft_cap: cap("final_logit_softcapping", raw.final_logit_softcapping)?,
            sink_logits: Vec::new(),
            activation: activation(&raw, family)?,
            experts: Experts::read(&raw, architecture)?,
            latent,
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(family.is_tied),
            qkv_bias: raw.attention_bias || family.qkv_bias,
            output_bias: raw.attention_bias && !family.qkv_bias,
            mlp_bias: raw.mlp_bias,
            eos_tokens: raw.eos_token_id.map_or_else(Vec::new, Eos::into_vec),
        };
        config.check()?;
        if architecture != Architecture::Llama {
            config.kinds = config.read_kinds(json)?;
        }
        Ok(config)
    }

    /// Adds the end tokens of a `generation_config.json`. Chat models keep theirs there.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the file is not JSON.
    pub fn add_generation_config(&mut self, json: &[u8]) -> Result<(), ModelError> {
        #[derive(Deserialize)]
        struct GenerationFields {
            eos_token_id: Option<Eos>,
        }
        let raw: GenerationFields = serde_json::from_slice(json)
            .map_err(|e| ModelError::Config(format!("generation_config.json: {e}")))?;
        for token in raw.eos_token_id.map_or_else(Vec::new, Eos::into_vec) {
            if !self.eos_tokens.contains(&token) {
                self.eos_tokens.push(token);
            }
        }
        Ok(())
    }

    /// The shape of this model's KV cache. For latent attention, the latent vector with its positional part
    /// is the only key. The output of attention is then as wide as the latent vector alone.
    pub const fn kv_shape(&self) -> KvShape {
        match &self.latent {
            None => KvShape::new(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim),
            Some(latent) => {
                KvShape::new(self.num_layers, self.num_heads, 1, latent.rank + latent.position_dim)
                    .with_value_dim(latent.rank)
            }
        }
    }

    /// Numbers that a cache holds per token, in all layers.
    pub const fn cached_values(&self) -> usize {
        let shape = self.kv_shape();
        // A latent vector is both key and value.
        let values = if self.latent.is_some() { 0 } else { shape.value_dim };
        shape.num_layers * shape.num_kv_heads * (shape.head_dim + values)
    }

    /// A compressed cache of this model's shape. It computes the model's attention: kinds of layers, latent
    /// vectors, factor and soft cap of the logits, learned sinks.
    pub fn cache_spec(&self) -> CacheSpec {
        let mut spec = CacheSpec::from(self.kv_shape());
        spec.position_dim = self.latent.as_ref().map_or(0, |latent| latent.position_dim);
        (spec.scale, spec.soft_cap) = (self.scale, self.soft_cap);
        spec = spec.sink_logits(self.sink_logits.clone());
        if self.kinds.is_empty() { spec } else { spec.kinds(self.kinds.clone()) }
    }

    /// The feature of this model's attention that a cache on a GPU does not compute. `None` if it computes
    /// everything. Windows do not count: such a cache may be used for texts within the window.
    pub fn refused_by_gpu(&self) -> Option<String> {
        let what = if self.latent.is_some() {
            "latent attention"
        } else if self.family().has_sinks {
            "learned sinks"
        } else if self.soft_cap.is_some() {
            "a soft cap of its logits"
        } else if self.scale.is_some() {
            "a factor of its logits other than 1/sqrt(head_dim)"
        } else {
            return None;
        };
        Some(format!("attention of the model has {what}, which a cache on the GPU does not compute"))
    }

    /// An empty exact cache of this model's shape, which computes the model's attention.
    ///
    /// # Errors
    /// No error for a config that [`Config::from_json`] accepted.
    pub fn dense_cache(&self) -> Result<DenseCache, CacheError> {
        DenseCache::new(&self.cache_spec())
    }

    /// The features of the family that differ from Llama.
    pub(crate) fn family(&self) -> &'static Family {
        self.architecture.family()
    }

    /// True for layers with the RoPE of the layers with a window.
    pub(crate) fn is_local(&self, layer: usize) -> bool {
        self.local_rotary.is_some() && matches!(self.kinds.get(layer), Some(LayerKind::Sliding(_)))
    }

    /// The kinds of the layers. Only full and sliding are accepted.
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
        if self.family().required.contains(&"sliding_window") && fields.sliding_window.is_none() {
            return bad("sliding_window is missing".to_owned());
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
                // Windowed and full attention are the same within the window. A sliding layer with its own
                // RoPE must still stay a sliding one.
                LayerKind::Sliding(window) if window >= self.context && self.local_rotary.is_none() => {
                    *kind = LayerKind::Full;
                }
                LayerKind::Sliding(_) | LayerKind::Full => {}
            }
        }
        Ok(if kinds.iter().any(slides) { kinds } else { Vec::new() })
    }

    fn check(&self) -> Result<(), ModelError> {
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
        let eps = self.rms_norm_eps;
        if !(eps.is_finite() && eps > 0.0) {
            return bad(format!("rms_norm_eps is {eps}; it must be a positive number"));
        }
        Ok(())
    }
}

/// A soft cap. `None` if it is 0 or missing.
fn cap(name: &str, value: Option<f64>) -> Result<Option<f32>, ModelError> {
    value.filter(|cap| *cap != 0.0).map(|cap| positive(name, cap)).transpose()
}

/// The factor of the attention logits. `None` if it follows from the head dim.
fn scale(raw: &RawConfig, latent: Option<&Latent>, head_dim: usize) -> Result<Option<f32>, ModelError> {
    if latent.is_some() {
        let scale = rotary::logit_factor(raw)? / (head_dim as f64).sqrt();
        return positive("the factor of attention's logits", scale).map(Some);
    }
    let Some(scalar) = raw.query_pre_attn_scalar.filter(|scalar| *scalar != head_dim as f64) else {
        return Ok(None);
    };
    positive("query_pre_attn_scalar", scalar)?;
    Ok(Some((1.0 / scalar.sqrt()) as f32))
}

fn activation(raw: &RawConfig, family: &Family) -> Result<Activation, ModelError> {
    let (name, value) = match &raw.hidden_activation {
        Some(value) => ("hidden_activation", Some(value.as_str())),
        None => ("hidden_act", raw.hidden_act.as_deref()),
    };
    let accepted: &[&str] = if family.is_gelu { &["gelu_pytorch_tanh"] } else { &["silu", "swish"] };
    if let Some(other) = value.filter(|value| !accepted.contains(value)) {
        let accepted = accepted.join(", ");
        return Err(ModelError::Config(format!("{name} {other} is not supported; accepted: {accepted}")));
    }
    Ok(match family.architecture {
        Architecture::GptOss => Activation::Clamped {
            alpha: positive("swiglu_alpha", raw.swiglu_alpha.unwrap_or(1.702))?,
            limit: positive("swiglu_limit", raw.swiglu_limit.unwrap_or(7.0))?,
        },
        _ if family.is_gelu => Activation::GeluTanh,
        _ => Activation::Silu,
    })
}

fn read_architecture(fields: &Map<String, Value>) -> Result<Architecture, ModelError> {
    let first = fields.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
    Architecture::from_name(first.unwrap_or("(none named)"))
}

//! Reads the fields of a `config.json` about RoPE.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::family::Family;
use super::fields::{RawConfig, is_nothing, shown};
use crate::error::ModelError;

/// Rotary position embedding of the layers of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of coordinates at the start of each head that are turned. It is even, and the other coordinates
    /// stay.
    pub dim: usize,
    /// True if neighbours turn together, false if coordinates half of `dim` apart do.
    pub is_interleaved: bool,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
}

/// How RoPE frequencies are scaled beyond the trained context.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Every frequency is divided by the factor (position interpolation).
    Linear {
        /// The divisor, above 0.
        factor: f64,
    },
    /// Every frequency is divided by its own factor, above 0. There are half as many factors as rotated
    /// coordinates. GGUF files have this kind.
    Factors(Vec<f64>),
    /// Llama 3.1: long wavelengths are divided, short ones are kept, with a linear blend between.
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
    /// `YaRN`: coordinates that turn rarely in the original context are divided. Coordinates that turn often
    /// are kept, with a ramp between.
    Yarn {
        /// The divisor, above 0.
        factor: f64,
        /// Turns in the original context from which a frequency is kept.
        beta_fast: f64,
        /// Turns in the original context up to which a frequency is divided.
        beta_slow: f64,
        /// Context of the pre-training.
        original_context: f64,
        /// The ends of the ramp are rounded to whole coordinates.
        is_truncated: bool,
        /// Factor of rotated queries and of rotated keys.
        amplitude: f64,
    },
}

/// The fields of one RoPE object.
#[derive(Debug, Default, Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    r#type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    /// Only [`crate::gguf`] writes this field.
    factors: Option<Vec<f64>>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
}

const READ: [&str; 15] = [
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "factors",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
];
/// A note by the maker of the file.
const OF_NO_MATTER: &str = "finetuned";

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// Base of the frequencies in layers with a window, if they have their own RoPE and the file has no base.
const LOCAL_THETA: f64 = 10_000.0;

fn bad(what: String) -> ModelError {
    ModelError::Config(what)
}

/// The RoPE of all layers. In families with local RoPE the second one is for layers with a window, and the
/// first for the others. `head_dim` is the number of coordinates that RoPE may turn.
pub(super) fn read(
    raw: &RawConfig,
    family: &Family,
    head_dim: usize,
) -> Result<(Rotary, Option<Rotary>), ModelError> {
    let nested =
        |name: &str| -> Option<&Map<String, Value>> { raw.rope_parameters.as_ref()?.get(name)?.as_object() };
    let one = |fields: Option<&Map<String, Value>>, theta: f64| {
        RawRope::read(fields)?.rotary(raw, family, head_dim, theta)
    };
    let theta = raw.rope_theta.unwrap_or(family.rope_theta);
    if !family.has_local_rope {
        let fields = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
        return Ok((one(fields, theta)?, None));
    }
    let local_theta = raw.rope_local_base_freq.unwrap_or(LOCAL_THETA);
    if raw.rope_parameters.is_none() {
        return Ok((one(raw.rope_scaling.as_ref(), theta)?, Some(one(None, local_theta)?)));
    }
    let (Some(full), Some(sliding)) = (nested(FULL), nested(SLIDING)) else {
        return Err(bad(format!("rope_parameters lacks {FULL} or {SLIDING}; {} needs both", family.name())));
    };
    Ok((one(Some(full), theta)?, Some(one(Some(sliding), local_theta)?)))
}

/// The factor of the logits that follows from `mscale_all_dim`. Only latent attention uses it.
pub(super) fn logit_factor(raw: &RawConfig) -> Result<f64, ModelError> {
    let rope = RawRope::read(raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref()))?;
    let factor = rope.kind().filter(|kind| *kind != "default").and(rope.factor).unwrap_or(1.0);
    Ok(match rope.mscale_all_dim {
        Some(scale) if scale != 0.0 => magnitude(factor, scale).powi(2),
        Some(_) | None => 1.0,
    })
}

/// The factor by which queries and keys get longer if the context is `factor` times as long.
fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

impl RawRope {
    fn read(fields: Option<&Map<String, Value>>) -> Result<Self, ModelError> {
        let Some(fields) = fields else { return Ok(Self::default()) };
        let is_known = |name: &str| READ.contains(&name) || name == OF_NO_MATTER;
        if let Some((name, value)) = fields.iter().find(|(name, value)| !is_known(name) && !is_nothing(value))
        {
            // An unsupported kind is refused by its name, not by its first unknown field.
            let kind = fields.get("rope_type").or(fields.get("type")).and_then(Value::as_str);
            if kind.is_none_or(|kind| ACCEPTED.contains(&kind)) {
                return Err(bad(format!("rope_scaling: {name} is {}, which is not computed", shown(value))));
            }
        }
        Self::deserialize(fields).map_err(|error| bad(format!("rope_scaling: {error}")))
    }

    fn kind(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.r#type.as_deref())
    }

    fn rotary(
        &self,
        raw: &RawConfig,
        family: &Family,
        head_dim: usize,
        theta: f64,
    ) -> Result<Rotary, ModelError> {
        let theta = self.rope_theta.unwrap_or(theta);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(bad(format!("rope_theta is {theta}; it must be a positive number")));
        }
        let part = self.partial_rotary_factor.or(raw.partial_rotary_factor).unwrap_or(1.0);
        let accepted = if family.partial_rotary { part > 0.0 && part <= 1.0 } else { part == 1.0 };
        if !accepted {
            let range = if family.partial_rotary { "above 0, up to 1" } else { "1" };
            return Err(bad(format!("partial_rotary_factor {part} is not supported; accepted: {range}")));
        }
        let dim = (head_dim as f64 * part) as usize;
        if dim == 0 || !dim.is_multiple_of(2) {
            let of = if part == 1.0 { "head_dim" } else { "rotated part of head_dim" };
            return Err(bad(format!("{of} {dim} is odd or 0; RoPE needs an even one")));
        }
        let scaling = self.scaling(raw.max_position_embeddings, family)?;
        if let RopeScaling::Factors(factors) = &scaling
            && 2 * factors.len() != dim
        {
            return Err(bad(format!("{} factors of RoPE frequencies, expected {}", factors.len(), dim / 2)));
        }
        Ok(Rotary { theta, dim, is_interleaved: family.is_interleaved, scaling })
    }

    fn scaling(&self, context: usize, family: &Family) -> Result<RopeScaling, ModelError> {
        let kind = match self.kind() {
            Some("default") => return Ok(RopeScaling::None),
            None if self.factor.is_none() && self.factors.is_none() => return Ok(RopeScaling::None),
            None => {
                return Err(bad(format!(
                    "rope_scaling: rope_type is missing; accepted: {}",
                    ACCEPTED.join(", ")
                )));
            }
            Some(kind) => kind,
        };
        if !family.has_rope_scaling {
            let class = family.name();
            return Err(bad(format!(
                "rope_scaling type {kind} is not supported for {class}; accepted: default"
            )));
        }
        match kind {
            "factors" => {
                let factors = self.factors.iter().flatten().map(|&factor| need("a factor", Some(factor)));
                Ok(RopeScaling::Factors(factors.collect::<Result<_, _>>()?))
            }
            "linear" => Ok(RopeScaling::Linear { factor: need("factor", self.factor)? }),
            "llama3" => self.llama3(),
            "yarn" => self.yarn(context),
            other => Err(bad(format!(
                "rope_scaling type {other} is not supported; accepted: {}",
                ACCEPTED.join(", ")
            ))),
        }
    }

    fn llama3(&self) -> Result<RopeScaling, ModelError> {
        let low_freq_factor = need("low_freq_factor", self.low_freq_factor)?;
        let high_freq_factor = need("high_freq_factor", self.high_freq_factor)?;
        if high_freq_factor <= low_freq_factor {
            return Err(bad(format!(
                "rope_scaling: high_freq_factor {high_freq_factor} must be above low_freq_factor {low_freq_factor}"
            )));
        }
        let original = self.original_max_position_embeddings;
        Ok(RopeScaling::Llama3 {
            factor: need("factor", self.factor)?,
            low_freq_factor,
            high_freq_factor,
            original_context: need("original_max_position_embeddings", original)?,
        })
    }

    fn yarn(&self, context: usize) -> Result<RopeScaling, ModelError> {
        let factor = need("factor", self.factor)?;
        let scales = (self.mscale.filter(|x| *x != 0.0), self.mscale_all_dim.filter(|x| *x != 0.0));
        let amplitude = match (self.attention_factor, scales) {
            (Some(factor), _) => factor,
            (None, (Some(scale), Some(all))) => magnitude(factor, scale) / magnitude(factor, all),
            (None, _) => magnitude(factor, 1.0),
        };
        let original = self.original_max_position_embeddings.unwrap_or(context as f64);
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: need("beta_fast", Some(self.beta_fast.unwrap_or(32.0)))?,
            beta_slow: need("beta_slow", Some(self.beta_slow.unwrap_or(1.0)))?,
            original_context: need("original_max_position_embeddings", Some(original))?,
            is_truncated: self.truncate.unwrap_or(true),
            amplitude: need("attention_factor", Some(amplitude))?,
        })
    }
}

/// Kinds of scaling that are accepted.
const ACCEPTED: [&str; 4] = ["default", "linear", "llama3", "yarn"];

fn need(name: &str, value: Option<f64>) -> Result<f64, ModelError> {
    match value {
        Some(v) if v.is_finite() && v > 0.0 => Ok(v),
        Some(v) => Err(bad(format!("rope_scaling: {name} is {v}; it must be a positive number"))),
        None => Err(bad(format!("rope_scaling: {name} is missing"))),
    }
}

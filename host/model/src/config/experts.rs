//! Reads the fields of a `config.json` about experts.

use super::family::Architecture;
use super::fields::RawConfig;
use super::number::{MAX_WIDTH, count, positive};
use crate::error::ModelError;

/// MLPs of a layer, some of which take part in each token.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// True for layers with experts. The other layers have one MLP.
    pub layers: Vec<bool>,
    /// Experts per layer.
    pub count: usize,
    /// Experts per token: those with the largest weights.
    pub per_token: usize,
    /// Width of each expert.
    pub intermediate_size: usize,
    /// Width of the experts that take part in every token, joined to one. 0 if there are none.
    pub shared_size: usize,
    /// The weights of a token's experts are scaled so that they add up to 1.
    pub is_normalised: bool,
    /// Factor of the weights after that.
    pub scaling: f32,
    /// True if router and experts have biases.
    pub has_bias: bool,
}

impl Experts {
    pub(super) fn read(raw: &RawConfig, architecture: Architecture) -> Result<Option<Self>, ModelError> {
        let layers = count("num_hidden_layers", Some(raw.num_hidden_layers))?;
        let experts = match architecture {
            Architecture::Qwen3Moe => {
                let step = count("decoder_sparse_step", Some(raw.decoder_sparse_step.unwrap_or(1)))?;
                let dense = raw.mlp_only_layers.as_deref().unwrap_or_default();
                Self {
                    layers: (0..layers)
                        .map(|l| (l + 1).is_multiple_of(step) && !dense.contains(&l))
                        .collect(),
                    count: count("num_experts", raw.num_experts.or(raw.num_local_experts))?,
                    is_normalised: raw.norm_topk_prob == Some(true),
                    ..Self::plain(raw, count("moe_intermediate_size", raw.moe_intermediate_size)?)?
                }
            }
            Architecture::GptOss => Self {
                layers: vec![true; layers],
                count: count("num_local_experts", raw.num_local_experts)?,
                // A softmax over the token's experts equals the softmax over all, scaled to add up to 1.
                is_normalised: true,
                has_bias: true,
                ..Self::plain(raw, raw.intermediate_size)?
            },
            Architecture::DeepseekV2 => {
                check_routing(raw)?;
                let width = count("moe_intermediate_size", raw.moe_intermediate_size)?;
                let shared = raw.n_shared_experts.unwrap_or(0).saturating_mul(width);
                if shared > MAX_WIDTH {
                    return Err(ModelError::Config(format!(
                        "n_shared_experts is {shared} wide; accepted: {MAX_WIDTH}"
                    )));
                }
                Self {
                    layers: (0..layers).map(|l| l >= raw.first_k_dense_replace.unwrap_or(0)).collect(),
                    count: count("n_routed_experts", raw.n_routed_experts)?,
                    shared_size: shared,
                    scaling: positive("routed_scaling_factor", raw.routed_scaling_factor.unwrap_or(1.0))?,
                    ..Self::plain(raw, width)?
                }
            }
            _ => return Ok(None),
        };
        if experts.per_token > experts.count {
            let Self { count, per_token, .. } = experts;
            return Err(ModelError::Config(format!("num_experts_per_tok is {per_token} of {count} experts")));
        }
        Ok(Some(experts))
    }

    fn plain(raw: &RawConfig, intermediate_size: usize) -> Result<Self, ModelError> {
        Ok(Self {
            layers: Vec::new(),
            count: 0,
            per_token: count("num_experts_per_tok", raw.num_experts_per_tok)?,
            intermediate_size,
            shared_size: 0,
            is_normalised: false,
            scaling: 1.0,
            has_bias: false,
        })
    }
}

/// Refuses DeepSeek routing other than the largest weights of a softmax.
fn check_routing(raw: &RawConfig) -> Result<(), ModelError> {
    let refused = |name: &str, got: &str, accepted: &str| {
        Err(ModelError::Config(format!("{name} {got} is not supported; accepted: {accepted}")))
    };
    match (raw.topk_method.as_deref(), raw.scoring_func.as_deref(), raw.moe_layer_freq) {
        (Some(other), ..) if other != "greedy" => refused("topk_method", other, "greedy"),
        (_, Some(other), _) if other != "softmax" => refused("scoring_func", other, "softmax"),
        (.., Some(every)) if every != 1 => refused("moe_layer_freq", &every.to_string(), "1"),
        _ => Ok(()),
    }
}

//! Mixture of experts: a router chooses for each token the MLPs of a layer with the largest weights.

use crate::checkpoint::Checkpoint;
use crate::config::{self, Architecture, Config};
use crate::error::ModelError;
use crate::gated::Gated;
use crate::linear::Linear;

/// The experts of a layer.
#[derive(Debug)]
pub(crate) struct ExpertWeights {
    router: Linear,
    experts: Vec<Gated>,
    /// The expert that takes part in every token.
    shared: Option<Gated>,
    per_token: usize,
    is_normalised: bool,
    scaling: f32,
}

impl ExpertWeights {
    pub(crate) fn read(
        tensors: &Checkpoint,
        c: &Config,
        fields: &config::Experts,
        name: &str,
    ) -> Result<Self, ModelError> {
        let width = fields.intermediate_size;
        let (router, experts) = if c.architecture == Architecture::GptOss {
            let router = tensors.linear(&format!("{name}.router"), fields.count, c.hidden_size, true)?;
            (router, read_joined(tensors, c, fields, name)?)
        } else {
            let router = tensors.linear(&format!("{name}.gate"), fields.count, c.hidden_size, false)?;
            let expert = |i| Gated::read(tensors, c, &format!("{name}.experts.{i}"), width);
            (router, (0..fields.count).map(expert).collect::<Result<_, _>>()?)
        };
        let shared = (fields.shared_size > 0)
            .then(|| Gated::read(tensors, c, &format!("{name}.shared_experts"), fields.shared_size))
            .transpose()?;
        let config::Experts { per_token, is_normalised, scaling, .. } = *fields;
        Ok(Self { router, experts, shared, per_token, is_normalised, scaling })
    }

    /// Adds the result for `x`, `[n, hidden_size]`, to `y`.
    pub(crate) fn forward_add(&self, x: &[f32], y: &mut [f32]) {
        let count = self.experts.len();
        let weights = self.router.forward(x);
        let hidden = x.len() * count / weights.len();
        // The tokens of each expert, with the weight of the expert.
        let mut taken: Vec<Vec<(usize, f32)>> = vec![Vec::new(); count];
        for (token, logits) in weights.chunks_exact(count).enumerate() {
            for (expert, weight) in self.choose(logits) {
                taken[expert].push((token, weight));
            }
        }
        for (expert, tokens) in self.experts.iter().zip(&taken).filter(|(_, tokens)| !tokens.is_empty()) {
            let rows: Vec<f32> =
                tokens.iter().flat_map(|(token, _)| &x[token * hidden..][..hidden]).copied().collect();
            let mut results = vec![0.0; rows.len()];
            expert.forward_add(&rows, &mut results);
            for ((token, weight), result) in tokens.iter().zip(results.chunks_exact(hidden)) {
                let row = &mut y[token * hidden..][..hidden];
                row.iter_mut().zip(result).for_each(|(y, r)| *y += weight * r);
            }
        }
        if let Some(shared) = &self.shared {
            shared.forward_add(x, y);
        }
    }

    /// The experts of a token and their weights: the largest of the softmax over all experts.
    fn choose(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights: Vec<(usize, f32)> =
            logits.iter().map(|logit| (logit - max).exp()).enumerate().collect();
        let all: f32 = weights.iter().map(|(_, weight)| weight).sum();
        weights.sort_by(|a, b| b.1.total_cmp(&a.1));
        weights.truncate(self.per_token);
        let sum = if self.is_normalised { weights.iter().map(|(_, weight)| weight).sum() } else { all };
        weights.iter_mut().for_each(|(_, weight)| *weight *= self.scaling / sum);
        weights
    }
}

/// Reads the experts of gpt-oss. Each tensor holds all experts, `[inputs, outputs]`, with alternating gate
/// and up columns.
fn read_joined(
    tensors: &Checkpoint,
    c: &Config,
    fields: &config::Experts,
    name: &str,
) -> Result<Vec<Gated>, ModelError> {
    let (count, hidden, width) = (fields.count, c.hidden_size, fields.intermediate_size);
    let tensor = |part: &str, shape: &[usize]| tensors.required(&format!("{name}.experts.{part}"), shape);
    let gate_up = tensor("gate_up_proj", &[count, hidden, 2 * width])?;
    let gate_up_bias = tensor("gate_up_proj_bias", &[count, 2 * width])?.to_f32();
    let down = tensor("down_proj", &[count, width, hidden])?;
    let down_bias = tensor("down_proj_bias", &[count, hidden])?.to_f32();
    let biases = gate_up_bias.chunks_exact(2 * width).zip(down_bias.chunks_exact(hidden));
    let experts = biases.enumerate().map(|(expert, (gate_up_bias, down_bias))| {
        let half = |first: usize| {
            let bias = gate_up_bias.iter().skip(first).step_by(2).copied().collect();
            Linear::new(gate_up.matrix(expert).columns(first, 2), Some(bias))
        };
        Gated {
            gate: half(0),
            up: half(1),
            down: Linear::new(down.matrix(expert).columns(0, 1), Some(down_bias.to_vec())),
            activation: c.activation,
        }
    });
    Ok(experts.collect())
}

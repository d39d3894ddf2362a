//! A gated pair of projections, and one back.

use crate::checkpoint::Checkpoint;
use crate::config::{Activation, Config};
use crate::error::ModelError;
use crate::linear::Linear;

/// down(act(gate(x), up(x)))
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
}

impl Gated {
    pub(crate) fn read(
        tensors: &Checkpoint,
        c: &Config,
        name: &str,
        width: usize,
    ) -> Result<Self, ModelError> {
        let hidden = c.hidden_size;
        let linear = |part: &str, outputs: usize, inputs: usize| {
            tensors.linear(&format!("{name}.{part}"), outputs, inputs, c.mlp_bias)
        };
        let [gate, up] = if c.family().is_fused {
            tensors.fused(&format!("{name}.gate_up_proj"), [width; 2], hidden)?
        } else {
            [linear("gate_proj", width, hidden)?, linear("up_proj", width, hidden)?]
        };
        Ok(Self { gate, up, down: linear("down_proj", hidden, width)?, activation: c.activation })
    }

    pub(crate) fn forward_add(&self, x: &[f32], y: &mut [f32]) {
        let (mut gate, up) = (self.gate.forward(x), self.up.forward(x));
        let pairs = gate.iter_mut().zip(&up);
        match self.activation {
            Activation::Silu => pairs.for_each(|(g, u)| *g = *g / (1.0 + (-*g).exp()) * u),
            Activation::GeluTanh => pairs.for_each(|(g, u)| *g = gelu_tanh(*g) * u),
            Activation::Clamped { alpha, limit } => pairs.for_each(|(g, u)| {
                let (gate, up) = (g.min(limit), u.clamp(-limit, limit));
                *g = gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0);
            }),
        }
        self.down.forward_add(&gate, y);
    }
}

/// GELU by its usual approximation.
fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
}

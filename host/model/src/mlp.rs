//! The MLP of a layer: a gated pair of projections, or experts, each of which is such a pair.

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::ModelError;
use crate::experts::ExpertWeights;
use crate::gated::Gated;

/// The MLP after the attention of a layer.
#[derive(Debug)]
pub(crate) enum Mlp {
    Gated(Box<Gated>),
    Experts(Box<ExpertWeights>),
}

impl Mlp {
    /// Reads the weights of an MLP. `name` is its prefix in the checkpoint.
    pub(crate) fn read(
        tensors: &Checkpoint,
        c: &Config,
        layer: usize,
        name: &str,
    ) -> Result<Self, ModelError> {
        match &c.experts {
            Some(experts) if experts.layers.get(layer) == Some(&true) => {
                ExpertWeights::read(tensors, c, experts, name).map(|experts| Self::Experts(Box::new(experts)))
            }
            _ => Gated::read(tensors, c, name, c.intermediate_size).map(|gated| Self::Gated(Box::new(gated))),
        }
    }

    /// Adds the result for `x`, `[n, hidden_size]`, to `y`.
    pub(crate) fn forward_add(&self, x: &[f32], y: &mut [f32]) {
        match self {
            Self::Gated(gated) => gated.forward_add(x, y),
            Self::Experts(experts) => experts.forward_add(x, y),
        }
    }
}

//! The keys and values of each layer, and what no model has.

use crate::error::ModelError;

/// The keys and values that one layer keeps of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerKv {
    /// Number of newest tokens that the layer's queries see; `None` for all tokens.
    pub window: Option<usize>,
    /// Number of heads of keys and values.
    pub num_kv_heads: usize,
    /// Coordinates of a key, or of a latent vector with its positional part.
    pub head_dim: usize,
    /// Coordinates of a value, or of a latent vector.
    pub value_dim: usize,
    /// Coordinates of the positional part of latent vectors (multi-head latent attention). 0 where keys and
    /// values are separate vectors.
    pub position_dim: usize,
}

/// The keys and values that a model keeps of each token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelKv {
    /// One entry per layer. `None` for layers that keep no keys and values. These are recurrent layers,
    /// layers without attention, and layers that use the keys and values of an earlier one.
    pub layers: Vec<Option<LayerKv>>,
    /// Longest sequence of the model, in tokens; `None` if the file does not say.
    pub context: Option<u64>,
    /// The model has an indexer, whose own keys are not part of `layers`.
    pub has_indexer: bool,
}

impl ModelKv {
    /// The layers that keep keys and values.
    pub fn kept(&self) -> impl Iterator<Item = &LayerKv> {
        self.layers.iter().flatten()
    }
}

/// The most coordinates, heads and tokens of a window that are accepted, so that no product overflows.
pub(crate) const MOST: u64 = 1 << 40;

/// More layers than any model has.
pub(crate) const MOST_LAYERS: usize = 1 << 12;

pub(crate) fn bad(what: impl Into<String>) -> ModelError {
    ModelError::Config(what.into())
}

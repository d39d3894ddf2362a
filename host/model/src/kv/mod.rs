//! The keys and values that a model keeps per token in each layer, from its `config.json` or GGUF header.
//!
//! This covers many more families than the runner computes ([`crate::Config`]), so a cache can be planned
//! for a model that runs elsewhere. A key that a file leaves out has the default of the family's class in
//! Transformers. `families.jsonl` holds these defaults, and a script of the Python package writes it. A file
//! of an unknown family must have every key itself, because nothing is guessed.
//!
//! ```text
//! config.json --family::resolve--> one object, by the common names --layer::read--> ModelKv
//! model.gguf  --gguf::kv---------------------------------------------------------->
//! ```

mod family;
mod layer;

use std::path::Path;

use crate::error::ModelError;
use crate::find::{self, Found};
use crate::gguf;

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
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`], which names the key. Either a value is out of range, or the family is not
    /// known and the file leaves out a key. Some families are refused because their cache has another form.
    pub fn from_json(json: &[u8]) -> Result<Self, ModelError> {
        layer::read(&family::resolve(json)?)
    }

    /// Reads the model at `path`: a GGUF file of any family, a folder with one, or a folder with
    /// `config.json`. No tensor is read.
    ///
    /// # Errors
    /// Those of [`ModelKv::from_json`]; [`ModelError::NoModel`], [`ModelError::Io`];
    /// [`ModelError::Weights`] for a malformed GGUF file or one whose header leaves something out.
    pub fn of(path: &Path) -> Result<Self, ModelError> {
        match find::model(path)? {
            Found::Folder(_) => Self::from_json(&crate::config_json(path)?),
            Found::Gguf(file) => gguf::kv(&file),
        }
    }

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

#[cfg(test)]
mod tests;

//! The keys and values that a model keeps per token in each layer, from its `config.json` or GGUF header.
//!
//! This covers many more families than the runner computes ([`crate::Config`]), so a cache can be planned
//! for a model that runs elsewhere. A key that a file leaves out has the default of the family's class in
//! Transformers. `families.jsonl` holds these defaults, and a script of the Python package writes it. A file
//! of an unknown family must have every key itself, because nothing is guessed.
//!
//! ```text
//! config.json --family::resolve--> one object, by the common names --layer::read-----> ModelKv
//!                                                                  --weights::count--> WeightCount
//! model.gguf  --gguf::kv-------------------------------------------------------------> ModelKv
//! ```

mod expression;
mod family;
mod layer;
mod shape;
mod weights;

use std::path::Path;

use crate::error::ModelError;
use crate::find::{self, Found};
use crate::gguf;

pub use shape::{LayerKv, ModelKv};
pub(crate) use shape::{MOST, MOST_LAYERS, bad};
pub(crate) use weights::count;

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
    pub fn of(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        match find::model(path.as_ref())? {
            Found::Folder(folder) => Self::from_json(&find::read_text(&folder.join(find::CONFIG))?),
            Found::Gguf(file) => gguf::kv(&file),
        }
    }
}

#[cfg(test)]
mod tests;

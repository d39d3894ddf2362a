//! What a model's weights take, read off the tables of contents of its files.

use std::collections::HashMap;
use std::path::Path;

use crate::checkpoint::{Access, Checkpoint};
use crate::error::ModelError;
use crate::find::{self, Found};
use crate::gguf;

/// Bytes of weights as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightBytes {
    /// All of them: what a model takes that is in memory.
    pub all: u64,
    /// Of the largest layer.
    pub layer: u64,
    /// Of the embedding, the head and what else belongs to no layer.
    pub beside: u64,
}

impl WeightBytes {
    /// Those of the model at `path`, as [`crate::Model::load`] takes it. No tensor is read.
    ///
    /// # Errors
    /// What is malformed or not read, by name.
    pub fn of(path: &Path) -> Result<Self, ModelError> {
        let tensors = match find::model(path)? {
            Found::Folder(dir) => Checkpoint::open_folder(&dir, Access::Streamed)?,
            Found::Gguf(file) => gguf::read(gguf::open(&file, Access::Streamed)?)?.tensors,
        };
        Self::of_tensors(&tensors)
    }

    fn of_tensors(tensors: &Checkpoint) -> Result<Self, ModelError> {
        let mut layers: HashMap<&str, u64> = HashMap::new();
        let mut beside = 0;
        for name in tensors.names() {
            let (format, shape) = tensors.describe(name)?;
            let bytes =
                format.bytes_of(shape).map_err(|what| ModelError::Compress(format!("{name}: {what}")))?;
            let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            *layer.map_or(&mut beside, |(layer, _)| layers.entry(layer).or_default()) += bytes as u64;
        }
        let layer = layers.values().copied().max().unwrap_or(0);
        Ok(Self { all: beside + layers.values().sum::<u64>(), layer, beside })
    }

    /// What a model takes whose layers are streamed: one that is computed, and the next.
    pub fn streamed(&self) -> u64 {
        self.beside + 2 * self.layer
    }
}

//! The size of a model's weights, read from the headers of its files.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::checkpoint::{Access, Checkpoint};
use crate::error::ModelError;
use crate::find::{self, Found};
use crate::gguf;
use crate::kv;

/// Bytes of weights in their stored format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightBytes {
    /// Bytes of all weights: the memory of a fully loaded model.
    pub all: u64,
    /// Bytes of the largest layer.
    pub layer: u64,
    /// Bytes of the embedding, the head, and other weights outside the layers.
    pub beside: u64,
}

/// Before the number of a layer, in names of its tensors.
const LAYERS: &str = "model.layers.";

impl WeightBytes {
    /// The sizes for the model at `path`, which is a path for [`crate::Model::load`]. No tensor is read.
    ///
    /// # Errors
    /// A malformed or unsupported file. The error names the fault.
    pub fn of(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        match find::model(path.as_ref())? {
            Found::Folder(dir) => {
                let tensors = Checkpoint::open_folder(&dir, Access::Streamed)?;
                check_embedding(&find::read_text(&dir.join(find::CONFIG))?, &tensors)?;
                Self::of_tensors(&tensors)
            }
            Found::Gguf(file) => {
                let tensors = gguf::tensor_bytes(&file)?;
                Ok(Self::sum("blk.", tensors.iter().map(|(name, bytes)| (name.as_str(), *bytes))))
            }
        }
    }

    /// The sizes for the language model in a `config.json` of Transformers, at `bits` bits per weight. No file
    /// is read. An encoder of images or sounds is not counted.
    ///
    /// # Errors
    /// [`ModelError::Config`]: the weights of the family are not counted, or a key is missing or out of range.
    pub fn of_config(json: &[u8], bits: f64) -> Result<Self, ModelError> {
        let bytes = |weights: u64| (weights as f64 * bits / 8.0).ceil() as u64;
        let count = kv::count(json)?;
        let all = count.layers.iter().fold(count.beside, |sum, layer| sum.saturating_add(*layer));
        Ok(Self {
            all: bytes(all),
            layer: bytes(count.layers.iter().copied().max().unwrap_or(0)),
            beside: bytes(count.beside),
        })
    }

    /// The sizes of the tensors that a model has requested, as it holds them.
    pub(crate) fn of_requested(tensors: &Checkpoint) -> Self {
        let bytes = tensors.bytes_asked();
        Self::sum(LAYERS, bytes.iter().map(|(name, bytes)| (name.as_str(), *bytes)))
    }

    fn of_tensors(tensors: &Checkpoint) -> Result<Self, ModelError> {
        let bytes = |name| {
            let (format, shape) = tensors.describe(name)?;
            let bytes = format.bytes_of(shape);
            bytes.map(|n| (name, n as u64)).map_err(|what| ModelError::Compress(format!("{name}: {what}")))
        };
        Ok(Self::sum(LAYERS, tensors.names().map(bytes).collect::<Result<Vec<_>, _>>()?))
    }

    /// The sums over tensors with their bytes. Names of those in layers begin with `prefix` and a number.
    fn sum<'a>(prefix: &str, tensors: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let mut layers: HashMap<&str, u64> = HashMap::new();
        let mut beside = 0u64;
        for (name, bytes) in tensors {
            let layer = name.strip_prefix(prefix).and_then(|rest| rest.split_once('.'));
            let sum = layer.map_or(&mut beside, |(layer, _)| layers.entry(layer).or_default());
            *sum = sum.saturating_add(bytes);
        }
        let layer = layers.values().copied().max().unwrap_or(0);
        Self { all: layers.values().fold(beside, |all, bytes| all.saturating_add(*bytes)), layer, beside }
    }

    /// Bytes of a model with streamed layers: the layer in computation, the next one, and the weights outside
    /// the layers.
    pub fn streamed(&self) -> u64 {
        self.beside + 2 * self.layer
    }
}

/// The bytes of a model's `config.json`, or of its equivalent for a GGUF file. `path` is a path for
/// [`crate::Model::load`]. No tensor is read.
///
/// # Errors
/// The errors of [`crate::Model::load`] for the files that are read.
pub fn config_json(path: impl AsRef<Path>) -> Result<Vec<u8>, ModelError> {
    match find::model(path.as_ref())? {
        Found::Folder(dir) => find::read_text(&dir.join(find::CONFIG)),
        Found::Gguf(file) => {
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
            let folder = gguf::open(&file, Access::Streamed).and_then(gguf::read);
            folder.map(|folder| folder.config).map_err(|error| gguf::said_of(&name, error))
        }
    }
}

/// Refuses weights whose embedding contradicts the config: they belong to another model.
fn check_embedding(config: &[u8], tensors: &Checkpoint) -> Result<(), ModelError> {
    #[derive(Default, Deserialize)]
    struct Widths {
        hidden_size: Option<usize>,
        vocab_size: Option<usize>,
    }
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let Widths { hidden_size, vocab_size } = serde_json::from_slice(config).unwrap_or_default();
    let (Some(hidden), Some(vocab), Ok((_, shape))) = (hidden_size, vocab_size, tensors.describe(EMBEDDING))
    else {
        return Ok(());
    };
    if shape == [vocab, hidden] {
        return Ok(());
    }
    Err(ModelError::WrongShape {
        name: EMBEDDING.to_owned(),
        got: shape.to_vec(),
        expected: vec![vocab, hidden],
    })
}

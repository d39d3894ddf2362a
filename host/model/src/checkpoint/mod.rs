//! The tensors of a model, by their names in Hugging Face checkpoints. They come from safetensors files (one
//! or several shards) or GGUF files ([`crate::gguf`]).

mod coding;
mod format;
mod kinds;
mod shards;
mod source;
mod stored;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::error::ModelError;
use crate::linear::Linear;
pub use coding::CompressSpec;
pub use format::CodedAs;
pub(crate) use format::{TensorCoding, TensorFormat};
pub(crate) use kinds::NumberKind;
pub use source::Access;
pub(crate) use source::{Chunk, TensorSource};
pub(crate) use stored::StoredTensor;

/// The place and format of a tensor.
#[derive(Debug)]
pub(crate) struct Entry {
    /// `Err` holds the name of an unsupported format. It is an error only if the tensor is requested.
    pub(crate) format: Result<TensorFormat, String>,
    /// Extents, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Index of the file, and the tensor's start in it.
    pub(crate) file: usize,
    pub(crate) start: u64,
    /// Heads whose rows are in the order of interleaved RoPE. `None` for the usual order.
    pub(crate) interleaved_heads: Option<usize>,
}

impl Entry {
    /// Reads the tensor from the files of its model.
    pub(crate) fn read(&self, name: &str, files: &[TensorSource]) -> Result<StoredTensor, ModelError> {
        let (file, format) = (&files[self.file], self.known_format(name)?);
        let bad = |reason: String| file.bad(format!("tensor {name}: {reason}"));
        let bytes = format.bytes_of(&self.shape).map_err(bad)? as u64;
        let end = self.start.checked_add(bytes).filter(|end| *end <= file.len);
        let end = end.ok_or_else(|| bad(format!("shape {:?} does not fit the file", self.shape)))?;
        let stored = StoredTensor::new(format.clone(), self.shape.clone(), file.chunk(self.start..end)?)
            .map_err(bad)?;
        Ok(match self.interleaved_heads {
            Some(heads) => stored.unpermuted(heads),
            None => stored,
        })
    }

    fn known_format(&self, name: &str) -> Result<&TensorFormat, ModelError> {
        self.format.as_ref().map_err(|got| ModelError::UnsupportedDtype {
            name: name.to_owned(),
            got: got.clone(),
            accepted: NumberKind::names(),
        })
    }
}

/// The files of a model, and the place of each of its tensors.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    files: Vec<TensorSource>,
    tensors: HashMap<String, Entry>,
    /// Names that were requested, and the bytes of these tensors as they were handed out.
    asked: Mutex<HashMap<String, u64>>,
    /// How matrices are coded when they are read, if they are.
    coding: Option<CompressSpec>,
}

impl Checkpoint {
    pub(crate) fn new(files: Vec<TensorSource>, tensors: HashMap<String, Entry>) -> Self {
        Self { files, tensors, asked: Mutex::default(), coding: None }
    }

    /// The same tensors, whose matrices are coded when they are read.
    pub(crate) fn coded(self, coding: Option<CompressSpec>) -> Self {
        Self { coding, ..self }
    }

    /// Names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Reads a tensor. `None` if there is none of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Option<StoredTensor>, ModelError> {
        let mut stored = self.tensors.get(name).map(|entry| entry.read(name, &self.files)).transpose()?;
        if let Some(spec) = &self.coding {
            stored = stored.map(|stored| spec.coded(name, stored)).transpose()?;
        }
        let bytes = stored.as_ref().map_or(0, |stored| stored.bytes().len() as u64);
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), bytes);
        Ok(stored)
    }

    /// Refuses tensors that nothing requested: they belong to a model that the runner does not compute.
    pub(crate) fn refuse_unread(&self, is_tied: bool) -> Result<(), ModelError> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // Frequencies that follow from the config, and copies of the embedding.
        let is_of_no_matter =
            |name: &str| name.ends_with("rotary_emb.inv_freq") || is_tied && name == "lm_head.weight";
        let unread = self.names().filter(|name| !asked.contains_key(*name) && !is_of_no_matter(name)).min();
        unread.map_or(Ok(()), |name| Err(ModelError::UnreadTensor { name: name.to_owned() }))
    }

    /// Bytes of the tensors that were requested.
    pub(crate) fn bytes_asked(&self) -> HashMap<String, u64> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a required tensor of any shape.
    pub(crate) fn any(&self, name: &str) -> Result<StoredTensor, ModelError> {
        self.get(name)?.ok_or_else(|| ModelError::MissingTensor { name: name.to_owned() })
    }

    /// Format and shape of a required tensor. Does not read it.
    pub(crate) fn describe(&self, name: &str) -> Result<(&TensorFormat, &[usize]), ModelError> {
        let missing = || ModelError::MissingTensor { name: name.to_owned() };
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        Ok((entry.known_format(name)?, &entry.shape))
    }

    /// Reads an optional tensor, which must have this shape.
    pub(crate) fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<StoredTensor>, ModelError> {
        let Some(stored) = self.get(name)? else { return Ok(None) };
        if stored.shape() != shape {
            return Err(ModelError::WrongShape {
                name: name.to_owned(),
                got: stored.shape().to_vec(),
                expected: shape.to_vec(),
            });
        }
        Ok(Some(stored))
    }

    /// Reads a required tensor, which must have this shape.
    pub(crate) fn required(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, ModelError> {
        self.optional(name, shape)?.ok_or_else(|| ModelError::MissingTensor { name: name.to_owned() })
    }

    /// Reads the values of a required vector.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        Ok(self.required(name, &[len])?.to_f32())
    }

    /// Reads several projections whose rows are joined in one tensor.
    pub(crate) fn fused<const N: usize>(
        &self,
        name: &str,
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Linear; N], ModelError> {
        let joined = self.required(&format!("{name}.weight"), &[outputs.iter().sum(), inputs])?;
        let mut first = 0;
        Ok(outputs.map(|outputs| {
            first += outputs;
            Linear::new(joined.rows(first - outputs..first), None)
        }))
    }

    /// Reads a projection. A bias in the file is always used. A missing bias is an error only if the config
    /// promises one.
    pub(crate) fn linear(
        &self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias_required: bool,
    ) -> Result<Linear, ModelError> {
        let weight = self.required(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias_name = format!("{name}.bias");
        let bias = if bias_required {
            Some(self.vector(&bias_name, outputs)?)
        } else {
            self.optional(&bias_name, &[outputs])?.map(|bias| bias.to_f32())
        };
        Ok(Linear::new(weight, bias))
    }
}

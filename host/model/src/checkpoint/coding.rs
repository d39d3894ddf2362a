//! The rule by which matrices are coded, in a file or while they are read.

use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;

use super::format::{CodedAs, TensorCoding, TensorFormat};
use super::stored::StoredTensor;
use crate::coded;
use crate::error::ModelError;

/// How weights are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressSpec {
    /// Codec of the matrices of the layers.
    pub codec: CodecId,
    /// Codec of the embedding and the output head. Most models keep them at more bits.
    pub embedding: CodecId,
    /// Values per group. The width of every matrix is a multiple of it.
    pub group: usize,
    /// Seed of the rotation, and the way encoders choose scales.
    pub options: Options,
}

impl CompressSpec {
    /// 4 bits in groups of 64, and 8 bits for the embedding and the output head.
    pub const DEFAULT: Self =
        Self { codec: CodecId::T4, embedding: CodecId::I8, group: 64, options: Options::DEFAULT };

    /// How a tensor is coded, and by what codec. `None` if it stays as it is.
    pub(crate) fn coding(
        &self,
        name: &str,
        format: &TensorFormat,
        shape: &[usize],
    ) -> Result<Option<(CodedAs, AnyCodec)>, String> {
        if !is_coded(name, shape) {
            return Ok(None);
        }
        if let TensorFormat::Coded(_) = format {
            return Err(format!("{} already", format.name()));
        }
        let is_table = name.starts_with("model.embed_tokens.") || name.starts_with("lm_head.");
        let codec = if is_table { self.embedding } else { self.codec };
        let coded_as = CodedAs { codec, group: self.group, seed: self.options.seed };
        let codec = coded_as.codec(self.options)?;
        let row = shape.last().copied().unwrap_or_default();
        if !row.is_multiple_of(self.group) {
            return Err(format!("rows of {row} values are no whole groups of {}", self.group));
        }
        Ok(Some((coded_as, codec)))
    }

    /// A tensor as [`crate::compress::compress`] would write it.
    pub(super) fn coded(&self, name: &str, stored: StoredTensor) -> Result<StoredTensor, ModelError> {
        let bad = |what: String| ModelError::Compress(format!("tensor {name}: {what}"));
        let Some((_, codec)) = self.coding(name, stored.format(), stored.shape()).map_err(bad)? else {
            return Ok(stored);
        };
        let level = Level::detect().map_err(|error| ModelError::Compress(error.to_string()))?;
        let blocks = stored.encoded(&codec, level).map_err(bad)?;
        let format = TensorFormat::Coded(TensorCoding { codec: Box::new(codec), level });
        StoredTensor::new(format, stored.shape().to_vec(), blocks.into()).map_err(bad)
    }
}

/// True for matrices whose rows are coded. Routers are left out: they are small, and a wrong choice of
/// experts is a large error.
fn is_coded(name: &str, shape: &[usize]) -> bool {
    let is_matrix = shape.len() >= 2 && !name.ends_with("bias");
    is_matrix && !name.ends_with("mlp.gate.weight") && !name.contains("router")
}

impl StoredTensor {
    /// Encodes all rows to blocks.
    ///
    /// # Errors
    /// A description of the faulty row.
    pub(crate) fn encoded(&self, codec: &AnyCodec, level: Level) -> Result<Vec<u8>, String> {
        let shape = self.shape();
        let rows = [shape[0], shape[1..].iter().product()];
        coded::encode(codec, level, rows, &|row, to| self.expand_rows(row, to))
    }
}

//! The format of a tensor's bytes: a plain number format, or groups of values coded by one of the project's
//! codecs.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;

use super::kinds::NumberKind;

/// How the values of a tensor are stored. Blocks follow each other along the rows.
#[derive(Debug, Clone)]
pub(crate) enum TensorFormat {
    Plain(&'static NumberKind),
    Coded(TensorCoding),
}

/// Groups of a row's values, each encoded as a vector of a codec.
#[derive(Debug, Clone)]
pub(crate) struct TensorCoding {
    pub(crate) codec: Box<AnyCodec>,
    pub(crate) level: Level,
}

/// The description of a coded tensor in a file. It is JSON in the metadata under the tensor's key
/// ([`CodedAs::key`]). The tensor itself is bytes, and the groups of a row are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodedAs {
    /// The codec of the groups.
    #[serde(with = "codec_name")]
    pub codec: CodecId,
    /// Values per group, which is the head dim of the codec.
    pub group: usize,
    /// Seed of the rotation.
    pub seed: u64,
}

impl CodedAs {
    /// The key of a tensor in the file's metadata.
    pub fn key(tensor: &str) -> String {
        format!("tqkv.{tensor}")
    }

    /// The codec of the groups. A decoder needs no option but the seed.
    ///
    /// # Errors
    /// A one-line message if the codec has no groups of this size.
    pub fn codec(&self, options: Options) -> Result<AnyCodec, String> {
        AnyCodec::new(self.codec, self.group, options.seed(self.seed))
            .map_err(|error| format!("groups of {} coded as {}: {error}", self.group, self.codec.name()))
    }
}

/// Reads and writes codecs by name.
mod codec_name {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use tqkv_core::CodecId;

    pub(super) fn serialize<S: Serializer>(codec: &CodecId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(codec.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CodecId, D::Error> {
        let name = String::deserialize(deserializer)?;
        CodecId::from_name(&name).ok_or_else(|| de::Error::custom(format!("codec {name} is not known")))
    }
}

impl TensorFormat {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Plain(kind) => kind.name.to_owned(),
            Self::Coded(coding) => {
                format!("groups of {} coded as {}", coding.codec.dim(), coding.codec.id().name())
            }
        }
    }

    /// The name of the format in safetensors files. `None` if they do not have it.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        let name = self.name();
        [Dtype::F32, Dtype::F16, Dtype::BF16].into_iter().find(|dtype| dtype.to_string() == name)
    }

    /// Values per block.
    pub(super) fn block(&self) -> usize {
        match self {
            Self::Plain(kind) => kind.block,
            Self::Coded(coding) => coding.codec.dim(),
        }
    }

    pub(super) fn block_bytes(&self) -> usize {
        match self {
            Self::Plain(kind) => kind.bytes,
            Self::Coded(coding) => coding.codec.block_bytes(),
        }
    }

    /// Bytes of a tensor.
    ///
    /// # Errors
    /// A description of the fault in the shape.
    pub(crate) fn bytes_of(&self, shape: &[usize]) -> Result<usize, String> {
        let (row, block) = (shape.last().copied().unwrap_or(1), self.block());
        if !row.is_multiple_of(block) {
            return Err(format!("rows of {row} values are no whole blocks of {block} ({})", self.name()));
        }
        let count = shape.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent));
        let bytes = count.and_then(|count| (count / block).checked_mul(self.block_bytes()));
        bytes.ok_or_else(|| format!("shape {shape:?} does not fit the file"))
    }

    /// Bytes of `values` values. They must fill whole blocks.
    pub(crate) fn len_of(&self, values: usize) -> usize {
        values / self.block() * self.block_bytes()
    }

    /// Decodes whole blocks to values. Damaged groups become NaN.
    pub(crate) fn expand(&self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Plain(kind) => kind.expand(bytes, out),
            Self::Coded(TensorCoding { codec, level }) => {
                if tqkv_simd::codec::decode(*level, codec, bytes, out).is_err() {
                    out.fill(f32::NAN);
                }
            }
        }
    }
}

//! What the bytes of a tensor are: a plain number format, or groups of values in one of the project's codes.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;

use super::kinds::Kind;

/// How the values of a tensor are stored, in blocks along its rows.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Plain(&'static Kind),
    Coded(Coding),
}

/// Groups of values of a row, each a vector of a codec.
#[derive(Debug, Clone)]
pub(crate) struct Coding {
    pub(crate) codec: Box<AnyCodec>,
    pub(crate) level: Level,
}

/// What a file says of a coded tensor, as JSON in the metadata beside the tensor's name ([`CodedAs::key`]);
/// the tensor itself is bytes, of which those of a row's groups lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodedAs {
    /// Which codec.
    #[serde(with = "codec_name")]
    pub codec: CodecId,
    /// Values of a group: the head dim of the codec.
    pub group: usize,
    /// Seed of the rotation.
    pub seed: u64,
}

impl CodedAs {
    /// Where the metadata of a file has it.
    pub fn key(tensor: &str) -> String {
        format!("tqkv.{tensor}")
    }

    /// The codec of the groups; of the options a decoder needs none but the seed.
    ///
    /// # Errors
    /// One line, where the codec has no such groups.
    pub fn codec(&self, options: Options) -> Result<AnyCodec, String> {
        AnyCodec::new(self.codec, self.group, options.seed(self.seed))
            .map_err(|error| format!("groups of {} coded as {}: {error}", self.group, self.codec.name()))
    }
}

/// Codecs by their names.
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

impl Format {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Plain(kind) => kind.name.to_owned(),
            Self::Coded(coding) => {
                format!("groups of {} coded as {}", coding.codec.dim(), coding.codec.id().name())
            }
        }
    }

    /// What safetensors files call it, where they have it.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        let name = self.name();
        [Dtype::F32, Dtype::F16, Dtype::BF16].into_iter().find(|dtype| dtype.to_string() == name)
    }

    /// Values of a block.
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
    /// What is wrong with the shape.
    pub(crate) fn bytes_of(&self, shape: &[usize]) -> Result<usize, String> {
        let (row, block) = (shape.last().copied().unwrap_or(1), self.block());
        if !row.is_multiple_of(block) {
            return Err(format!("rows of {row} values are no whole blocks of {block} ({})", self.name()));
        }
        let count = shape.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent));
        let bytes = count.and_then(|count| (count / block).checked_mul(self.block_bytes()));
        bytes.ok_or_else(|| format!("shape {shape:?} does not fit the file"))
    }

    /// Bytes of so many values, which are whole blocks.
    pub(crate) fn len_of(&self, values: usize) -> usize {
        values / self.block() * self.block_bytes()
    }

    /// Values of whole blocks. Damaged groups are NaN.
    pub(crate) fn expand(&self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Plain(kind) => kind.expand(bytes, out),
            Self::Coded(Coding { codec, level }) => {
                if tqkv_simd::codec::decode(*level, codec, bytes, out).is_err() {
                    out.fill(f32::NAN);
                }
            }
        }
    }
}

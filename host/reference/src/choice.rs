//! A choice in a comparison: a codec of `tqkv_core`, or a row of this crate.

use crate::coder::{Coder, ReferenceError};
use crate::rotation::RotationKind;
use crate::rows::{ROWS, Row};
use tqkv_core::{AnyCodec, CodecId, DecodeError, EncodeError, Options};

/// A codec or format that stores vectors in a comparison.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// A codec of `tqkv_core`, which caches store.
    Core(CodecId),
    /// A format of this crate.
    Reference(Row),
}

impl PartialEq for Choice {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Choice {}

impl From<CodecId> for Choice {
    fn from(id: CodecId) -> Self {
        Self::Core(id)
    }
}

impl Choice {
    /// Every codec, then every format.
    pub fn all() -> impl Iterator<Item = Self> {
        let rows = ROWS.iter().map(|row| Self::Reference(*row));
        CodecId::ALL.iter().map(|&id| Self::Core(id)).chain(rows)
    }

    /// The codec or format of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        CodecId::from_name(name).map(Self::Core).or_else(|| Row::from_name(name).map(Self::Reference))
    }

    /// Name on the command line and in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Core(id) => id.name(),
            Self::Reference(row) => row.name(),
        }
    }

    /// The codec, if the choice is one.
    pub const fn core(&self) -> Option<CodecId> {
        match self {
            Self::Core(id) => Some(*id),
            Self::Reference(_) => None,
        }
    }

    /// Bytes of a block. `None` if there are no blocks of the head dim.
    pub fn block_bytes(&self, dim: usize) -> Option<usize> {
        match self {
            Self::Core(id) => id.block_bytes(dim),
            Self::Reference(row) => row.block_bytes(dim),
        }
    }
}

/// Why a choice has no coders.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The codec has no blocks of the head dim.
    #[error("codec {codec} at head dim {dim}: {source}")]
    Core {
        /// Name of the codec.
        codec: &'static str,
        /// The head dim.
        dim: usize,
        /// The error of the codec.
        source: tqkv_core::ShapeError,
    },
    /// The format has no blocks of the head dim, or not with this rotation.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// A choice at a head dim, for one layer.
#[derive(Clone, Debug)]
pub enum Coders {
    /// A codec of `tqkv_core`, run by its portable code.
    Core(Box<AnyCodec>),
    /// A format of this crate.
    Reference(Coder),
}

impl Coders {
    /// The coder of a layer. A codec of `tqkv_core` has one rotation for all layers, which `options.seed`
    /// determines. A format has one rotation per layer, and reads only the seed of `options`.
    ///
    /// # Errors
    /// A head dim without blocks, or a rotation that the format does not have.
    pub fn new(
        choice: Choice,
        dim: usize,
        options: Options,
        layer: usize,
        rotation: Option<RotationKind>,
    ) -> Result<Self, ChoiceError> {
        match choice {
            Choice::Core(id) => {
                let codec = AnyCodec::new(id, dim, options);
                let refused = |source| ChoiceError::Core { codec: id.name(), dim, source };
                codec.map(|codec| Self::Core(Box::new(codec))).map_err(refused)
            }
            Choice::Reference(row) => {
                Ok(Self::Reference(Coder::new(row, dim, (options.seed, layer), rotation)?))
            }
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        match self {
            Self::Core(codec) => codec.block_bytes(),
            Self::Reference(coder) => coder.block_bytes(),
        }
    }

    /// See [`Coder::learn`].
    pub fn learn(&self, vectors: &[f32]) -> Self {
        match self {
            Self::Core(_) => self.clone(),
            Self::Reference(coder) => Self::Reference(coder.learn(vectors)),
        }
    }

    /// Replaces a vector by what its block decodes to.
    ///
    /// # Errors
    /// What [`Coder::encode`] says of a vector that has no block.
    pub(crate) fn pass(&self, x: &mut [f32]) -> Result<(), String> {
        let mut block = vec![0; self.block_bytes()];
        self.encode(x, &mut block).map_err(|error| error.to_string())?;
        self.decode(&block, x).map_err(|error| error.to_string())
    }

    /// Encodes a vector.
    ///
    /// # Errors
    /// The errors of [`Coder::encode`].
    pub fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        match self {
            Self::Core(codec) => codec.encode(x, block),
            Self::Reference(coder) => coder.encode(x, block),
        }
    }

    /// Decodes a block.
    ///
    /// # Errors
    /// The errors of [`Coder::decode`].
    pub fn decode(&self, block: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        match self {
            Self::Core(codec) => codec.decode(block, out),
            Self::Reference(coder) => coder.decode(block, out),
        }
    }
}

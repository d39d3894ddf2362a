//! Errors of a model file, of the borrowed memory and of a token.

use core::fmt;
use tqkv_core::fixed::flat::FileError;

/// Why a model was not loaded or a token was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LmError {
    /// The file is not a model.
    File(FileError),
    /// The codecs of the cache and the model have different head dims.
    HeadDim {
        /// Head dim of the model.
        expected: u32,
        /// Head dim of the codecs.
        got: u32,
    },
    /// The number of rings is not one per KV head of each layer.
    Rings {
        /// Layers times KV heads.
        expected: u32,
        /// Words passed.
        got: u32,
    },
    /// The rings have no room for a token, or differ in size.
    RingSize,
    /// The workspace has too few words.
    Work {
        /// [`crate::Shape::work_words`].
        expected: u32,
        /// Words passed.
        got: u32,
    },
    /// The token is not in the vocabulary.
    Token {
        /// The token passed.
        got: u32,
        /// Tokens in the vocabulary.
        vocab: u32,
    },
    /// A key or value is too large for the scale of a block, 65504: the weights are damaged.
    Encode,
    /// A block of the cache has a scale that is not finite: its memory was overwritten.
    Decode,
}

impl fmt::Display for LmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::HeadDim { expected, got } => {
                write!(f, "the codecs have head dim {got}, expected {expected} as in the model")
            }
            Self::Rings { expected, got } => write!(f, "{got} rings were passed, expected {expected}"),
            Self::RingSize => {
                f.write_str("the rings are not valid: expected one size, with room for a token")
            }
            Self::Work { expected, got } => write!(f, "the workspace has {got} words, expected {expected}"),
            Self::Token { got, vocab } => {
                write!(f, "token {got} is out of range: the vocabulary has {vocab} tokens")
            }
            Self::Encode => f.write_str("a key or value is too large: its scale must fit f16, at most 65504"),
            Self::Decode => {
                f.write_str("a block of the cache has a scale that is not finite: its memory was overwritten")
            }
        }
    }
}

impl core::error::Error for LmError {}

impl From<FileError> for LmError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

//! What can be wrong with a file, the memory lent, or a token.

use core::fmt;

/// The version that is written and read.
pub const VERSION: u16 = 1;

/// Exponents of tensors are within this, either way.
pub const MAX_EXPONENT: i32 = 64;

/// Why a model was not loaded or a token not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LmError {
    /// The bytes do not begin with `TQLM`, or end within the header.
    NotAModel,
    /// A version of the format that this crate does not read.
    Version {
        /// That of the file.
        got: u16,
    },
    /// A field of the header, with what it must be.
    Field {
        /// Its name in SPEC.md.
        name: &'static str,
        /// What is accepted.
        accepted: &'static str,
    },
    /// The file is not as long as its header says.
    Length {
        /// Bytes that the shape asks for.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// The checksum at the end is not that of the bytes before it.
    Checksum,
    /// The exponent of a tensor is beyond the 64 octaves either way that are accepted.
    Exponent,
    /// The codecs of the cache have another head dim than the model.
    HeadDim {
        /// Of the model.
        expected: u32,
        /// Of the codecs.
        got: u32,
    },
    /// Not one ring for each KV head of each layer.
    Rings {
        /// Layers times KV heads.
        expected: u32,
        /// Given.
        got: u32,
    },
    /// The rings have no room for a token, or not the same room.
    RingSize,
    /// Too few words to work in.
    Work {
        /// [`crate::Shape::work_words`].
        expected: u32,
        /// Given.
        got: u32,
    },
    /// A token that the vocabulary does not have.
    Token {
        /// It.
        got: u32,
        /// Tokens in the vocabulary.
        vocab: u32,
    },
    /// A key or value is too large for the scale of a block, 65504: the weights are damaged.
    Encode,
    /// A block of the cache has a scale that is not finite: its memory was written to.
    Decode,
}

impl fmt::Display for LmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAModel => {
                f.write_str("not a flat model file: it must begin with TQLM and a whole header")
            }
            Self::Version { got } => {
                write!(f, "version {got} of the flat model file is not read, accepted is {}", VERSION)
            }
            Self::Field { name, accepted } => {
                write!(f, "{name} of the flat model file: accepted is {accepted}")
            }
            Self::Length { expected, got } => write!(f, "a file of {got} bytes, its header says {expected}"),
            Self::Checksum => f.write_str("the checksum of the flat model file is wrong: it is damaged"),
            Self::Exponent => write!(f, "an exponent beyond +-{}", MAX_EXPONENT),
            Self::HeadDim { expected, got } => {
                write!(f, "codecs of head dim {got}, the model has {expected}")
            }
            Self::Rings { expected, got } => write!(f, "{got} rings, the model needs {expected}"),
            Self::RingSize => f.write_str("rings without room for a token, or of several sizes"),
            Self::Work { expected, got } => write!(f, "{got} words to work in, the model needs {expected}"),
            Self::Token { got, vocab } => write!(f, "token {got}, the vocabulary has {vocab}"),
            Self::Encode => f.write_str("a key or value above 65504"),
            Self::Decode => f.write_str("a cached scale that is not finite"),
        }
    }
}

impl core::error::Error for LmError {}

//! What can be wrong with a shape, a basis or a chunk.

use std::io;

use tqkv::error::CacheError;

/// Why something is not learned, encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// No shape of keys and values that can be stored.
    #[error("{0}")]
    Shape(String),
    /// A kind of RoPE that is not undone.
    #[error("RoPE of the kind '{0}' is not stored; accepted are half, interleaved and none")]
    RopeKind(String),
    /// A budget outside of what chunks can have.
    #[error("budget of {0} bits a value; accepted are 0.5 to 5")]
    Budget(f32),
    /// A run of tokens that does not fit the shape or the format.
    #[error("{0}")]
    Span(String),
    /// A slice of the wrong length.
    #[error("{what} have {got} values; {expected} are needed")]
    Length {
        /// Keys or values.
        what: &'static str,
        /// Values passed.
        got: usize,
        /// Values needed.
        expected: usize,
    },
    /// Keys or values that cannot be encoded.
    #[error("layer {layer}: {what}")]
    Layer {
        /// The layer.
        layer: usize,
        /// What is wrong there.
        what: String,
    },
    /// Too little to learn from.
    #[error("{0}")]
    Learning(String),
    /// A basis of another model, shape or RoPE.
    #[error("basis does not fit: {0}")]
    Basis(String),
    /// Bytes that are no chunk or no basis, or a damaged one.
    #[error("{kind}: {why}")]
    Bytes {
        /// "chunk" or "basis".
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A chunk encoded with another basis, or for another model.
    #[error("chunk needs basis {wanted}; {offered} is here")]
    OtherBasis {
        /// That of the chunk.
        wanted: String,
        /// That of the codec.
        offered: String,
    },
    /// The system failed to read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A cache that does not fit.
    #[error("cache does not fit: {0}")]
    Cache(String),
    /// What a cache refused; or the machine lacks threads, or an instruction set that was asked for.
    #[error(transparent)]
    Machine(#[from] CacheError),
}

impl StorageError {
    pub(crate) fn chunk(why: impl Into<String>) -> Self {
        Self::Bytes { kind: "chunk", why: why.into() }
    }

    pub(crate) fn basis(why: impl Into<String>) -> Self {
        Self::Bytes { kind: "basis", why: why.into() }
    }
}

//! Errors of shapes, bases and chunks.

use std::io;

use tqkv::error::CacheError;

/// Why something is not learned, encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A shape of keys and values that cannot be stored.
    #[error("{0}")]
    Shape(String),
    /// A kind of RoPE that cannot be undone.
    #[error("RoPE of the kind '{0}' is not stored; expected half, interleaved or none")]
    RopeKind(String),
    /// A budget outside the accepted range.
    #[error("budget of {0} bits per value; expected 0.5 to 5")]
    Budget(f32),
    /// A span of tokens that does not fit the shape or the format.
    #[error("{0}")]
    Span(String),
    /// A slice of the wrong length.
    #[error("{what} have {got} values; {expected} are needed")]
    Length {
        /// Keys or values.
        what: &'static str,
        /// Number of values passed.
        got: usize,
        /// Number of values needed.
        expected: usize,
    },
    /// Keys or values that cannot be encoded.
    #[error("layer {layer}: {what}")]
    Layer {
        /// The layer.
        layer: usize,
        /// The fault.
        what: String,
    },
    /// Too few tokens to learn from.
    #[error("{0}")]
    Learning(String),
    /// A basis of another model, shape or RoPE.
    #[error("basis does not fit: {0}")]
    Basis(String),
    /// Bytes that are no chunk or no basis, or are damaged.
    #[error("{kind}: {why}")]
    Bytes {
        /// "chunk" or "basis".
        kind: &'static str,
        /// The fault.
        why: String,
    },
    /// A chunk encoded with another basis, or for another model.
    #[error("chunk needs basis {wanted}; the codec has {offered}")]
    OtherBasis {
        /// The basis of the chunk.
        wanted: String,
        /// The basis of the codec.
        offered: String,
    },
    /// The system failed to read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A cache that does not fit.
    #[error("cache does not fit: {0}")]
    Cache(String),
    /// An error of a cache, missing threads, or an instruction set that this machine does not have.
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

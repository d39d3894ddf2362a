//! Errors of the caches. Those of the model runner are [`crate::model::ModelError`], which wraps these.

use thiserror::Error;

/// What a cache refuses. Every message is one line and says what was wrong and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A count in the cache's shape is zero, or the query heads do not divide among the KV heads.
    #[error("cache shape: {0}")]
    BadShape(String),
    /// The layer index is not below the number of layers.
    #[error("layer {layer} is out of range: the cache has {num_layers} layers")]
    LayerOutOfRange {
        /// The index asked for.
        layer: usize,
        /// Layers in the cache.
        num_layers: usize,
    },
    /// Keys that are not a whole number of tokens.
    #[error("k has {got} values, which is not a whole number of tokens of {per_token} values")]
    NotWholeTokens {
        /// Values passed.
        got: usize,
        /// Values of one token: num_kv_heads * head_dim.
        per_token: usize,
    },
    /// A slice that does not fit the number of tokens the keys hold.
    #[error("{what} has {got} values, expected {expected}")]
    WrongLength {
        /// Which argument.
        what: &'static str,
        /// Values passed.
        got: usize,
        /// Values wanted.
        expected: usize,
    },
}

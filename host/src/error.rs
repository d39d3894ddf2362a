//! Errors of the caches; those of files are [`crate::file::FileError`].

use thiserror::Error;

/// What a cache refuses. Every message is one line and says what was wrong and what is accepted.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// `TQKV_LEVEL` names an instruction set that is unknown or that this machine lacks.
    #[error("TQKV_LEVEL: {0}")]
    Level(tqkv_simd::LevelError),
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
    /// A query head that the cache does not have.
    #[error("query head {head} is out of range: the cache has {num_heads}")]
    HeadOutOfRange {
        /// The index asked for.
        head: usize,
        /// Query heads of the cache.
        num_heads: usize,
    },
    /// A vector that no codec can store.
    #[error(
        "{what} of token {token}, KV head {kv_head}: values must be finite and the norm at most {max_norm}"
    )]
    BadVector {
        /// "key" or "value".
        what: &'static str,
        /// Token within the chunk.
        token: usize,
        /// KV head.
        kv_head: usize,
        /// Largest accepted norm.
        max_norm: f32,
    },
    /// A token that left the hot window could not be encoded; it stays uncompressed.
    #[error("cannot encode: {0}")]
    Encode(String),
    /// A rollback behind what the sliding window evicted.
    #[error("cannot truncate to {len} tokens: the sliding window has evicted tokens before {first_live}")]
    Evicted {
        /// Tokens asked for.
        len: usize,
        /// First token still held.
        first_live: usize,
    },
    /// What the GPU or its driver refuses.
    #[cfg(feature = "cuda")]
    #[error("GPU: {0}")]
    Gpu(#[from] tqkv_gpu::GpuError),
    /// The spill file of the cold tier cannot be made or written.
    #[error("cannot spill cold pages: {0}")]
    Spill(String),
}

//! Errors of the caches; those of files are [`crate::file::FileError`].

use thiserror::Error;
use tqkv_core::KvError;

/// What a cache refuses. Every message is one line and says what was wrong and what is accepted.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// `TQKV_LEVEL` names an instruction set that is unknown or that this machine lacks.
    #[error("TQKV_LEVEL: {0}")]
    Level(tqkv_simd::LevelError),
    /// Codecs, windows or tiers that no cache of the shape can have.
    #[error("cache spec: {0}")]
    BadSpec(String),
    /// A shape that no cache can have, or a layer, a head or slices that do not fit the shape.
    #[error(transparent)]
    Shape(#[from] KvError),
    /// A vector that no codec can store.
    #[error(
        "layer {layer}, {what} of token {token}, KV head {kv_head}: values must be finite and the norm at most {max_norm}"
    )]
    BadVector {
        /// Layer.
        layer: usize,
        /// "key" or "value".
        what: &'static str,
        /// Position in the sequence.
        token: usize,
        /// KV head.
        kv_head: usize,
        /// Largest accepted norm.
        max_norm: f32,
    },
    /// The budget has not as many bytes free as the operation may need.
    #[error("full: {needed} bytes are needed, {free} of {limit} are free")]
    Full {
        /// The most that the operation may need.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes of the budget.
        limit: usize,
    },
    /// More tokens than a layer may have.
    #[error("layer {layer} would have {tokens} tokens: expected at most {limit}")]
    TooLong {
        /// Layer.
        layer: usize,
        /// Tokens that it would have, evicted ones included.
        tokens: usize,
        /// The most that it may have.
        limit: usize,
    },
    /// The system has not the memory that the size of the operation asks for.
    #[error("no memory: {bytes} bytes cannot be had")]
    Memory {
        /// Bytes that were asked for at once.
        bytes: usize,
    },
    /// One of several caches refuses.
    #[error("cache {index}: {error}")]
    Of {
        /// Its place among them.
        index: usize,
        /// Its reason.
        #[source]
        error: Box<Self>,
    },
    /// The pool has no such sequence (any more).
    #[error("no such sequence: it was removed, or evicted for others")]
    NoSequence,
    /// Attention over nothing.
    #[error("layer {layer} holds no token yet: append before attending")]
    Empty {
        /// Layer.
        layer: usize,
    },
    /// The layer is of a kind that keeps no keys and values.
    #[error("layer {layer} keeps no keys and values (LayerKind::None)")]
    NoCache {
        /// Layer.
        layer: usize,
    },
    /// The index of a KV head is not below their number.
    #[error("KV head {kv_head} is out of range: layer {layer} has {num_kv_heads}")]
    KvHead {
        /// Layer.
        layer: usize,
        /// The index asked for.
        kv_head: usize,
        /// KV heads of the layer.
        num_kv_heads: usize,
    },
    /// Tokens that are not held.
    #[error("tokens {start} to {end} are not all there: held are the sinks and {first_live} to {len}")]
    NoTokens {
        /// First token asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// First token after the sinks that is held.
        first_live: usize,
        /// Tokens of the sequence.
        len: usize,
    },
    /// A token that left the hot window could not be encoded; it stays uncompressed.
    #[error("cannot encode {0}")]
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
    /// The threads of rayon's pool cannot be started.
    #[error("cannot start threads: {0}; RAYON_NUM_THREADS sets how many are asked for")]
    Threads(String),
    /// A snapshot that cannot be written, or is not one of this cache.
    #[error("snapshot: {0}")]
    Snapshot(String),
    /// The spill file of the cold tier cannot be made, written or read.
    #[error("cannot spill cold pages: {0}")]
    Spill(String),
}

impl CacheError {
    /// Puts the place before what could not be encoded: the outer says more of it than the inner knew.
    pub(crate) fn within(self, place: std::fmt::Arguments<'_>) -> Self {
        match self {
            Self::Encode(what) => Self::Encode(format!("{place}, {what}")),
            Self::Snapshot(what) => Self::Snapshot(format!("{place}: {what}")),
            other => other,
        }
    }
}

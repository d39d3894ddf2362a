//! Errors of the caches. Errors of files are [`crate::file::FileError`].

use thiserror::Error;
use tqkv_core::KvError;

/// Reasons why a cache refuses a call. Every message is one line that names the fault and what is accepted.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// `TQKV_LEVEL` names an instruction set that is unknown or that this machine lacks.
    #[error("TQKV_LEVEL: {0}")]
    Level(tqkv_simd::LevelError),
    /// A cache of this shape cannot have these codecs, windows or tiers.
    #[error("cache spec: {0}")]
    BadSpec(String),
    /// A shape that no cache can have, or a layer, a head or a slice length that does not fit the shape.
    #[error(transparent)]
    Shape(#[from] KvError),
    /// A vector that no codec can store.
    #[error(
        "layer {layer}, {what} of token {token}, KV head {kv_head}: values must be finite and the norm at most {max_norm}"
    )]
    BadVector {
        /// Layer.
        layer: usize,
        /// `"key"` or `"value"`.
        what: &'static str,
        /// Position in the sequence.
        token: usize,
        /// KV head.
        kv_head: usize,
        /// Largest accepted norm.
        max_norm: f32,
    },
    /// A vector that stays f16, because it is a sink or its layer keeps f16, with a value that f16 lacks.
    #[error(
        "layer {layer}, {what} of token {token}, KV head {kv_head}, which stays f16: values must be finite and at most 65504"
    )]
    BadValue {
        /// Layer.
        layer: usize,
        /// `"key"` or `"value"`.
        what: &'static str,
        /// Position in the sequence.
        token: usize,
        /// KV head.
        kv_head: usize,
    },
    /// The budget has fewer free bytes than the operation may need.
    #[error("full: {needed} bytes are needed, {free} of {limit} are free")]
    Full {
        /// Upper bound of the bytes that the operation needs.
        needed: usize,
        /// Free bytes.
        free: usize,
        /// Size of the budget in bytes.
        limit: usize,
    },
    /// More tokens than a layer may have.
    #[error("layer {layer} would have {tokens} tokens: expected at most {limit}")]
    TooLong {
        /// Layer.
        layer: usize,
        /// Tokens that it would have, including evicted ones.
        tokens: usize,
        /// Token limit of a layer.
        limit: usize,
    },
    /// A slot that a cache of slots does not have ([`crate::slots::SlotCache`]).
    #[error("slot {slot} is out of range: there are {slots}")]
    Slot {
        /// The slot that was passed.
        slot: usize,
        /// Number of slots.
        slots: usize,
    },
    /// A number that a mask cannot add to a logit ([`crate::slots::Mask`]).
    #[error("bias {bias} of slot {slot} is not valid: expected at most 65504, or -inf to hide the slot")]
    Bias {
        /// The slot that was passed.
        slot: usize,
        /// The number that was passed with it.
        bias: f32,
    },
    /// A RoPE that cannot turn the keys of a layer ([`crate::slots::SlotCache::shift`]).
    #[error("RoPE {0}")]
    BadRope(String),
    /// Blocks of an engine, or a step over them, that are not valid ([`crate::paged`]).
    #[error("blocks: {0}")]
    Blocks(String),
    /// Tokens that attention cannot be limited to.
    #[error("selected tokens: {0}")]
    Selection(String),
    /// The system cannot provide the memory that an operation of this size needs.
    #[error("no memory: the system cannot provide {bytes} bytes")]
    Memory {
        /// Size of the failed request in bytes.
        bytes: usize,
    },
    /// One of several caches refuses the call.
    #[error("cache {index}: {error}")]
    Of {
        /// Index of that cache in the list.
        index: usize,
        /// The reason.
        #[source]
        error: Box<Self>,
    },
    /// The pool does not have this sequence, or no longer has it.
    #[error("no such sequence: it was removed, or evicted in favour of others")]
    NoSequence,
    /// Attention over a layer without tokens.
    #[error("layer {layer} holds no token yet: append before attending")]
    Empty {
        /// Layer.
        layer: usize,
    },
    /// The layer keeps no keys and values ([`LayerKind::None`](crate::cache::LayerKind::None)).
    #[error("layer {layer} keeps no keys and values (LayerKind::None)")]
    NoCache {
        /// Layer.
        layer: usize,
    },
    /// The index of a KV head is out of range.
    #[error("KV head {kv_head} is out of range: layer {layer} has {num_kv_heads}")]
    KvHead {
        /// Layer.
        layer: usize,
        /// The index that was passed.
        kv_head: usize,
        /// KV heads of the layer.
        num_kv_heads: usize,
    },
    /// Tokens that the cache does not hold.
    #[error(
        "tokens {start} to {end} are not all there: expected sinks, or tokens from {first_live} to {len}"
    )]
    NoTokens {
        /// First token of the requested range.
        start: usize,
        /// One past the last requested token.
        end: usize,
        /// First token after the sinks that the cache still holds.
        first_live: usize,
        /// Tokens of the sequence.
        len: usize,
    },
    /// A token that left the hot window could not be encoded; it stays uncompressed.
    #[error("cannot encode {0}")]
    Encode(String),
    /// The sliding window has evicted tokens that the shorter sequence would see.
    #[error("cannot truncate to {len} tokens: the sliding window has evicted tokens before {first_live}")]
    Evicted {
        /// Requested length in tokens.
        len: usize,
        /// First token that the cache still holds.
        first_live: usize,
    },
    /// An error of the GPU or its driver.
    #[cfg(feature = "cuda")]
    #[error("GPU: {0}")]
    Gpu(#[from] tqkv_gpu::GpuError),
    /// The system cannot start the threads of rayon's pool.
    #[error("cannot start threads: {0}; RAYON_NUM_THREADS sets how many are asked for")]
    Threads(String),
    /// A snapshot cannot be written, is damaged, or does not belong to this cache.
    #[error("snapshot: {0}")]
    Snapshot(String),
    /// The spill file of the cold tier cannot be created, written or read.
    #[error("cannot spill cold pages: {0}")]
    Spill(String),
}

impl CacheError {
    /// Prefixes the message with the place of the failure, which only the caller knows.
    pub(crate) fn within(self, place: std::fmt::Arguments<'_>) -> Self {
        match self {
            Self::Encode(what) => Self::Encode(format!("{place}, {what}")),
            Self::Snapshot(what) => Self::Snapshot(format!("{place}: {what}")),
            other => other,
        }
    }
}

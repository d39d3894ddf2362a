//! The interface between a model and a cache.
//!
//! [`AttentionCache`] is all that a model runner knows about a cache. Three caches implement it:
//! [`crate::cache::KvCache`] with compressed tokens, [`crate::dense::DenseCache`] with exact tokens, and
//! `CudaCache` on a GPU.

use crate::cache::HeadStats;
use crate::error::CacheError;
use tqkv_core::KvShape;

/// Attention of one decoder layer over a cache. A model runner uses nothing else of the cache.
pub trait AttentionCache {
    /// The shape that chunks must fit. [`tqkv_core::Chunk`] checks it.
    fn shape(&self) -> KvShape;

    /// Appends n tokens to one layer and attends causally. The chunk is a prompt, a part of a prompt, or with
    /// n = 1 a generated token.
    ///
    /// Every cache has this call, so a model runner needs no other. [`crate::cache::KvCache::attend_prefill`]
    /// is the same call on a compressed cache. It also accepts keys and values in f16 and bf16, and its
    /// documentation compares the calls in a table.
    ///
    /// `k`, `v`: `[n, num_kv_heads, head_dim]`, `k` after RoPE. `q`, `out`: `[n, num_heads, head_dim]`.
    /// Logits are scaled by 1/sqrt(head_dim). Query i sees every earlier token and tokens 0..=i of this
    /// chunk.
    ///
    /// # Errors
    /// A layer out of range, slices that do not fit each other, or a vector that the cache cannot store.
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError>;

    /// Logits of one query head over every token that the newest position sees, oldest first. `q` is
    /// `[head_dim]`. Returns `None` if the cache does not provide logits.
    fn scores(&self, _layer: usize, _head: usize, _q: &[f32]) -> Option<Result<Vec<f32>, CacheError>> {
        None
    }

    /// Tokens in layer 0.
    fn len(&self) -> usize;

    /// True if the cache holds no token.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops every token from index `len` on, in every layer. A shorter layer stays as it is, and a `len`
    /// beyond all of them drops nothing.
    ///
    /// # Errors
    /// A sliding window may have evicted tokens that the shorter sequence would see again.
    fn truncate(&mut self, len: usize) -> Result<(), CacheError>;

    /// Another cache with the same tokens. Returns `None` if this kind of cache has no copies.
    fn fork(&self) -> Option<Result<Box<dyn AttentionCache>, CacheError>> {
        None
    }

    /// Empties the cache.
    fn reset(&mut self);

    /// Bytes allocated for keys and values, spare capacity included.
    fn allocated_bytes(&self) -> usize;

    /// Encoding statistics of each KV head, in the order of the layers. Empty if the cache does not collect
    /// any.
    fn head_stats(&self) -> Vec<HeadStats> {
        Vec::new()
    }
}

//! The seam between a model and a cache.
//!
//! [`AttentionCache`] is all that a model runner knows of a cache. [`crate::cache::KvCache`] implements it
//! with compressed tokens, [`crate::dense::DenseCache`] with exact ones, `CudaCache` on a GPU.

use crate::cache::HeadStats;
use crate::error::CacheError;
use tqkv_core::KvShape;

/// One decoder layer's attention over a cache; the model runner knows nothing else of it.
pub trait AttentionCache {
    /// The shape that chunks must fit: [`tqkv_core::Chunk`] checks that.
    fn shape(&self) -> KvShape;

    /// Appends n tokens of one layer and attends causally: a prompt, a chunk of one, or with n = 1 a
    /// generated token.
    ///
    /// Every cache has this call, so a model runner needs no other. [`crate::cache::KvCache::attend_prefill`]
    /// is the same call of a compressed cache alone, which also takes keys and values of f16 and bf16; a
    /// table there compares the calls.
    ///
    /// `k`, `v`: `[n, num_kv_heads, head_dim]`, `k` after RoPE; `q`, `out`: `[n, num_heads, head_dim]`.
    /// Logits are scaled by 1/sqrt(head_dim). Query i sees everything appended before and tokens 0..=i of
    /// this chunk.
    ///
    /// # Errors
    /// A layer out of range, slices that do not fit each other, or whatever the cache cannot store.
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError>;

    /// Logits of one query head, `q` of `[head_dim]`, over every token that the newest position sees, oldest
    /// first; `None` of a cache that does not give them.
    fn scores(&self, _layer: usize, _head: usize, _q: &[f32]) -> Option<Result<Vec<f32>, CacheError>> {
        None
    }

    /// Tokens in layer 0.
    fn len(&self) -> usize;

    /// Whether no token is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops every token of every layer from index `len` on; no effect on layers that are shorter.
    ///
    /// # Errors
    /// A cache with a sliding window may have lost tokens that the shorter sequence would see again.
    fn truncate(&mut self, len: usize) -> Result<(), CacheError>;

    /// Back to the empty cache.
    fn reset(&mut self);

    /// Bytes held for keys and values, spare capacity included.
    fn allocated_bytes(&self) -> usize;

    /// What encoding did to each KV head of each layer, layers in order; empty for a cache that does not keep
    /// count.
    fn head_stats(&self) -> Vec<HeadStats> {
        Vec::new()
    }
}

//! A step of many sequences: one call attends in several caches.

use super::{KvCache, PARALLEL_TOKENS};
use crate::error::CacheError;
use crate::threads;
use rayon::prelude::*;
use tqkv_core::KvShape;

impl KvCache {
    /// Attends in one layer of several caches, each with one query per head, at its newest position: `q` is
    /// `[caches, num_heads, head_dim]`, `out` `[caches, num_heads, value_dim]`. Results are those of
    /// [`KvCache::attend`] of each, to the bit. Caches may be of any length, and may share pages or be the
    /// same; heads and dims are alike in all.
    ///
    /// Cost: that of the calls one by one, divided among threads by cache as well as by head. It pays only
    /// where each sequence is too short for several threads: on two threads it took .95 to 1.04 of the time
    /// of single calls.
    ///
    /// # Errors
    /// A `q` or `out` of the wrong length; a query that is not finite, whose cache the text calls a token; or
    /// [`CacheError::Of`] with the index of a cache that has no token, no such layer, or other heads or dims
    /// than the first. Nothing is written then. A page that cannot be read back from a spill file is
    /// [`CacheError::Of`] as well, and leaves `out` written in part.
    pub fn attend_many(caches: &[&Self], layer: usize, q: &[f32], out: &mut [f32]) -> Result<(), CacheError> {
        // No query is what no cache answers.
        let shape =
            caches.first().map_or(KvShape::new(layer.saturating_add(1), 1, 1, 1), |first| first.spec.shape);
        shape.check_queries(layer, caches.len(), q, out)?;
        let of = |index: usize| move |error: CacheError| CacheError::Of { index, error: Box::new(error) };
        let mut work = 0;
        for (index, cache) in caches.iter().enumerate() {
            work += cache.work_of(shape, layer).map_err(of(index))?;
        }
        let each = |index: usize, cache: &Self, q: &[f32], out: &mut [f32]| {
            cache.attend(layer, q, out).map_err(of(index))
        };
        let (queries, outs) = (shape.query_values(), shape.out_values());
        if work < PARALLEL_TOKENS || !threads::several() {
            let parts = caches.iter().zip(q.chunks_exact(queries)).zip(out.chunks_exact_mut(outs));
            parts.enumerate().try_for_each(|(index, ((cache, q), out))| each(index, cache, q, out))
        } else {
            let parts =
                caches.par_iter().zip(q.par_chunks_exact(queries)).zip(out.par_chunks_exact_mut(outs));
            parts.enumerate().try_for_each(|(index, ((cache, q), out))| each(index, cache, q, out))
        }
    }

    /// Tokens of all heads of a layer; refuses what [`KvCache::attend`] would, and other heads than those of
    /// `shape`.
    fn work_of(&self, shape: KvShape, layer: usize) -> Result<usize, CacheError> {
        let own = self.spec.shape;
        if own != (KvShape { num_layers: own.num_layers, ..shape }) {
            return Err(CacheError::BadSpec(format!(
                "{own}; accepted are the heads and dims of cache 0: {shape}"
            )));
        }
        own.check_layer(layer)?;
        let heads = self.heads_with_tokens(layer)?;
        Ok(heads.len() * heads[0].len())
    }
}

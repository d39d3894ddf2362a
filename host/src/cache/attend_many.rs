//! One call that attends in several caches, for a step of many sequences.

use super::{Floats, KvCache, PARALLEL_TOKENS};
use crate::error::CacheError;
use crate::threads;
use rayon::prelude::*;
use tqkv_core::KvShape;
use tqkv_simd::Level;

impl KvCache {
    /// Attends in one layer of several caches, each with one query per head at its newest position. `q` is
    /// `[caches, num_heads, head_dim]`, `out` is `[caches, num_heads, value_dim]`. The results have the same
    /// bits as [`KvCache::attend`] in each cache. Heads and dims must be equal in all caches; lengths may
    /// differ. Caches may share pages, and one may appear twice.
    ///
    /// Cost: the same as single calls, divided among threads by cache as well as by head. It pays only if
    /// each sequence is too short for several threads. On two threads it took .95 to 1.04 of the time of
    /// single calls.
    ///
    /// # Errors
    /// * `q` or `out` has the wrong length.
    /// * A query is not finite; the message gives the index of its cache as the token.
    /// * A cache has no token, no such layer, or other heads or dims than the first one: [`CacheError::Of`]
    ///   with its index.
    /// * A page cannot be read back from a spill file: [`CacheError::Of`], and a part of `out` may be
    ///   written.
    ///
    /// In the other cases nothing is written.
    pub fn attend_many<'a>(
        caches: &[&Self],
        layer: usize,
        q: impl Into<Floats<'a>>,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        // Without caches, any shape with this layer accepts the empty query.
        let none = (KvShape::new(layer.saturating_add(1), 1, 1, 1), Level::Portable);
        let first = caches.first().map_or(none, |first| (first.spec.shape_at(layer), first.level()));
        let (q, shape) = (&*q.into().queries(first, layer, caches.len(), out.len())?, first.0);
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
            threads::share(|| {
                let parts =
                    caches.par_iter().zip(q.par_chunks_exact(queries)).zip(out.par_chunks_exact_mut(outs));
                parts.enumerate().try_for_each(|(index, ((cache, q), out))| each(index, cache, q, out))
            })
        }
    }

    /// Number of tokens in all heads of a layer. Refuses the same as [`KvCache::attend`], and heads or dims
    /// that differ from `shape`.
    fn work_of(&self, shape: KvShape, layer: usize) -> Result<usize, CacheError> {
        let own = self.spec.shape_at(layer);
        if own != (KvShape { num_layers: own.num_layers, ..shape }) {
            return Err(CacheError::BadSpec(format!(
                "{own}: expected the heads and dims of cache 0, {shape}"
            )));
        }
        own.check_layer(layer)?;
        let heads = self.heads_with_tokens(layer)?;
        Ok(heads.len() * heads[0].len())
    }
}

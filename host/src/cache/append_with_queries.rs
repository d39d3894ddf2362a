//! Queries that teach a map of keys where the program attends itself.

use super::vectors::Floats;
use super::{KvCache, gather};
use crate::error::CacheError;
use tqkv_core::KvError;

impl KvCache {
    /// Number of tokens from the end of a layer on whose queries teach a map of keys
    /// ([`CacheSpec::key_map`](super::CacheSpec::key_map)). 0 for a layer that has its map, or gets none.
    ///
    /// # Errors
    /// The layer is out of range.
    pub fn wanted_queries(&self, layer: usize) -> Result<usize, CacheError> {
        self.spec.shape.check_layer(layer)?;
        let heads = self.layers[layer].heads.iter();
        Ok(heads.map(|head| head.keys.taught_to(head.len())).max().unwrap_or(0))
    }

    /// Same as [`KvCache::append`], for a program that attends to these tokens itself. `q`, `[m, num_heads,
    /// head_dim]`, are the queries of the first m of the n tokens. A map of keys is learnt from queries, so
    /// keys that are only appended never get one. Those past [`KvCache::wanted_queries`] have no effect.
    ///
    /// # Errors
    /// Those of [`KvCache::append`]. The queries are not complete tokens, are of more tokens than `k`, or are
    /// not finite.
    pub fn append_with_queries<'q, 'a>(
        &mut self,
        layer: usize,
        q: impl Into<Floats<'q>>,
        k: impl Into<Floats<'a>>,
        v: impl Into<Floats<'a>>,
    ) -> Result<(), CacheError> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let n = self.spec.check_tokens(layer, k, v)?;
        let shape = self.spec.shape_at(layer);
        let width = shape.num_heads * shape.head_dim;
        if !q.len().is_multiple_of(width) || q.len() > n * width {
            let expected = (q.len() / width).min(n) * width;
            return Err(KvError::Length { what: "q", got: q.len(), expected }.into());
        }
        let taught = self.wanted_queries(layer)?.min(q.len() / width);
        let q = &*q.part(0, taught * width).finite((shape, self.level()), layer, 0)?;
        let group = shape.group() * shape.head_dim;
        self.take_up(layer, n, k, v, false, |head, i, k, v, scratch| {
            let first = head.len();
            let q = gather(q, i, shape.num_kv_heads, group)?;
            for (i, q) in q.chunks_exact(group).enumerate() {
                head.keys.see_queries(first + i, q)?;
            }
            head.push(k, v, scratch)
        })
    }
}

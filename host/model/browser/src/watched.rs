//! A cache that says how much it holds while a model uses it.

use std::cell::Cell;
use std::rc::Rc;

use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::cache::KvCache;
use tqkv::error::CacheError;

/// A cache, and the bytes and tokens that it held after the newest chunk of the last layer.
pub(crate) struct Watched {
    cache: KvCache,
    held: Rc<Cell<(usize, usize)>>,
}

impl Watched {
    pub(crate) fn new(cache: KvCache) -> Self {
        Self { cache, held: Rc::default() }
    }

    /// Bytes and tokens, which follow the cache.
    pub(crate) fn held(&self) -> Rc<Cell<(usize, usize)>> {
        Rc::clone(&self.held)
    }
}

impl AttentionCache for Watched {
    fn shape(&self) -> KvShape {
        self.cache.shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.cache.attend_chunk(layer, q, k, v, out)?;
        if layer + 1 == self.shape().num_layers {
            self.held.set((self.allocated_bytes(), self.len()));
        }
        Ok(())
    }

    fn len(&self) -> usize {
        AttentionCache::len(&self.cache)
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.cache.truncate(len)
    }

    fn reset(&mut self) {
        self.cache.reset();
    }

    fn allocated_bytes(&self) -> usize {
        self.cache.allocated_bytes()
    }
}

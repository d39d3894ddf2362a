//! The cache of a model on an NVIDIA GPU: [`tqkv_gpu::GpuCache`] behind the interface of the model runner.
//!
//! Only keys, values and attention are on the device. Queries and results cross the bus once per layer and
//! token, so it pays for long contexts. There is no centring, and there are no tiers. Where these are needed, or
//! without a GPU, use [`crate::cache::KvCache`].

use crate::attention::AttentionCache;
use crate::cache::LayerKind;
use crate::error::CacheError;
use tqkv_core::{Chunk, KvShape};
use tqkv_gpu::{Device, GpuCache, GpuError, GpuSpec};

/// One sequence on a GPU.
#[derive(Debug)]
pub struct CudaCache {
    cache: GpuCache,
    /// The narrowest window of a layer.
    window: Option<usize>,
}

impl CudaCache {
    /// Makes an empty cache of one sequence, and allocates all of its device memory.
    ///
    /// `kinds` says which tokens the layers of the model see; it may be empty. Every query sees every token
    /// here, so a sequence may be as long as the narrowest window and no longer. Longer sequences are
    /// refused.
    ///
    /// # Errors
    /// [`CacheError::Gpu`]: a shape without kernels, too little memory, or an error of the driver.
    pub fn new(device: &Device, spec: GpuSpec, kinds: &[LayerKind]) -> Result<Self, CacheError> {
        let windows = kinds.iter().filter_map(|kind| match kind {
            LayerKind::Sliding(window) => Some(*window),
            LayerKind::Full | LayerKind::None => None,
        });
        let mut spec = spec;
        spec.num_sequences = 1;
        let window = windows.min().filter(|window| *window < spec.max_tokens);
        if let Some(window) = window {
            spec.max_tokens = window;
            spec.pool_tokens = spec.pool_tokens.min(window);
        }
        Ok(Self { cache: GpuCache::new(device, spec)?, window })
    }

    /// Adds the reason to the error if a sequence is full because of a window.
    fn explain(&self, error: GpuError) -> CacheError {
        match (self.window, error) {
            (Some(window), GpuError::SequenceFull { .. }) => CacheError::BadSpec(format!(
                "a layer sees the newest {window} tokens, and a cache on a GPU has no windows: \
                 expected a sequence of at most {window} tokens, or a cache in main memory"
            )),
            (_, error) => error.into(),
        }
    }
}

impl AttentionCache for CudaCache {
    fn shape(&self) -> KvShape {
        self.cache.spec().shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let mut chunk = Chunk::new(self.shape(), layer, q, k, v, out)?;
        self.cache.attend_chunk(layer, 0, q, k, v, chunk.out()).map_err(|error| self.explain(error))
    }

    fn len(&self) -> usize {
        self.cache.len(0)
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        Ok(self.cache.truncate(0, len)?)
    }

    fn reset(&mut self) {
        self.cache.reset();
    }

    /// Bytes of the pages in use and of the exact tokens. The pool is larger.
    fn allocated_bytes(&self) -> usize {
        let stats = self.cache.stats();
        stats.pool_bytes / stats.pages * stats.pages_used + stats.exact_bytes
    }
}

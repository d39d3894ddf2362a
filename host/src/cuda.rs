//! A model's cache on an NVIDIA GPU: [`tqkv_gpu::GpuCache`] behind the seam that the model runner knows.
//!
//! Only keys, values and attention live on the device; queries and results cross the bus once a layer and
//! token, so it pays from long contexts on. Every token is encoded as it is appended: there are no sinks, no
//! uncompressed window and no centring. For those, and without a GPU, use [`crate::cache::KvCache`].

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
    /// An empty cache of one sequence; takes its device memory at once.
    ///
    /// # Errors
    /// [`CacheError::Gpu`]: a shape without kernels, too little memory, or what the driver reports.
    pub fn new(device: &Device, spec: GpuSpec) -> Result<Self, CacheError> {
        Self::with_kinds(device, spec, &[])
    }

    /// The same for a model whose layers see what `kinds` says. Every query sees every token here, so a
    /// sequence may only be as long as the narrowest window, within which that makes no difference; what
    /// would be longer is refused.
    ///
    /// # Errors
    /// As [`CudaCache::new`].
    pub fn with_kinds(device: &Device, spec: GpuSpec, kinds: &[LayerKind]) -> Result<Self, CacheError> {
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

    /// A sequence that is full because of a window says so.
    fn explain(&self, error: GpuError) -> CacheError {
        match (self.window, error) {
            (Some(window), GpuError::SequenceFull { .. }) => CacheError::BadSpec(format!(
                "a layer sees the newest {window} tokens, and a cache on a GPU has no windows; \
                 accepted are sequences of up to {window} tokens, or a cache in main memory"
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

    /// Bytes of the pages in use; the pool that they are taken from is larger.
    fn allocated_bytes(&self) -> usize {
        let stats = self.cache.stats();
        stats.pool_bytes / stats.pages * stats.pages_used
    }
}

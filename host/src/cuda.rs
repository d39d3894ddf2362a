//! A model's cache on an NVIDIA GPU: [`tqkv_gpu::GpuCache`] behind the seam that the model runner knows.
//!
//! Only keys, values and attention live on the device; queries and results cross the bus once a layer and
//! token, so it pays from long contexts on. Every token is encoded as it is appended: there are no sinks, no
//! uncompressed window and no centring. For those, and without a GPU, use [`crate::cache::KvCache`].

use crate::attention::AttentionCache;
use crate::error::CacheError;
use tqkv_core::{Chunk, KvShape};
use tqkv_gpu::{Device, GpuCache, GpuSpec};

/// One sequence on a GPU.
#[derive(Debug)]
pub struct CudaCache(GpuCache);

impl CudaCache {
    /// An empty cache of one sequence; takes its device memory at once.
    ///
    /// # Errors
    /// [`CacheError::Gpu`]: a shape without kernels, too little memory, or what the driver reports.
    pub fn new(device: &Device, spec: GpuSpec) -> Result<Self, CacheError> {
        let mut spec = spec;
        spec.num_sequences = 1;
        Ok(Self(GpuCache::new(device, spec)?))
    }
}

impl AttentionCache for CudaCache {
    fn shape(&self) -> KvShape {
        self.0.spec().shape()
    }

    fn attend_checked(&mut self, mut chunk: Chunk<'_>) -> Result<(), CacheError> {
        let (layer, q, k, v) = (chunk.layer(), chunk.q(), chunk.k(), chunk.v());
        Ok(self.0.attend_chunk(layer, 0, q, k, v, chunk.out())?)
    }

    fn len(&self) -> usize {
        self.0.len(0)
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        Ok(self.0.truncate(0, len)?)
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    /// Bytes of the pages in use; the pool that they are taken from is larger.
    fn allocated_bytes(&self) -> usize {
        let stats = self.0.stats();
        stats.pool_bytes / stats.pages * stats.pages_used
    }
}

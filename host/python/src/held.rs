//! A cache that threads share.
//!
//! A lock makes calls from any threads safe in any order. Calls that read share it, and calls that change the
//! cache hold it alone. It is taken after the interpreter is released, so two threads never wait for each
//! other.

use crate::errors::{Failure, refused};
use crate::pool;
use pyo3::Python;
use std::sync::RwLock;
use tqkv::KvShape;
use tqkv::cache::CacheSpec;

/// A cache of any kind, and the shapes of its layers.
pub(crate) struct Held<C> {
    cache: RwLock<C>,
    shapes: Box<[KvShape]>,
}

impl<C: Send + Sync> Held<C> {
    /// Holds a cache with the spec that `spec` takes from it.
    pub(crate) fn new(cache: C, spec: impl Fn(&C) -> &CacheSpec) -> Self {
        let of_layers = spec(&cache);
        let shapes = (0..of_layers.shape.num_layers).map(|layer| of_layers.shape_at(layer)).collect();
        Self { shapes, cache: RwLock::new(cache) }
    }

    /// The shape of a layer. A layer that is not there has that of the first; the cache refuses it.
    pub(crate) fn shape(&self, layer: usize) -> KvShape {
        self.shapes.get(layer).or(self.shapes.first()).copied().unwrap_or(KvShape::new(1, 1, 1, 1))
    }

    /// Reads the cache with the interpreter released.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&C) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        pool::start()?;
        py.detach(|| work(&*self.cache.read().map_err(|_| broken())?))
    }

    /// Changes the cache with the interpreter released.
    pub(crate) fn with_mut<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut C) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        pool::start()?;
        py.detach(|| work(&mut *self.cache.write().map_err(|_| broken())?))
    }
}

/// The error of a lock whose holder panicked.
pub(crate) fn broken() -> Failure {
    refused("an earlier call on this cache failed inside the library: it cannot be used any more")
}

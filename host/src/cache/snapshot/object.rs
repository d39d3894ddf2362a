//! Snapshots as objects of a store.

use crate::cache::KvCache;
use crate::error::CacheError;
use crate::file::put_object;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

impl KvCache {
    /// Writes a snapshot to an object, which appears complete or not at all. The snapshot is in memory
    /// meanwhile. See [`KvCache::snapshot`].
    ///
    /// # Errors
    /// The same as [`KvCache::snapshot`], or an error of the store. An object that was there before stays
    /// then.
    pub async fn save_object(&self, store: &dyn ObjectStore, path: &Path) -> Result<(), CacheError> {
        let mut bytes = Vec::new();
        self.snapshot(&mut bytes)?;
        put_object(store, path, bytes).await.map_err(|error| failed(path, &error))
    }

    /// Reads the cache that [`KvCache::save_object`] wrote. The snapshot is in memory meanwhile. See
    /// [`KvCache::load`].
    ///
    /// # Errors
    /// The same as [`KvCache::load`], or an error of the store.
    pub async fn load_object(store: &dyn ObjectStore, path: &Path) -> Result<Self, CacheError> {
        Self::from_snapshot(&mut read(store, path).await?.as_ref())
    }

    /// Restores from an object. The snapshot is in memory meanwhile. See [`KvCache::restore`].
    ///
    /// # Errors
    /// The same as [`KvCache::restore`], or an error of the store.
    pub async fn restore_object(&mut self, store: &dyn ObjectStore, path: &Path) -> Result<(), CacheError> {
        self.restore(&mut read(store, path).await?.as_ref())
    }
}

async fn read(store: &dyn ObjectStore, path: &Path) -> Result<impl AsRef<[u8]>, CacheError> {
    let found = store.get(path).await.map_err(|error| failed(path, &error))?;
    found.bytes().await.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &dyn std::error::Error) -> CacheError {
    CacheError::Snapshot(format!("{path}: {error}"))
}

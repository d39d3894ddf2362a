//! Caches that always get the same tokens.

pub(crate) mod exact;
pub(crate) mod model;
pub(crate) mod truth;
pub(crate) mod world;

use tqkv::cache::{CacheSpec, Centring, KvCache};
use tqkv_core::CodecId;
use tqkv_tests::inputs::Gaussian;

pub(crate) const DIM: usize = 32;
pub(crate) const HEADS: usize = 2;

pub(crate) fn base() -> CacheSpec {
    CacheSpec::new(1, HEADS, 1, DIM).codecs(CodecId::N4, CodecId::N4).hot(16).sinks(4).centring(Centring::On)
}

/// Tokens `from..to` of a sequence, which are always the same. Keys and values have a mean.
pub(crate) fn tokens(seed: u64, from: usize, to: usize) -> (Vec<f32>, Vec<f32>) {
    let mut rows = (Vec::new(), Vec::new());
    for i in from..to {
        let mut gaussian = Gaussian::new(seed << 32 | i as u64);
        rows.0.extend(gaussian.vector(DIM).iter().enumerate().map(|(i, x)| x + (i % 3) as f32));
        rows.1.extend(gaussian.vector(DIM).iter().enumerate().map(|(i, x)| x + 0.75 * (i % 4) as f32));
    }
    rows
}

pub(crate) fn append(cache: &mut KvCache, seed: u64, to: usize) {
    let (k, v) = tokens(seed, cache.len(), to);
    cache.append(0, &k, &v).unwrap();
}

pub(crate) fn filled(spec: CacheSpec, to: usize) -> KvCache {
    let mut cache = KvCache::new(spec).unwrap();
    for i in 0..to {
        append(&mut cache, 1, i + 1);
    }
    cache
}

pub(crate) fn snapshot(cache: &KvCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.snapshot(&mut bytes).unwrap();
    bytes
}

//! How long one attention step over a long cache takes: the speed column of `tqkv demo`.

use std::time::Instant;

use crate::policy::Policy;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use tqkv::cache::{CacheSpec, KvCache};
use tqkv::error::CacheError;
use tqkv_core::{Effort, Options};

/// Tokens of the synthetic cache.
pub(crate) const TOKENS: usize = 32 << 10;
/// Of a layer of a model of about 8 billion parameters.
const NUM_HEADS: usize = 32;
const NUM_KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// Tokens appended at once.
const CHUNK: usize = 512;
/// Steps timed; the fastest counts.
const STEPS: usize = 40;

/// Milliseconds of attention of one token over one layer's cache of [`TOKENS`] random tokens, on all
/// threads.
pub(crate) fn step_milliseconds(policy: &Policy) -> Result<f64, CacheError> {
    // How well the codes were searched for does not change how fast they are read.
    let options = Options::DEFAULT.effort(Effort::Fast);
    let spec = policy.apply(CacheSpec::new(1, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM)).options(options);
    let mut cache = KvCache::new(spec)?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut normals = |n: usize| -> Vec<f32> { (0..n).map(|_| StandardNormal.sample(&mut random)).collect() };
    let (k, v) = (normals(CHUNK * NUM_KV_HEADS * HEAD_DIM), normals(CHUNK * NUM_KV_HEADS * HEAD_DIM));
    for _ in 0..TOKENS / CHUNK {
        cache.append(0, &k, &v)?;
    }
    let q = normals(NUM_HEADS * HEAD_DIM);
    let mut out = vec![0.0; q.len()];
    let mut best = f64::INFINITY;
    for _ in 0..STEPS {
        let start = Instant::now();
        cache.attend(0, &q, &mut out)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best * 1e3)
}

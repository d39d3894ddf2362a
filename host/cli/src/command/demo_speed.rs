//! Time of one attention step over a long cache, for the speed columns of `tqkv demo`.

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
/// Heads of a layer in a model of about 8 billion parameters.
const NUM_HEADS: usize = 32;
const NUM_KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// Tokens per append.
const CHUNK: usize = 512;
/// Timed rounds, with one step of each cache per round.
const ROUNDS: usize = 40;

/// Limit of the median over the smallest time, the same as in `tqkv bench`. Beyond it, another program ran on
/// the machine.
pub const WIDEST_SPREAD: f64 = 1.5;

/// Times of a step under one setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Smallest time, in milliseconds.
    min: f64,
    /// Median over the smallest time.
    pub(crate) spread: f64,
}

impl Timing {
    /// Takes one or more times in seconds.
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self { min: 1e3 * seconds[0], spread: seconds[seconds.len() / 2] / seconds[0] }
    }

    /// The smallest time in milliseconds; `None` if the times differ too much to mean anything.
    pub(crate) fn milliseconds(&self) -> Option<f64> {
        (self.spread <= WIDEST_SPREAD).then_some(self.min)
    }
}

/// Times attention of one token over one layer with [`TOKENS`] random tokens, on all threads. The settings
/// take turns, so that other programs on the machine slow all of them alike.
pub(crate) fn time(policies: &[Policy], on_round: &mut dyn FnMut()) -> Result<Vec<Timing>, CacheError> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut normals = |n: usize| -> Vec<f32> { (0..n).map(|_| StandardNormal.sample(&mut random)).collect() };
    let (k, v) = (normals(CHUNK * NUM_KV_HEADS * HEAD_DIM), normals(CHUNK * NUM_KV_HEADS * HEAD_DIM));
    let q = normals(NUM_HEADS * HEAD_DIM);
    let mut caches = policies.iter().map(|policy| filled(policy, &k, &v)).collect::<Result<Vec<_>, _>>()?;
    let (mut times, mut out) = (vec![Vec::with_capacity(ROUNDS); caches.len()], vec![0.0; q.len()]);
    for _ in 0..ROUNDS {
        for (cache, times) in caches.iter_mut().zip(&mut times) {
            let start = Instant::now();
            cache.attend(0, &q, &mut out)?;
            times.push(start.elapsed().as_secs_f64());
        }
        on_round();
    }
    Ok(times.into_iter().map(Timing::of).collect())
}

/// A cache of [`TOKENS`] tokens, which repeats the given ones.
fn filled(policy: &Policy, k: &[f32], v: &[f32]) -> Result<KvCache, CacheError> {
    // Search effort changes the codes but not the speed of reading them.
    let options = Options::DEFAULT.effort(Effort::Fast);
    let spec = policy.apply(CacheSpec::new(1, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM)).options(options);
    let mut cache = KvCache::new(spec)?;
    (0..TOKENS / CHUNK).try_for_each(|_| cache.append(0, k, v))?;
    Ok(cache)
}

/// Number of rounds that [`time`] reports.
pub(crate) const fn rounds() -> u64 {
    ROUNDS as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_too_far_apart_are_withheld() {
        let quiet = Timing::of(vec![0.003, 0.002, 0.0025]);
        assert_eq!((quiet.milliseconds(), quiet.spread), (Some(2.0), 1.25));
        let busy = Timing::of(vec![0.002, 0.0031, 0.009]);
        assert_eq!(busy.milliseconds(), None);
    }
}

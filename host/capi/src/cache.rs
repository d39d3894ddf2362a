//! The cache behind a handle.
//!
//! A handle is a lock around a [`KvCache`]. Calls that read share the lock, and calls that change the cache
//! hold it alone. So calls of any number of threads make no data race. A panic in a call that changes the
//! cache poisons the lock, and the cache is never read again. The program must ensure two things. Pointers
//! are good for their lengths, and a handle is freed once, after its last call.

use crate::budget::TqkvBudget;
use crate::error::{Failure, TqkvStatus};
use crate::floats::{Room, room, values};
use crate::pointer::{self, Call};
use crate::spec;
use std::ffi::{c_char, c_void};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tqkv::cache::KvCache;

/// A KV cache of one sequence.
#[derive(Debug)]
pub struct TqkvCache {
    cache: RwLock<KvCache>,
}

/// Tokens by tier, and allocated bytes. Token counts are of the first KV head that keeps any. Bytes are of
/// the whole cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvCacheStats {
    /// Tokens that were appended and not truncated, evicted ones included.
    pub tokens: usize,
    /// First tokens, in f16.
    pub sinks: usize,
    /// Values in the hot window, in f16.
    pub hot: usize,
    /// Keys beyond the hot window that wait for their mean, in f16.
    pub waiting_keys: usize,
    /// Values in warm pages.
    pub warm: usize,
    /// Values in cold tiers.
    pub cold: usize,
    /// Values evicted because they left the sliding window.
    pub evicted: usize,
    /// KV heads, over all layers, whose keys are centred.
    pub centred_heads: usize,
    /// KV heads, over all layers, whose keys go through a map.
    pub mapped_heads: usize,
    /// Bytes allocated for keys and values, spare capacity included. Memory shared with forks counts in full.
    pub allocated_bytes: usize,
    /// Bytes in the file of the cold tier.
    pub spilled_bytes: usize,
    /// Bytes of allocated_bytes that forks share.
    pub shared_bytes: usize,
}

impl TqkvCache {
    pub(crate) fn new(cache: KvCache) -> Self {
        Self { cache: RwLock::new(cache) }
    }

    /// Runs `work` on the cache under a lock for reading.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&KvCache) -> Result<R, Failure>) -> Result<R, Failure> {
        work(&*self.read()?)
    }

    /// Runs `work` on the cache under a lock for writing.
    pub(crate) fn with_mut<R>(
        &self,
        work: impl FnOnce(&mut KvCache) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        work(&mut *self.write()?)
    }

    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, KvCache>, Failure> {
        self.cache.read().map_err(|_| broken())
    }

    pub(crate) fn write(&self) -> Result<RwLockWriteGuard<'_, KvCache>, Failure> {
        self.cache.write().map_err(|_| broken())
    }
}

pub(crate) fn broken() -> Failure {
    Failure::new(TqkvStatus::TqkvPanic, "an earlier call left the cache half changed: free it")
}

/// Makes an empty cache of a text, which has the shape, and every option that differs from the defaults:
///
/// "layers=32 heads=32 kv-heads=8 head-dim=128 t4,t2 hot=32 last:i8 tier=4096:t2"
///
/// docs/options.md lists the words. Without a codec, keys and values are s4. On failure `*cache` is null, and
/// `tqkv_last_error` says what is accepted. The first cache of a process starts its threads.
/// `tqkv_set_threads` or RAYON_NUM_THREADS sets their number; the default is one per processor. A child of
/// `fork` has none of these threads and cannot use caches: make the first cache in the child.
///
/// # Safety
/// `spec` is null or ends with a zero. `cache` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_create(spec: *const c_char, cache: *mut *mut TqkvCache) -> TqkvStatus {
    // SAFETY: `spec` is text and `cache` has room for a handle, by the contract of this call.
    unsafe { Call::new() }
        .run(|call| call.give("cache", cache, || Ok(TqkvCache::new(KvCache::new(spec::read(call, spec)?)?))))
}

/// Makes an empty cache whose keys and values count against a budget. A call that needs more than is free
/// returns TQKV_NO_BUDGET and changes nothing. Otherwise see `tqkv_create`.
///
/// # Safety
/// The contract of `tqkv_create`. `budget` is null or a budget that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_create_within(
    spec: *const c_char,
    budget: *const TqkvBudget,
    cache: *mut *mut TqkvCache,
) -> TqkvStatus {
    // SAFETY: `spec` is text, `budget` is a budget and `cache` has room for a handle, by the contract of this
    // call.
    unsafe { Call::new() }.run(|call| {
        call.give("cache", cache, || {
            let (spec, budget) = (spec::read(call, spec)?, call.handle("budget", budget)?);
            Ok(TqkvCache::new(KvCache::within(spec, budget.get())?))
        })
    })
}

/// Sets the learned sinks of a cache that holds no tokens: `logits` is [layers, heads], and each takes weight
/// and adds no value. A text can say them as well (`sink-logits=`); this call takes the array of a model.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `logits` is null or points to `len` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_set_sink_logits(
    cache: *mut TqkvCache,
    logits: *const f32,
    len: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `logits` has `len` values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, given) = (call.handle("cache", cache)?, call.slice("logits", logits, len)?);
        let mut cache = cache.write()?;
        if !cache.is_empty() {
            return Err(Failure::argument(format!(
                "the cache holds {} tokens: expected sink logits before the first token",
                cache.len()
            )));
        }
        let mut logits = room(len)?;
        logits.extend_from_slice(given);
        *cache = KvCache::within(cache.spec().clone().sink_logits(logits), cache.budget())?;
        Ok(())
    })
}

/// Makes another cache with the same tokens and budget. Pages are shared until one of the two writes to them,
/// so a fork costs a few pointers per page. Each cache is freed on its own. On failure `*fork` is null.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `fork` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_fork(cache: *const TqkvCache, fork: *mut *mut TqkvCache) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `fork` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("fork", fork, || Ok(TqkvCache::new(call.handle("cache", cache)?.read()?.fork()?)))
    })
}

/// Frees a cache; null is accepted. Its forks keep the shared pages.
///
/// # Safety
/// `cache` is null or a handle from `tqkv_create`, `tqkv_create_within` or `tqkv_fork` that is not freed and
/// that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_free(cache: *mut TqkvCache) {
    // SAFETY: a call of this file made it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(cache) }
}

/// Appends tokens to one layer. `k` is [tokens, num_kv_heads, head_dim] of a `tqkv_dtype`, after RoPE. `v` is
/// [tokens, num_kv_heads, value_dim]. `k_values` and `v_values` are the numbers of values. If the call fails,
/// the cache is unchanged.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `k` and `v` are null or point to the passed number of
/// values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_append(
    cache: *mut TqkvCache,
    layer: usize,
    dtype: u32,
    k: *const c_void,
    k_values: usize,
    v: *const c_void,
    v_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and `k` and `v` have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let k = values(call, "k", dtype, (k, k_values))?;
        let v = values(call, "v", dtype, (v, v_values))?;
        Ok(cache.write()?.append(layer, k, v)?)
    })
}

/// Decodes the keys of tokens `start` to `end` (not included) of one KV head, as the cache holds them. `out`
/// is [end - start, head_dim] of a `tqkv_dtype`. Tokens that are gone return TQKV_EVICTED. Attention does not
/// need this call; it serves engines that must have decoded keys.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `out` is null or points to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_keys(
    cache: *const TqkvCache,
    layer: usize,
    kv_head: usize,
    start: usize,
    end: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `out` has room for its values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?.read()?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        check_rows(start, end, cache.spec().shape_at(layer).head_dim, out.len())?;
        write_rows(out, &cache.keys(layer, kv_head, start..end)?)
    })
}

/// Decodes values: `out` is [end - start, value_dim]. Otherwise see `tqkv_keys`.
///
/// # Safety
/// The contract of `tqkv_keys`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_values(
    cache: *const TqkvCache,
    layer: usize,
    kv_head: usize,
    start: usize,
    end: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `out` has room for its values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?.read()?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        check_rows(start, end, cache.spec().shape_at(layer).value_dim, out.len())?;
        write_rows(out, &cache.values(layer, kv_head, start..end)?)
    })
}

fn write_rows(out: Room<'_>, rows: &[f32]) -> Result<(), Failure> {
    out.fill(|out| {
        out.copy_from_slice(rows);
        Ok(())
    })
}

/// Refuses an `out` of the wrong length before any token is decoded.
fn check_rows(start: usize, end: usize, dim: usize, values: usize) -> Result<(), Failure> {
    let tokens = end.checked_sub(start);
    let tokens = tokens
        .ok_or_else(|| Failure::argument(format!("tokens {start} to {end}: the end is before the start")))?;
    if tokens.checked_mul(dim) == Some(values) {
        return Ok(());
    }
    Err(Failure::argument(format!("out has {values} values, expected {tokens} tokens of {dim} values")))
}

/// Drops the tokens from index `len` on, in every layer; a shorter layer stays as it is, and a `len` beyond
/// all of them drops nothing: compare it with `tqkv_len` where that would be a fault. With a sliding
/// window, the shorter sequence may see evicted tokens. The call returns TQKV_EVICTED then, and drops
/// nothing. The newest 256 tokens can always be dropped. They count from the greatest length since the cache
/// was made or reset, not from the present length.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_truncate(cache: *mut TqkvCache, len: usize) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { Call::new() }.run(|call| Ok(call.handle("cache", cache)?.write()?.truncate(len)?))
}

/// Empties the cache.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_reset(cache: *mut TqkvCache) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.handle("cache", cache)?.write()?.reset();
        Ok(())
    })
}

/// Writes the number of tokens in the first layer that keeps any, evicted ones included.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `len` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_len(cache: *const TqkvCache, len: *mut usize) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `len` has room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let place = call.place("len", len)?;
        place.write(cache.read()?.len());
        Ok(())
    })
}

/// Writes token counts by tier, and bytes.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `stats` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_stats(cache: *const TqkvCache, stats: *mut TqkvCacheStats) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `stats` can be written, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let place = call.place("stats", stats)?;
        let found = call.handle("cache", cache)?.read()?.stats();
        let found = TqkvCacheStats {
            tokens: found.tokens,
            sinks: found.sinks,
            hot: found.hot,
            waiting_keys: found.waiting_keys,
            warm: found.warm,
            cold: found.cold,
            evicted: found.evicted,
            centred_heads: found.centred_heads,
            mapped_heads: found.mapped_heads,
            allocated_bytes: found.allocated_bytes,
            spilled_bytes: found.spilled_bytes,
            shared_bytes: found.shared_bytes,
        };
        place.write(found);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::guard;
    use tqkv::cache::CacheSpec;

    #[test]
    fn what_a_panic_left_half_changed_is_refused_until_it_is_freed() {
        let cache =
            Box::into_raw(Box::new(TqkvCache::new(KvCache::new(CacheSpec::new(1, 1, 1, 64)).unwrap())));
        // SAFETY: the cache was made above, and is freed at the end.
        let shared = unsafe { &*cache };
        let status = guard(|| {
            let _state = shared.write()?;
            panic!("half way");
        });
        assert_eq!(status, TqkvStatus::TqkvPanic);
        let mut len = 7;
        // SAFETY: the cache is not freed yet, and the place can be written.
        unsafe {
            assert_eq!(tqkv_len(cache, &raw mut len), TqkvStatus::TqkvPanic);
            assert_eq!(tqkv_reset(cache), TqkvStatus::TqkvPanic);
            assert_eq!(len, 7);
            tqkv_free(cache);
        }
    }
}

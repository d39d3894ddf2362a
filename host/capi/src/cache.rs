//! The cache behind a handle.
//!
//! A handle is a lock around a [`KvCache`]: calls that read share it, calls that change it have it alone, so no order of
//! calls of any number of threads makes a data race. A panic in a call that changes the cache leaves the lock poisoned, and
//! what may be half done is never read again. What remains of the program: pointers are good for their lengths, and a
//! handle is freed once, after its last call.

use crate::budget::TqkvBudget;
use crate::error::{Failure, TqkvStatus, guard, guard_quietly};
use crate::floats::{Room, Values};
use crate::pointer::{self, Out};
use crate::spec::TqkvSpec;
use std::ffi::c_void;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tqkv::cache::KvCache;
use tqkv::error::CacheError;

/// A KV cache of one sequence.
#[derive(Debug)]
pub struct TqkvCache {
    cache: RwLock<KvCache>,
}

/// Tokens by tier and bytes as allocated. Token counts are of the first KV head that there is, bytes of the whole cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvCacheStats {
    /// Tokens appended and not truncated, evicted ones included.
    pub tokens: usize,
    /// First tokens, f16.
    pub sinks: usize,
    /// Values in the hot window, f16.
    pub hot: usize,
    /// Keys beyond the hot window that wait for their mean, f16.
    pub waiting_keys: usize,
    /// Encoded values.
    pub warm: usize,
    /// Values in cold tiers.
    pub cold: usize,
    /// Values evicted behind the sliding window.
    pub evicted: usize,
    /// KV heads, over all layers, whose keys are centred.
    pub centred_heads: usize,
    /// Bytes of memory held for keys and values, spare capacity included; what is shared with forks counts whole.
    pub allocated_bytes: usize,
    /// Bytes in the file of the cold tier.
    pub spilled_bytes: usize,
    /// Bytes of allocated_bytes that forks use as well.
    pub shared_bytes: usize,
}

/// Bytes of the struct in its first version. WARNING: programs were compiled with it; fields are added, this stays.
const FIRST_STATS_SIZE: usize = 10 * size_of::<usize>();

impl TqkvCache {
    fn new(cache: KvCache) -> Self {
        Self { cache: RwLock::new(cache) }
    }

    /// The cache of a call that reads it.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&KvCache) -> Result<R, Failure>) -> Result<R, Failure> {
        work(&*self.read()?)
    }

    /// The cache of a call that changes it.
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

/// Makes an empty cache. On failure `*cache` is null. The first cache of a process starts its threads: as many as
/// `tqkv_set_threads` or RAYON_NUM_THREADS says, or as there are processors; a child of `fork` has none of them and makes no
/// use of a cache.
///
/// # Safety
/// `spec` is null or was filled by `tqkv_spec_init`; `cache` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_create(spec: *const TqkvSpec, cache: *mut *mut TqkvCache) -> TqkvStatus {
    guard(|| {
        let place = Out::new("cache", cache, 1)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promise: init wrote the size and a null folder, which the program replaced by text.
        let spec = unsafe { TqkvSpec::read(spec) }?;
        let made = Box::new(TqkvCache::new(KvCache::new(spec)?));
        // SAFETY: the caller's promise.
        unsafe { place.write(Box::into_raw(made)) };
        Ok(())
    })
}

/// As `tqkv_create`, with keys and values that count in a budget: calls that need more of it than is free end with
/// TQKV_NO_BUDGET and change nothing.
///
/// # Safety
/// As `tqkv_create`; `budget` is null or a budget that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_create_within(
    spec: *const TqkvSpec,
    budget: *const TqkvBudget,
    cache: *mut *mut TqkvCache,
) -> TqkvStatus {
    guard(|| {
        let place = Out::new("cache", cache, 1)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promises; a budget changes by atomic counters only.
        let (spec, budget) = unsafe { (TqkvSpec::read(spec)?, pointer::handle("budget", budget)?) };
        let made = Box::new(TqkvCache::new(KvCache::within(spec, budget.get())?));
        // SAFETY: the caller's promise.
        unsafe { place.write(Box::into_raw(made)) };
        Ok(())
    })
}

/// Makes another cache with the same tokens and budget: pages are shared until one of the two writes to them, so this costs
/// a few pointers a page. Both are freed. On failure `*fork` is null.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `fork` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_fork(cache: *const TqkvCache, fork: *mut *mut TqkvCache) -> TqkvStatus {
    guard(|| {
        let place = Out::new("fork", fork, 1)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promise; the handle changes under its lock only.
        let cache = unsafe { pointer::handle("cache", cache) }?;
        let made = Box::new(TqkvCache::new(cache.with(|cache| Ok(cache.fork()?))?));
        // SAFETY: the caller's promise.
        unsafe { place.write(Box::into_raw(made)) };
        Ok(())
    })
}

/// Frees a cache; null is accepted. Pages that it shares with forks stay theirs.
///
/// # Safety
/// `cache` is null or came from `tqkv_create`, `tqkv_create_within` or `tqkv_fork`, was not freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_free(cache: *mut TqkvCache) {
    if !cache.is_null() {
        // SAFETY: made by `Box::into_raw`, and freed once, by the caller's promise.
        guard_quietly((), || drop(unsafe { Box::from_raw(cache) }));
    }
}

/// Appends tokens to one layer. `k` is [tokens, num_kv_heads, head_dim] of a `tqkv_dtype`, after RoPE, `v`
/// [tokens, num_kv_heads, value_dim]; `k_values` and `v_values` say how many values each holds. What is refused leaves
/// the cache as it was.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `k` and `v` are null or point to as many values as are passed.
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
    guard(|| {
        // SAFETY: the caller's promise; the handle changes under its lock only.
        let cache = unsafe { pointer::handle("cache", cache) }?;
        let (k, v) = (Values::new("k", dtype, k, k_values)?, Values::new("v", dtype, v, v_values)?);
        // SAFETY: the caller's promise.
        let (k, v) = unsafe { (k.get(), v.get()) };
        Ok(cache.write()?.append(layer, k, v)?)
    })
}

/// Writes the keys of tokens `start` to `end`, not included, of one KV head as they are held, decoded: `out` is
/// [end - start, head_dim] of a `tqkv_dtype`. Tokens that are gone are TQKV_EVICTED. For engines that must have them;
/// attention does not.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `out` is null or points to as many values as are passed.
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
    // SAFETY: the caller's promise.
    unsafe {
        rows(
            cache,
            (start, end),
            || Room::new("out", out_dtype, out, out_values),
            |cache| cache.spec().shape.head_dim,
            |cache| cache.keys(layer, kv_head, start..end),
        )
    }
}

/// Writes values, as `tqkv_keys`: `out` is [end - start, value_dim].
///
/// # Safety
/// As there.
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
    // SAFETY: the caller's promise.
    unsafe {
        rows(
            cache,
            (start, end),
            || Room::new("out", out_dtype, out, out_values),
            |cache| cache.spec().shape.value_dim,
            |cache| cache.values(layer, kv_head, start..end),
        )
    }
}

/// Writes the rows of `dim` values that `read` makes, where `out` has room for just those of the tokens.
///
/// # Safety
/// As [`tqkv_keys`].
unsafe fn rows(
    cache: *const TqkvCache,
    (start, end): (usize, usize),
    out: impl Fn() -> Result<Room, Failure>,
    dim: impl Fn(&KvCache) -> usize,
    read: impl Fn(&KvCache) -> Result<Vec<f32>, CacheError>,
) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; the handle changes under its lock only.
        let cache = unsafe { pointer::handle("cache", cache) }?;
        let out = out()?;
        let rows = cache.with(|cache| {
            check_rows(start, end, dim(cache), out.len())?;
            Ok(read(cache)?)
        })?;
        // SAFETY: the caller's promise.
        unsafe {
            out.fill(|out| {
                out.copy_from_slice(&rows);
                Ok(())
            })
        }
    })
}

/// Refuses room that is not that of the tokens, before any is decoded.
fn check_rows(start: usize, end: usize, dim: usize, values: usize) -> Result<(), Failure> {
    let tokens = end.checked_sub(start);
    let tokens = tokens
        .ok_or_else(|| Failure::argument(format!("tokens {start} to {end}: the end is before the start")))?;
    if tokens.checked_mul(dim) == Some(values) {
        return Ok(());
    }
    Err(Failure::argument(format!("out has {values} values: {tokens} tokens of {dim} values are asked for")))
}

/// Drops the tokens from index `len` on, in every layer; a layer that is shorter stays as it is. With a sliding window,
/// tokens that would be seen again may be gone: TQKV_EVICTED, and nothing is dropped. The newest 256 tokens can always be
/// dropped, counted from the greatest length since the cache was made or reset, not from the present one.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_truncate(cache: *mut TqkvCache, len: usize) -> TqkvStatus {
    // SAFETY: the caller's promise; the handle changes under its lock only.
    guard(|| Ok(unsafe { pointer::handle("cache", cache) }?.write()?.truncate(len)?))
}

/// Back to the empty cache.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_reset(cache: *mut TqkvCache) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; the handle changes under its lock only.
        unsafe { pointer::handle("cache", cache) }?.write()?.reset();
        Ok(())
    })
}

/// Writes the number of tokens in the first layer that keeps any, evicted ones included.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `len` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_len(cache: *const TqkvCache, len: *mut usize) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; the handle changes under its lock only.
        let cache = unsafe { pointer::handle("cache", cache) }?;
        let place = Out::new("len", len, 1)?;
        let len = cache.read()?.len();
        // SAFETY: the caller's promise.
        unsafe { place.write(len) };
        Ok(())
    })
}

/// Writes what is where, and what it costs. `struct_size` is `sizeof(tqkv_cache_stats)`.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `stats` is null or points to `struct_size` bytes that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_stats(
    cache: *const TqkvCache,
    stats: *mut TqkvCacheStats,
    struct_size: usize,
) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; the handle changes under its lock only.
        let found = unsafe { pointer::handle("cache", cache) }?.read()?.stats();
        let found = TqkvCacheStats {
            tokens: found.tokens,
            sinks: found.sinks,
            hot: found.hot,
            waiting_keys: found.waiting_keys,
            warm: found.warm,
            cold: found.cold,
            evicted: found.evicted,
            centred_heads: found.centred_heads,
            allocated_bytes: found.allocated_bytes,
            spilled_bytes: found.spilled_bytes,
            shared_bytes: found.shared_bytes,
        };
        // SAFETY: the caller's promise is the same.
        unsafe { pointer::write_struct("stats", stats, struct_size, FIRST_STATS_SIZE, &found) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::cache::CacheSpec;

    #[test]
    fn what_a_panic_left_half_changed_is_refused_until_it_is_freed() {
        let cache =
            Box::into_raw(Box::new(TqkvCache::new(KvCache::new(CacheSpec::new(1, 1, 1, 64)).unwrap())));
        // SAFETY: made above, and freed at the end.
        let shared = unsafe { &*cache };
        let status = guard(|| {
            let _state = shared.write()?;
            panic!("half way");
        });
        assert_eq!(status, TqkvStatus::TqkvPanic);
        let mut len = 7;
        // SAFETY: the cache lives, and the place can be written.
        unsafe {
            assert_eq!(tqkv_len(cache, &raw mut len), TqkvStatus::TqkvPanic);
            assert_eq!(tqkv_reset(cache), TqkvStatus::TqkvPanic);
            assert_eq!(len, 7);
            tqkv_free(cache);
        }
    }
}

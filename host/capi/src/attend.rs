//! Attention: one query per head, several caches at once, a chunk, and the logits of one head.

use crate::cache::TqkvCache;
use crate::error::{Failure, TqkvStatus};
use crate::floats::{Room, room, values};
use crate::pointer::Call;
use std::ffi::c_void;
use tqkv::cache::KvCache;

/// Attends from the newest position of one layer. `q` is [num_heads, head_dim] and `out` is [num_heads,
/// value_dim], each of a `tqkv_dtype`. Results are rounded to the type of `out`. A layer without tokens
/// returns TQKV_EMPTY. Several threads may attend at once.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `q` and `out` are null or point to the passed number of
/// values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_attend(
    cache: *const TqkvCache,
    layer: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, `q` has its values and `out` has room for its values, by the contract of
    // this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        let cache = cache.read()?;
        out.fill(|out| Ok(cache.attend(layer, q, out)?))
    })
}

/// Attends in one layer of several caches, as `tqkv_attend` does in each. `q` is [caches, num_heads,
/// head_dim] and `out` is [caches, num_heads, value_dim]. The results have the same bits as single calls, and
/// threads also divide the caches among themselves. All caches must have the same heads and dims. Lengths may
/// differ, and a cache may appear twice. A refusal names the index of the cache, and nothing is written.
///
/// # Safety
/// `caches` is null or points to `num_caches` handles, each of which is null or a cache that is not freed.
/// `q` and `out` are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_attend_many(
    caches: *const *const TqkvCache,
    num_caches: usize,
    layer: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `caches` has `num_caches` handles of caches, `q` has its values and `out` has room for its
    // values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let handles = call.slice("caches", caches, num_caches)?;
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        let mut caches = room(num_caches)?;
        for (index, &handle) in handles.iter().enumerate() {
            caches.push(call.handle(&format!("caches[{index}]"), handle)?);
        }
        locked(&caches, |caches| out.fill(|out| Ok(KvCache::attend_many(caches, layer, q, out)?)))
    })
}

/// Calls `work` with all caches, under locks for reading.
fn locked(
    handles: &[&TqkvCache],
    work: impl FnOnce(&[&KvCache]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // Each lock is taken once, and all calls take locks in the order of addresses. So no two calls wait for
    // each other, although a reader also waits behind a waiting writer.
    let address = |handle: &TqkvCache| std::ptr::from_ref(handle).addr();
    let mut order: Vec<&TqkvCache> = room(handles.len())?;
    order.extend(handles);
    order.sort_unstable_by_key(|handle| address(handle));
    order.dedup_by_key(|handle| address(handle));
    let mut guards = room(order.len())?;
    for handle in &order {
        guards.push(handle.read()?);
    }
    let mut caches: Vec<&KvCache> = room(handles.len())?;
    for handle in handles {
        // Its index is the number of smaller addresses.
        caches.push(&guards[order.partition_point(|other| address(other) < address(handle))]);
    }
    work(&caches)
}

/// Appends a chunk of tokens and attends causally with the queries of each. `q` is [tokens, num_heads,
/// head_dim] of `q_dtype`. `out` is [tokens, num_heads, value_dim] of `out_dtype`. `dtype`, `k` and `v` are
/// as in `tqkv_append`.
///
/// # Safety
/// `cache` is null or a cache that is not freed. The other pointers are null or point to the passed number of
/// values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_prefill(
    cache: *mut TqkvCache,
    layer: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    dtype: u32,
    k: *const c_void,
    k_values: usize,
    v: *const c_void,
    v_values: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, `q`, `k` and `v` have their values and `out` has room for its values, by
    // the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let k = values(call, "k", dtype, (k, k_values))?;
        let v = values(call, "v", dtype, (v, v_values))?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        let mut cache = cache.write()?;
        out.fill(|out| Ok(cache.attend_prefill(layer, q, k, v, out)?))
    })
}

/// Writes the logits of one query head over every token that the newest position sees, oldest first. `q` has
/// head_dim values of `q_dtype`. The logits are 32-bit floats, scaled and capped as the spec says. Their
/// number goes to `count`. If `out` is too short, only the number is written, and the call returns TQKV_FULL.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `q` and `out` are null or point to the passed number of
/// values. `count` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_scores(
    cache: *const TqkvCache,
    layer: usize,
    head: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    out: *mut f32,
    out_values: usize,
    count: *mut usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, `q` has its values, and `out` and `count` have room for their values, by
    // the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let (out, count) = (call.room("out", out, out_values)?, call.place("count", count)?);
        let scores = cache.read()?.scores(layer, head, q)?;
        count.write(scores.len());
        let Some(out) = out.get_mut(..scores.len()) else {
            let text = format!("out has room for {out_values} scores of {}", scores.len());
            return Err(Failure::new(TqkvStatus::TqkvFull, text));
        };
        out.copy_from_slice(&scores);
        Ok(())
    })
}

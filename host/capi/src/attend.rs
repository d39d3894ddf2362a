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

/// Attends from the newest position of one layer to some tokens only, as `tqkv_attend` does to all. `tokens` has the
/// lists of the KV heads one after the other, each ascending, and `list_tokens` (`[num_lists]`) how many each has.
/// There is one list per KV head, for all query heads that share it, and it may be empty. A token that the newest
/// position does not see is refused.
///
/// # Safety
/// `cache` is null or a cache that is not freed. The other pointers are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_attend_selected(
    cache: *const TqkvCache,
    layer: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    tokens: *const u32,
    num_tokens: usize,
    list_tokens: *const usize,
    num_lists: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, `q`, `tokens` and `list_tokens` have their values and `out` has room for its
    // values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let tokens = call.slice("tokens", tokens, num_tokens)?;
        let counts = call.slice("list_tokens", list_tokens, num_lists)?;
        let lists = lists(tokens, counts)?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        let cache = cache.read()?;
        out.fill(|out| Ok(cache.attend_selected(layer, q, &lists, out)?))
    })
}

/// Cuts tokens into lists of these lengths.
fn lists<'a>(mut tokens: &'a [u32], counts: &[usize]) -> Result<Vec<&'a [u32]>, Failure> {
    let all = tokens.len();
    let mut lists = Vec::with_capacity(counts.len());
    for &count in counts {
        let cut = tokens.split_at_checked(count);
        let (list, rest) = cut.ok_or_else(|| {
            Failure::argument(format!("list_tokens have more than the {all} tokens of num_tokens"))
        })?;
        lists.push(list);
        tokens = rest;
    }
    if tokens.is_empty() {
        Ok(lists)
    } else {
        let left = tokens.len();
        Err(Failure::argument(format!(
            "{left} of the {all} tokens of num_tokens are in no list of list_tokens"
        )))
    }
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

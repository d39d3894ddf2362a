//! The cache of slots behind a handle, and the mask of a step behind another.
//!
//! Attention encodes rows and may learn from queries, so it changes the cache and holds its lock alone. A mask
//! is only read by attention, so that the layers of several caches may share it.

use crate::cache::broken;
use crate::error::{Failure, TqkvStatus};
use crate::floats::{Room, one_of, values};
use crate::pointer::{self, Call, Plain};
use crate::spec;
use half::slice::HalfBitsSliceExt;
use std::ffi::{c_char, c_void};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tqkv::rope::{Rope, RopePairing};
use tqkv::slots::{Mask, SlotCache};

/// Keys and values of many sequences in numbered slots, for engines that place tokens themselves.
#[derive(Debug)]
pub struct TqkvSlots {
    cache: RwLock<SlotCache>,
}

/// Which slots each query of a step sees.
#[derive(Debug)]
pub struct TqkvMask {
    mask: RwLock<Mask>,
}

/// Which coordinates of a key turn together.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvRopePairing {
    /// Coordinates that are half of the turned ones apart, as in Llama.
    TqkvRopeHalf = 0,
    /// Neighbouring coordinates, as in DeepSeek-V2 and GPT-J.
    TqkvRopeInterleaved = 1,
}

const PAIRINGS: [RopePairing; 2] = [RopePairing::Half, RopePairing::Interleaved];

/// How positions turn the keys of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvRope {
    /// First coordinate of a head that turns.
    pub first: usize,
    /// Which coordinates turn together, a `tqkv_rope_pairing`.
    pub pairing: u32,
    /// Radians per position of each pair, after any scaling of them.
    pub inv_freq: *const f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl Plain for TqkvRope {}

fn rope(call: &Call, rope: *const TqkvRope) -> Result<Rope, Failure> {
    let rope = &call.slice("rope", rope, 1)?[0];
    let pairing = one_of("pairing of rope", rope.pairing, &PAIRINGS)?;
    let inv_freq = call.slice("inv_freq of rope", rope.inv_freq, rope.pairs)?;
    Ok(Rope::new(rope.first, pairing, inv_freq.to_vec()))
}

impl TqkvSlots {
    fn read(&self) -> Result<RwLockReadGuard<'_, SlotCache>, Failure> {
        self.cache.read().map_err(|_| broken())
    }

    fn write(&self) -> Result<RwLockWriteGuard<'_, SlotCache>, Failure> {
        self.cache.write().map_err(|_| broken())
    }
}

impl TqkvMask {
    fn write(&self) -> Result<RwLockWriteGuard<'_, Mask>, Failure> {
        self.mask.write().map_err(|_| broken())
    }
}

/// Makes an empty cache of `streams` streams with `slots` slots each. `spec` is a text as in `tqkv_create`,
/// without the options that need tokens in order, which are refused by name. One stream is right for most
/// engines: all sequences share its slots. Sequences in streams of their own have means and hot windows of
/// their own. Address space for all slots is reserved, and memory is taken as they are written. On failure
/// `*cache` is null.
///
/// # Safety
/// `spec` is null or ends with a zero. `cache` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_create(
    spec: *const c_char,
    slots: usize,
    streams: usize,
    cache: *mut *mut TqkvSlots,
) -> TqkvStatus {
    // SAFETY: `spec` is text and `cache` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("cache", cache, || {
            let cache = SlotCache::with_streams(spec::read(call, spec)?, slots, streams)?;
            Ok(TqkvSlots { cache: RwLock::new(cache) })
        })
    })
}

/// Frees a cache of slots; null is accepted.
///
/// # Safety
/// `cache` is null or a handle from `tqkv_slots_create` that is not freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_free(cache: *mut TqkvSlots) {
    // SAFETY: `tqkv_slots_create` gave it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(cache) }
}

/// Writes tokens to slots of one layer. `slots` and `positions` are `[tokens]`. Slots count over all streams,
/// so the first slot of stream i is i times the slots of a stream. Positions count from 0 in each sequence, and
/// the tokens at positions below `sinks=` of the spec stay f16. `k` is [tokens, num_kv_heads, head_dim] of a
/// `tqkv_dtype`, after RoPE, and `v` is [tokens, num_kv_heads, value_dim]. What the slots held before is gone, and
/// a slot that is given twice holds the later of its rows. A value that is not finite is refused. If the call fails,
/// the cache is unchanged.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. The other pointers are null or point to the passed
/// number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_write(
    cache: *mut TqkvSlots,
    layer: usize,
    slots: *const usize,
    positions: *const usize,
    tokens: usize,
    dtype: u32,
    k: *const c_void,
    k_values: usize,
    v: *const c_void,
    v_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and the other pointers have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let slots = call.slice("slots", slots, tokens)?;
        let positions = call.slice("positions", positions, tokens)?;
        let k = values(call, "k", dtype, (k, k_values))?;
        let v = values(call, "v", dtype, (v, v_values))?;
        Ok(cache.write()?.write(layer, slots, positions, k, v)?)
    })
}

/// Attends in one layer with the queries of a mask, in its order. `q` is [queries, num_heads, head_dim] and
/// `out` is [queries, num_heads, value_dim], each of a `tqkv_dtype`. A query that sees no slot gets zeros, and
/// a slot that was never written counts as zeros. Then rows that are older than the newest `hot=` writes of
/// their stream are encoded. So write the tokens of a step, and attend, layer by layer.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed, and `mask` is null or a mask that is not freed. `q`
/// and `out` are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_attend(
    cache: *mut TqkvSlots,
    layer: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    mask: *const TqkvMask,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` and `mask` are handles, `q` has its values and `out` has room for its values, by the
    // contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, mask) = (call.handle("cache", cache)?, call.handle("mask", mask)?);
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        let mask = mask.mask.read().map_err(|_| broken())?;
        let mut cache = cache.write()?;
        out.fill(|out| Ok(cache.attend(layer, q, &mask, out)?))
    })
}

/// Encodes the rows of one layer that are older than the newest `hot=` writes of their stream.
/// `tqkv_slots_attend` does this by itself; a program that writes a long prompt without attending saves memory
/// by it.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_encode(cache: *mut TqkvSlots, layer: usize) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { Call::new() }.run(|call| Ok(call.handle("cache", cache)?.write()?.encode(layer)?))
}

/// Copies slots in all layers: `from[i]` to `to[i]`, in that order; both are `[num_slots]`. Codes are copied as
/// they are. Sequences of one stream share a prefix without a copy, because several queries may see one slot.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. `from` and `to` are null or point to the passed
/// number of slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_copy(
    cache: *mut TqkvSlots,
    from: *const usize,
    to: *const usize,
    num_slots: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and `from` and `to` have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let (from, to) = (call.slice("from", from, num_slots)?, call.slice("to", to, num_slots)?);
        Ok(cache.write()?.copy(from, to)?)
    })
}

/// Moves the tokens of slots of one layer by a number of positions, back if it is negative: those after a part that
/// was removed from a sequence, or a chunk that is used again at another place. `rope` tells how positions turn the
/// keys of the layer. Codes stay as they are, because attention turns queries back instead, so that any number of
/// shifts adds no error of the codec. A slot that is given twice moves once. If the call fails, nothing is moved.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. `slots` is null or points to the passed number of slots.
/// `rope` is null or can be read, and its `inv_freq` is null or points to its `pairs` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_shift(
    cache: *mut TqkvSlots,
    layer: usize,
    slots: *const usize,
    num_slots: usize,
    positions: i32,
    rope: *const TqkvRope,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and `slots` and `rope` have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let slots = call.slice("slots", slots, num_slots)?;
        let rope = self::rope(call, rope)?;
        Ok(cache.write()?.shift(layer, slots, positions, &rope)?)
    })
}

/// Empties slots in all layers, and frees their memory: those of a sequence that has ended, for example. A
/// stream whose slots are all empty starts anew.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. `slots` is null or points to the passed number of
/// slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_forget(
    cache: *mut TqkvSlots,
    slots: *const usize,
    num_slots: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and `slots` has its values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, slots) = (call.handle("cache", cache)?, call.slice("slots", slots, num_slots)?);
        Ok(cache.write()?.forget(slots)?)
    })
}

/// Empties all slots.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_clear(cache: *mut TqkvSlots) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.handle("cache", cache)?.write()?.clear();
        Ok(())
    })
}

/// Reads slots of one layer as the bits of f16, as for a saved state: `k` is [num_slots, num_kv_heads,
/// head_dim] and `v` is [num_slots, num_kv_heads, value_dim]. Exact rows are the ones that were written, codes
/// are decoded, and empty slots are zeros.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. The other pointers are null or point to the passed
/// number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_read(
    cache: *const TqkvSlots,
    layer: usize,
    slots: *const usize,
    num_slots: usize,
    k: *mut u16,
    k_values: usize,
    v: *mut u16,
    v_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and the other pointers have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let slots = call.slice("slots", slots, num_slots)?;
        let (k, v) = (call.room("k", k, k_values)?, call.room("v", v, v_values)?);
        Ok(cache.read()?.read(layer, slots, k.reinterpret_cast_mut(), v.reinterpret_cast_mut())?)
    })
}

/// Writes rows that `tqkv_slots_read` gave back to slots of one layer, which may be other slots or those of
/// another cache. `positions` are as in `tqkv_slots_write`, and what that call refuses is refused here. Decoded rows
/// become the same codes again in a stream that has no codes yet, except for keys with a map.
///
/// # Safety
/// The contract of `tqkv_slots_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_restore(
    cache: *mut TqkvSlots,
    layer: usize,
    slots: *const usize,
    positions: *const usize,
    num_slots: usize,
    k: *const u16,
    k_values: usize,
    v: *const u16,
    v_values: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, and the other pointers have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let slots = call.slice("slots", slots, num_slots)?;
        let positions = call.slice("positions", positions, num_slots)?;
        let (k, v) = (call.slice("k", k, k_values)?, call.slice("v", v, v_values)?);
        let mut cache = cache.write()?;
        Ok(cache.restore(layer, slots, positions, k.reinterpret_cast(), v.reinterpret_cast())?)
    })
}

/// Writes the number of bytes that keys and values of all layers take, and all that is kept with them.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_slots_bytes(cache: *const TqkvSlots, bytes: *mut usize) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `bytes` has room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        call.place("bytes", bytes)?.write(cache.read()?.allocated_bytes());
        Ok(())
    })
}

/// Makes a mask without queries for one stream of a cache, whose slots it counts from the first one of the
/// stream. It is made once for a step and serves all layers, and it may outlive the cache. A query takes two
/// bytes per slot of the stream. On failure `*mask` is null.
///
/// # Safety
/// `cache` is null or a cache of slots that is not freed. `mask` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_mask_create(
    cache: *const TqkvSlots,
    stream: usize,
    mask: *mut *mut TqkvMask,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `mask` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("mask", mask, || {
            let cache = call.handle("cache", cache)?.read()?;
            if stream >= cache.streams() {
                let text = format!("stream {stream} is out of range: the cache has {}", cache.streams());
                return Err(Failure::argument(text));
            }
            Ok(TqkvMask { mask: RwLock::new(Mask::new(cache.slots()).of_stream(stream)) })
        })
    })
}

/// Frees a mask; null is accepted.
///
/// # Safety
/// `mask` is null or a handle from `tqkv_mask_create` that is not freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_mask_free(mask: *mut TqkvMask) {
    // SAFETY: `tqkv_mask_create` gave it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(mask) }
}

/// Removes all queries, and keeps the memory for the next step.
///
/// # Safety
/// `mask` is null or a mask that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_mask_clear(mask: *mut TqkvMask) -> TqkvStatus {
    // SAFETY: `mask` is a mask, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.handle("mask", mask)?.write()?.clear();
        Ok(())
    })
}

/// Adds queries of the newest `queries` tokens of a sequence, in order: 1 for a step, all tokens for a prompt.
/// `slots` (`[num_slots]`) are those of all tokens of the sequence, in order, a shared prefix first. Each query
/// sees the slots up to that of its own token. If the call fails, no query is added.
///
/// # Safety
/// `mask` is null or a mask that is not freed. `slots` is null or points to the passed number of slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_mask_causal(
    mask: *mut TqkvMask,
    slots: *const usize,
    num_slots: usize,
    queries: usize,
) -> TqkvStatus {
    // SAFETY: `mask` is a mask and `slots` has its values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (mask, slots) = (call.handle("mask", mask)?, call.slice("slots", slots, num_slots)?);
        Ok(mask.write()?.causal(slots, queries)?)
    })
}

/// Adds one query that sees these slots and no others. `biases` is null, or has a number for each slot that is
/// added to its logit (ALiBi, for example); -inf hides the slot. If the call fails, no query is added.
///
/// # Safety
/// `mask` is null or a mask that is not freed. `slots` is null or points to the passed number of slots, and so
/// does `biases`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_mask_see(
    mask: *mut TqkvMask,
    slots: *const usize,
    biases: *const f32,
    num_slots: usize,
) -> TqkvStatus {
    // SAFETY: `mask` is a mask, and `slots` and `biases` have their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (mask, slots) = (call.handle("mask", mask)?, call.slice("slots", slots, num_slots)?);
        let slots = slots.iter().copied();
        if biases.is_null() {
            return Ok(mask.write()?.see(slots)?);
        }
        let biases = call.slice("biases", biases, num_slots)?;
        Ok(mask.write()?.see_with(slots.zip(biases.iter().copied()))?)
    })
}

//! The cache on an NVIDIA GPU behind a handle. It needs the feature `cuda`, and TQKV_CUDA before the header
//! is included.
//!
//! Keys, values, queries and results are device memory of the engine, passed by address. A handle is a lock
//! around a [`GpuCache`], so calls of any number of threads run one at a time. An address cannot be checked
//! here: every call has a contract for it.

use crate::cache::broken;
use crate::error::{Failure, TqkvStatus};
use crate::floats::{TqkvDtype, dtype, one_of};
use crate::pointer::{self, Call};
use crate::spec;
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, MutexGuard};
use tqkv::unstable::cache::{Door, OptionPart};
use tqkv_core::KvShape;
use tqkv_gpu::{Device, Element, GpuCache, GpuError, GpuSpec, Raw, Rows, Side};

/// Keys and values of many sequences on a GPU.
#[derive(Debug)]
pub struct TqkvGpuCache {
    cache: Mutex<GpuCache>,
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        let status = match &error {
            GpuError::NoDriver
            | GpuError::NoDevice { .. }
            | GpuError::UnsupportedArchitecture { .. }
            | GpuError::OldDriver { .. }
            | GpuError::KernelsRefused { .. } => TqkvStatus::TqkvUnsupported,
            GpuError::OutOfMemory { .. } | GpuError::SequenceFull { .. } | GpuError::PoolFull { .. } => {
                TqkvStatus::TqkvNoRoom
            }
            GpuError::BadVector { .. } => TqkvStatus::TqkvBadVector,
            GpuError::BadSpec(_)
            | GpuError::Shape(_)
            | GpuError::LayerOutOfRange { .. }
            | GpuError::SequenceOutOfRange { .. }
            | GpuError::WrongLength { .. }
            | GpuError::NotEmpty { .. }
            | GpuError::BadStep(_)
            | GpuError::OtherContext { .. } => TqkvStatus::TqkvBadArgument,
            _ => TqkvStatus::TqkvOther,
        };
        Self::new(status, error.to_string())
    }
}

/// Reads the text of a spec for sequences whose pages hold `pool_tokens` tokens; 0 stands for all at full
/// length.
fn read(
    call: &Call,
    text: *const c_char,
    num_sequences: usize,
    pool_tokens: usize,
) -> Result<GpuSpec, Failure> {
    let spec = spec::read(call, text)?;
    let lacking = Door::Gpu.refused(&spec).join(" ");
    if !lacking.is_empty() {
        let accepted = Door::Gpu.accepted(&[OptionPart::Model, OptionPart::Policy]);
        let why = format!("a cache on a GPU has no {lacking}: expected {accepted}");
        return Err(Failure::argument(why));
    }
    let KvShape { num_layers, num_heads, num_kv_heads, head_dim, .. } = spec.shape;
    let made = GpuSpec::new(num_layers, num_heads, num_kv_heads, head_dim);
    let max_tokens = spec.max_tokens.unwrap_or(made.max_tokens);
    let made = made.codecs(spec.key, spec.value).options(spec.options).exact(spec.sinks, spec.hot);
    let made = made.sequences(num_sequences, max_tokens);
    Ok(if pool_tokens == 0 { made } else { made.pool_tokens(pool_tokens) })
}

/// A call on the cache of a handle. Its keys, values, queries and results are memory of the cache's device.
struct DeviceCall<'c> {
    call: &'c Call,
    cache: MutexGuard<'c, GpuCache>,
}

impl<'c> DeviceCall<'c> {
    /// Runs `work` on the cache of a handle.
    ///
    /// # Safety
    /// The contract of [`Call::new`]. Memory that is passed to [`DeviceCall::memory`] meets the contract of
    /// [`Raw::new`].
    unsafe fn run(
        cache: *const TqkvGpuCache,
        work: impl FnOnce(DeviceCall<'_>) -> Result<(), Failure>,
    ) -> TqkvStatus {
        // SAFETY: the contract of this function includes that of `new`.
        unsafe { Call::new() }.run(|call| {
            let cache = call.handle("cache", cache)?.cache.lock().map_err(|_| broken())?;
            work(DeviceCall { call, cache })
        })
    }

    /// `len` values of a `tqkv_dtype` on the device.
    fn memory(
        &self,
        what: &'static str,
        number: u32,
        pointer: *const c_void,
        len: usize,
    ) -> Result<Raw, Failure> {
        let (element, bytes) = match dtype(what, number)? {
            TqkvDtype::TqkvF32 => (Element::F32, 4),
            TqkvDtype::TqkvF16 => (Element::F16, 2),
            TqkvDtype::TqkvBf16 => (Element::Bf16, 2),
        };
        pointer::check_address(what, pointer.addr(), len, bytes, bytes)?;
        // SAFETY: the contract of `run` covers device memory. Null, alignment and size are checked.
        Ok(unsafe { Raw::new(pointer.addr() as u64, len, element) })
    }

    /// Rows of keys and values of one type: each a pointer and a number of values.
    fn keys_and_values(
        &self,
        number: u32,
        (k, k_values): (*const c_void, usize),
        (v, v_values): (*const c_void, usize),
    ) -> Result<(Rows<'static>, Rows<'static>), Failure> {
        let (k, v) = (self.memory("k", number, k, k_values)?, self.memory("v", number, v, v_values)?);
        Ok((Rows::Raw(k), Rows::Raw(v)))
    }

    /// A list of sequences, empty if it has length 0.
    fn sequences(&self, pointer: *const usize, len: usize) -> Result<&'c [usize], Failure> {
        if len == 0 { Ok(&[]) } else { self.call.slice("sequences", pointer, len) }
    }
}

/// Makes an empty cache of `num_sequences` sequences on device number `ordinal`, in its primary context,
/// which the CUDA runtime API also uses. Allocates all of its device memory. The text is that of
/// `tqkv_create`: "layers=32 heads=32 kv-heads=8 head-dim=128 t4 max-tokens=8192". The head dim is 64, 128 or
/// 256, and a codec is s2, s3, s4, i8, t2, t3 or t4. A sequence holds max-tokens= tokens, or 4096 without
/// it. There are pages for `pool_tokens` tokens of all sequences together; 0 stands for all at full length.
///
/// All work happens in the order of `stream`, a CUstream or cudaStream_t; null is the default stream, which
/// graphs cannot capture. The stream must outlive the cache. No call changes the current context of the
/// calling thread. On failure `*cache` is null. TQKV_UNSUPPORTED says that the machine has no driver or no
/// suitable device.
///
/// # Safety
/// `text` is null or ends with a zero. `stream` is a stream or null. `cache` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_create(
    text: *const c_char,
    num_sequences: usize,
    pool_tokens: usize,
    ordinal: usize,
    stream: *mut c_void,
    cache: *mut *mut TqkvGpuCache,
) -> TqkvStatus {
    // SAFETY: `text` is text and `cache` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("cache", cache, || {
            let spec = read(call, text, num_sequences, pool_tokens)?;
            // SAFETY: `stream` is a stream or null, and outlives the cache, by the contract of this call.
            let device = unsafe { Device::from_raw(ordinal, stream.cast()) }?;
            Ok(TqkvGpuCache { cache: Mutex::new(GpuCache::new(&device, spec)?) })
        })
    })
}

/// Frees a cache; null is accepted. Waits for its work. Any thread may call it.
///
/// # Safety
/// `cache` is null or a handle from `tqkv_gpu_create` that is not freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_free(cache: *mut TqkvGpuCache) {
    // SAFETY: `tqkv_gpu_create` made it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(cache) }
}

/// Appends tokens to one layer. Token i goes to the end of `sequences[i]`; a sequence may repeat. `k` and `v`
/// are device memory, [tokens, num_kv_heads, head_dim] of a `tqkv_dtype`, with k after RoPE. Waits for the
/// device. If the call fails, the cache is unchanged.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `sequences` is null or has `tokens` numbers. `k` and `v`
/// have the passed number of values in memory of the device's context. These were written in the order of the
/// cache's stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_append(
    cache: *mut TqkvGpuCache,
    layer: usize,
    sequences: *const usize,
    tokens: usize,
    dtype: u32,
    k: *const c_void,
    k_values: usize,
    v: *const c_void,
    v_values: usize,
) -> TqkvStatus {
    let work = |mut call: DeviceCall<'_>| {
        let sequences = call.sequences(sequences, tokens)?;
        let (k, v) = call.keys_and_values(dtype, (k, k_values), (v, v_values))?;
        Ok(call.cache.append(layer, sequences, k, v)?)
    };
    // SAFETY: `sequences` has `tokens` numbers, and `k` and `v` are device memory of their values, by the
    // contract of this call.
    unsafe { DeviceCall::run(cache, work) }
}

/// Attends from the newest token of some sequences. `q` and `out` are device memory of [count, num_heads,
/// head_dim], and row i is for `sequences[i]`. Null with a count of 0 means all sequences in order. Sequences
/// without tokens give zeros. A query that is not finite gives NaN. Does not wait.
///
/// # Safety
/// The contract of `tqkv_gpu_append`. Nothing else touches `out` before the stream has passed the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_attend(
    cache: *mut TqkvGpuCache,
    layer: usize,
    sequences: *const usize,
    count: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    let work = |mut call: DeviceCall<'_>| {
        let some = call.sequences(sequences, count)?;
        let q = Rows::Raw(call.memory("q", q_dtype, q, q_values)?);
        let out = call.memory("out", out_dtype, out, out_values)?;
        if some.is_empty() {
            return Ok(call.cache.attend_on_device(layer, q, out)?);
        }
        Ok(call.cache.attend_some(layer, some, q, out)?)
    };
    // SAFETY: `sequences` has `count` numbers, and `q` and `out` are device memory of their values, by the
    // contract of this call.
    unsafe { DeviceCall::run(cache, work) }
}

/// Begins a step of a model, which appends a token to each of `sequences` in every layer; a sequence may
/// repeat. For each layer, call `tqkv_gpu_append_step` and `tqkv_gpu_attend_step`, which only launch kernels.
/// Then call `tqkv_gpu_end_step`.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `sequences` is null or has `tokens` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_begin_step(
    cache: *mut TqkvGpuCache,
    sequences: *const usize,
    tokens: usize,
) -> TqkvStatus {
    let work = |mut call: DeviceCall<'_>| {
        let sequences = call.sequences(sequences, tokens)?;
        Ok(call.cache.begin_step(sequences)?)
    };
    // SAFETY: `cache` is a cache and `sequences` has `tokens` numbers, by the contract of this call.
    unsafe { DeviceCall::run(cache, work) }
}

/// Encodes keys and values of the step's tokens in one layer, as `tqkv_gpu_append` does, with one launch and
/// without waiting.
///
/// # Safety
/// The contract of `tqkv_gpu_append`, until the step has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_append_step(
    cache: *mut TqkvGpuCache,
    layer: usize,
    dtype: u32,
    k: *const c_void,
    k_values: usize,
    v: *const c_void,
    v_values: usize,
) -> TqkvStatus {
    let work = |mut call: DeviceCall<'_>| {
        let (k, v) = call.keys_and_values(dtype, (k, k_values), (v, v_values))?;
        Ok(call.cache.append_step(layer, k, v)?)
    };
    // SAFETY: `k` and `v` are device memory of their values until the step has ended, by the contract of this
    // call.
    unsafe { DeviceCall::run(cache, work) }
}

/// Attends with the query of each token of the step, which sees its sequence up to itself. `q` and `out` are
/// device memory of [tokens, num_heads, head_dim]. Does not wait.
///
/// # Safety
/// The contract of `tqkv_gpu_attend`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_attend_step(
    cache: *mut TqkvGpuCache,
    layer: usize,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    let work = |mut call: DeviceCall<'_>| {
        let q = call.memory("q", q_dtype, q, q_values)?;
        let out = call.memory("out", out_dtype, out, out_values)?;
        Ok(call.cache.attend_step(layer, Rows::Raw(q), out)?)
    };
    // SAFETY: `q` and `out` are device memory of their values until the step has ended, by the contract of
    // this call.
    unsafe { DeviceCall::run(cache, work) }
}

/// Waits once for the whole step. TQKV_BAD_VECTOR names the first vector that could not be encoded. Then each
/// sequence with such a vector drops its tokens from that one on, and `tqkv_gpu_len` says which are shorter.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_end_step(cache: *mut TqkvGpuCache) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { DeviceCall::run(cache, |mut call| Ok(call.cache.end_step()?)) }
}

/// Allocates the buffers for steps of up to `tokens` tokens. They stay until the cache is freed, whatever
/// other calls need, so CUDA graphs may hold the launches. A larger step is refused later, and so is room for
/// more.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_reserve(cache: *mut TqkvGpuCache, tokens: usize) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { DeviceCall::run(cache, |mut call| Ok(call.cache.reserve_scratch(tokens)?)) }
}

/// Makes sequence `to`, which must be empty, a copy of the first `len` tokens of `from`. If `from` is
/// shorter, all its tokens are copied. Both share pages until one of them writes.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_fork(
    cache: *mut TqkvGpuCache,
    from: usize,
    to: usize,
    len: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { DeviceCall::run(cache, |mut call| Ok(call.cache.fork(from, to, len)?)) }
}

/// Drops the tokens of a sequence from index `len` on, and frees their pages.
///
/// # Safety
/// `cache` is null or a cache that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_truncate(
    cache: *mut TqkvGpuCache,
    sequence: usize,
    len: usize,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { DeviceCall::run(cache, |mut call| Ok(call.cache.truncate(sequence, len)?)) }
}

/// Writes the number of tokens of a sequence; 0 for a sequence out of range.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `len` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_len(
    cache: *mut TqkvGpuCache,
    sequence: usize,
    len: *mut usize,
) -> TqkvStatus {
    let work = |call: DeviceCall<'_>| {
        call.call.place("len", len)?.write(call.cache.len(sequence));
        Ok(())
    };
    // SAFETY: `cache` is a cache and `len` has room for a number, by the contract of this call.
    unsafe { DeviceCall::run(cache, work) }
}

/// Decodes the keys (`values` is 0) or the values (1) of a sequence in one layer to `out`, device memory of
/// [len, num_kv_heads, head_dim]. Does not wait.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `out` meets the contract of `tqkv_gpu_attend`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_gpu_decode(
    cache: *mut TqkvGpuCache,
    layer: usize,
    sequence: usize,
    values: u32,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
) -> TqkvStatus {
    let work = |mut call: DeviceCall<'_>| {
        let side = one_of("values", values, &[Side::Keys, Side::Values])?;
        let out = call.memory("out", out_dtype, out, out_values)?;
        Ok(call.cache.decode(layer, sequence, side, out)?)
    };
    // SAFETY: `cache` is a cache and `out` device memory of its values, by the contract of this call.
    unsafe { DeviceCall::run(cache, work) }
}

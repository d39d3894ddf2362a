//! C interface of the integer language model: a static library without `std` or a heap.
//!
//! README.md is for C programmers. A model is in flash. A [`TqkvLm`] and everything that it needs are in
//! memory that the caller gives once. Pointers are checked for null and alignment, and lengths against the
//! header of the model. The caller promises that a pointer is good for its length. Rust programs use
//! `tqkv-lm`, which is the same without pointers. On systems with a heap, `host/capi` has whole caches.
#![cfg_attr(target_os = "none", no_std)]

mod cache;
mod pointer;
mod status;

pub use cache::*;
pub use status::TqkvLmStatus;

use core::ffi::c_char;
use pointer::{input, is_apart, output, region};
use tqkv_lm::{Logits, Model, Sampler, Shape};

/// The shape of a model.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TqkvLmShape {
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Longest sequence that the model was made for.
    pub context: u32,
    /// Decoder layers.
    pub layers: u32,
    /// KV heads of a layer.
    pub kv_heads: u32,
    /// Coordinates of a head vector. The cache must have the same.
    pub head_dim: u32,
    /// Bits per weight.
    pub weight_bits: u32,
}

/// Logits of the next token. The logit of token i is `values[i]` times 2^exponent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvLmLogits {
    /// The values are in the memory of the model. The next call with it overwrites them.
    pub values: *const i32,
    /// Tokens in the vocabulary.
    pub count: u32,
    /// The common power of two.
    pub exponent: i32,
}

/// Words per sampler.
pub const TQKV_LM_SAMPLER_WORDS: usize = 2;

/// Draws tokens. Its content is private.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvLmSampler {
    words: [u64; TQKV_LM_SAMPLER_WORDS],
}

const _: () = {
    assert!(size_of::<Sampler>() == size_of::<TqkvLmSampler>());
    assert!(align_of::<Sampler>() == align_of::<TqkvLmSampler>());
};

/// Returns one line of text for a status. Any number is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_lm_status_text(status: u32) -> *const c_char {
    status::text(status).as_ptr()
}

/// Reads the shape of a model. Checks the header and the length of the file, but not its checksum.
///
/// # Safety
/// `model` points to `length` readable bytes, and `shape` to a writable struct. Either may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_read_shape(
    model: *const u8,
    length: usize,
    shape: *mut TqkvLmShape,
) -> TqkvLmStatus {
    status::of(|| {
        let to = output(shape)?;
        // SAFETY: readable by the caller's promise.
        let file = unsafe { region(model, length)? };
        let Shape { vocab, context, layers, kv_heads, head_dim, bits, .. } =
            *Model::load_unverified(file)?.shape();
        let shape = TqkvLmShape {
            vocab,
            context,
            layers: layers.into(),
            kv_heads: kv_heads.into(),
            head_dim: head_dim.into(),
            weight_bits: bits.count().into(),
        };
        // SAFETY: writable by the caller's promise, checked for null and alignment.
        unsafe { to.write(shape) };
        Ok(())
    })
}

/// Writes how many bytes of memory a model needs for a context of `context` tokens.
///
/// # Safety
/// `cache` is one of the constants TQKV_LM_.., `model` points to `length` readable bytes, and `bytes` to a
/// writable number. Each may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_memory(
    cache: *const TqkvLmCache,
    model: *const u8,
    length: usize,
    context: u32,
    bytes: *mut usize,
) -> TqkvLmStatus {
    status::of(|| {
        let to = output(bytes)?;
        // SAFETY: a constant of this library, and readable bytes, by the caller's promise.
        let (cache, file) = unsafe { (&*input(cache)?, region(model, length)?) };
        let model = Model::load_unverified(file)?;
        let bytes = cache.plan(model.shape(), context)?.total;
        // SAFETY: writable by the caller's promise, checked for null and alignment.
        unsafe { to.write(bytes) };
        Ok(())
    })
}

/// Checks a complete model, with about 10 instructions per byte, and makes a handle in `memory`. The old
/// content of `memory` does not matter.
///
/// `cache` selects the codecs, and `context` is the number of tokens that it keeps, 20 at least. The first
/// TQKV_LM_SINKS and the newest TQKV_LM_NEWEST have 8 bits, others are coded. When it is full, it forgets the
/// oldest token that is not one of the first `sinks` or TQKV_LM_SINKS. `memory` is aligned to TQKV_LM_ALIGN
/// and has at least the bytes that `tqkv_lm_memory` says. The library uses both memories until the last call
/// with the handle; there is nothing to close. Align the model to 4 bytes, which the DSP loops need. If the
/// call fails, `lm` is unchanged.
///
/// # Safety
/// `cache` is one of the constants TQKV_LM_... `model` points to `length` bytes that do not change while the
/// handle is in use. `memory` points to `bytes` bytes that nothing else uses in that time. `lm` points to a
/// writable pointer. Each may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_open(
    cache: *const TqkvLmCache,
    model: *const u8,
    length: usize,
    context: u32,
    sinks: u32,
    memory: *mut core::ffi::c_void,
    bytes: usize,
    lm: *mut *mut TqkvLm,
) -> TqkvLmStatus {
    status::of(|| {
        let (memory, to) = (output(memory.cast::<u64>())?.cast::<u8>(), output(lm)?);
        // SAFETY: a constant of this library, and readable bytes that do not change, by the caller's promise.
        let (cache, file) = unsafe { (&*input(cache)?, region::<u8>(model, length)?) };
        if !is_apart(file.as_ptr_range(), memory, bytes) {
            return Err(TqkvLmStatus::TqkvLmOverlap);
        }
        let model = Model::load(file)?;
        let plan = cache.plan(model.shape(), context)?;
        if bytes < plan.total {
            return Err(TqkvLmStatus::TqkvLmMemory);
        }
        // SAFETY: aligned, not null, as large as planned, and used by nothing else, by the caller's promise.
        let handle = unsafe { (cache.open)(cache, model, &plan, sinks as usize, memory)? };
        // SAFETY: writable by the caller's promise, checked for null and alignment.
        unsafe { to.write(handle) };
        Ok(())
    })
}

/// Appends a token. The logits are then those of the following token.
///
/// # Safety
/// `lm` is null or an opened handle. Nothing but this library has written its memories, and no other thread
/// uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_push(lm: *mut TqkvLm, token: u32) -> TqkvLmStatus {
    status::of(|| {
        // SAFETY: a handle by the caller's promise.
        unsafe { (TqkvLm::of(lm)?.push)(lm, token)? };
        Ok(())
    })
}

/// Appends several tokens. If one is not in the vocabulary, none is appended.
///
/// # Safety
/// The contract of `tqkv_lm_push`. `tokens` is null or points to `count` readable numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_prefill(lm: *mut TqkvLm, tokens: *const u32, count: usize) -> TqkvLmStatus {
    status::of(|| {
        // SAFETY: a handle, and readable numbers, by the caller's promise.
        let (cache, tokens) = unsafe { (TqkvLm::of(lm)?, region(tokens, count)?) };
        // SAFETY: a handle of this cache.
        let vocab = unsafe { (cache.vocab)(lm) };
        if tokens.iter().any(|&token| token >= vocab) {
            return Err(TqkvLmStatus::TqkvLmToken);
        }
        // SAFETY: as above.
        tokens.iter().try_for_each(|&token| unsafe { (cache.push)(lm, token) })?;
        Ok(())
    })
}

/// Computes the logits of the token after the last appended one.
///
/// # Safety
/// The contract of `tqkv_lm_push`. `logits` is null or points to a writable struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_next_logits(lm: *mut TqkvLm, logits: *mut TqkvLmLogits) -> TqkvLmStatus {
    status::of(|| {
        let to = output(logits)?;
        // SAFETY: a handle by the caller's promise.
        let logits = unsafe { (TqkvLm::of(lm)?.logits)(lm) };
        let Logits { values, exponent } = logits;
        let logits = TqkvLmLogits { values: values.as_ptr(), count: values.len() as u32, exponent };
        // SAFETY: writable by the caller's promise, checked for null and alignment.
        unsafe { to.write(logits) };
        Ok(())
    })
}

/// Writes the number of tokens that were appended since the start.
///
/// # Safety
/// The contract of `tqkv_lm_push`. `position` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_position(lm: *mut TqkvLm, position: *mut u32) -> TqkvLmStatus {
    status::of(|| {
        let to = output(position)?;
        // SAFETY: a handle, and a writable number, by the caller's promise.
        unsafe { to.write((TqkvLm::of(lm)?.position)(lm)) };
        Ok(())
    })
}

/// Forgets all tokens.
///
/// # Safety
/// The contract of `tqkv_lm_push`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_clear(lm: *mut TqkvLm) -> TqkvLmStatus {
    status::of(|| {
        // SAFETY: a handle by the caller's promise.
        unsafe { (TqkvLm::of(lm)?.clear)(lm) };
        Ok(())
    })
}

/// Makes a slice of the values that a C program passes.
///
/// # Safety
/// `logits` is null or points to logits whose values can be read.
unsafe fn logits<'a>(logits: *const TqkvLmLogits) -> Result<Logits<'a>, TqkvLmStatus> {
    // SAFETY: readable by the caller's promise.
    let TqkvLmLogits { values, count, exponent } = unsafe { *input(logits)? };
    // SAFETY: as above.
    let values = unsafe { region(values, count as usize)? };
    if values.is_empty() { Err(TqkvLmStatus::TqkvLmLength) } else { Ok(Logits { values, exponent }) }
}

/// Writes the likeliest token. If several are equal, the first one is written.
///
/// # Safety
/// `logits` come from `tqkv_lm_next_logits` and are not overwritten yet, and `token` points to a writable
/// number. Either may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_greedy(logits: *const TqkvLmLogits, token: *mut u32) -> TqkvLmStatus {
    status::of(|| {
        let to = output(token)?;
        // SAFETY: readable logits and a writable number, by the caller's promise.
        unsafe { to.write(self::logits(logits)?.greedy()) };
        Ok(())
    })
}

/// Starts a sampler of softmax(logits / temperature). The same seed and logits give the same tokens on every
/// machine. The temperature is in 256ths: 205 is 0.8, and 0 is nearly greedy.
///
/// # Safety
/// `sampler` is null or points to a writable struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_sampler_init(
    temperature: u16,
    seed: u64,
    sampler: *mut TqkvLmSampler,
) -> TqkvLmStatus {
    status::of(|| {
        let to = output(sampler)?.cast::<Sampler>();
        // SAFETY: writable by the caller's promise. Size and alignment are asserted above.
        unsafe { to.write(Sampler::new(temperature, seed)) };
        Ok(())
    })
}

/// Draws the next token.
///
/// # Safety
/// The contract of `tqkv_lm_greedy`. `sampler` is null, or was started and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_sample(
    sampler: *mut TqkvLmSampler,
    logits: *const TqkvLmLogits,
    token: *mut u32,
) -> TqkvLmStatus {
    status::of(|| {
        let (sampler, to) = (output(sampler)?.cast::<Sampler>(), output(token)?);
        // SAFETY: readable logits, a writable number and a sampler, by the caller's promise. Every bit
        // pattern is a value of a sampler.
        unsafe { to.write((*sampler).pick(&self::logits(logits)?)) };
        Ok(())
    })
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // The model never panics, but a `no_std` library needs a handler.
    loop {
        core::hint::spin_loop();
    }
}

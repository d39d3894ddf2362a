//! C interface of the language model in integers: a static library without `std` or a heap.
//!
//! README.md beside it is for authors of C. A model lies in flash; a [`TqkvLm`] and everything that it needs
//! lie in memory that the caller gives, once. Every pointer is checked for null and alignment, every length
//! against the model's header; that a pointer is good for its length is the caller's word. When not to use
//! it: from Rust, `tqkv-lm` is the same without pointers; where there is a heap, `host/capi` has whole
//! caches.
#![cfg_attr(target_os = "none", no_std)]

mod cache;
mod pointer;
mod status;

pub use cache::*;
pub use status::TqkvLmStatus;

use core::ffi::c_char;
use pointer::{input, is_apart, output, region};
use tqkv_lm::{Logits, Model, Sampler, Shape};

/// What a model is.
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
    /// Coordinates of a head vector: which caches it takes.
    pub head_dim: u32,
    /// Bits of a weight.
    pub weight_bits: u32,
}

/// Logits of the next token: `values` at i times 2^exponent for token i.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvLmLogits {
    /// They lie in the memory of the model; the next call with it overwrites them.
    pub values: *const i32,
    /// Tokens in the vocabulary.
    pub count: u32,
    /// Power of two of all of them.
    pub exponent: i32,
}

/// Words of a sampler.
pub const TQKV_LM_SAMPLER_WORDS: usize = 2;

/// Draws tokens; its content is private.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvLmSampler {
    words: [u64; TQKV_LM_SAMPLER_WORDS],
}

const _: () = {
    assert!(size_of::<Sampler>() == size_of::<TqkvLmSampler>());
    assert!(align_of::<Sampler>() == align_of::<TqkvLmSampler>());
};

/// One line of text for a status, of any number.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_lm_status_text(status: u32) -> *const c_char {
    status::text(status).as_ptr()
}

/// Reads what a model is: the header and the length of the file are checked, its checksum is not.
///
/// # Safety
/// `model` points to `length` readable bytes, and `shape` to a writable struct, or either is null.
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

/// Writes how many bytes of memory a model needs with a context of so many tokens.
///
/// # Safety
/// `cache` is one of the constants TQKV_LM_.., `model` points to `length` readable bytes, and `bytes` to a
/// writable number, or one is null.
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

/// Checks a whole model, some 10 instructions a byte, and makes a handle in `memory`, whatever that holds.
///
/// `cache` says how keys and values are kept, `context` how many tokens; when it is full, the oldest token
/// that is not one of the first `sinks` is forgotten. `memory` is aligned to TQKV_LM_ALIGN and has the bytes
/// that `tqkv_lm_memory` says, or more. Both memories are lent until the last call with the handle; there is
/// nothing to close. The model is best aligned to 4 bytes, which the DSP loops need. With an error, `lm` is
/// as it was.
///
/// # Safety
/// `cache` is one of the constants TQKV_LM_..; `model` points to `length` bytes that stay as they are,
/// `memory` to `bytes` bytes that nothing else uses, for as long as the handle is in use; `lm` points to a
/// writable pointer; or one is null.
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
        // SAFETY: a constant of this library, and readable bytes that stay, by the caller's promise.
        let (cache, file) = unsafe { (&*input(cache)?, region::<u8>(model, length)?) };
        if !is_apart(file.as_ptr_range(), memory, bytes) {
            return Err(TqkvLmStatus::TqkvLmOverlap);
        }
        let model = Model::load(file)?;
        let plan = cache.plan(model.shape(), context)?;
        if bytes < plan.total {
            return Err(TqkvLmStatus::TqkvLmMemory);
        }
        // SAFETY: aligned, not null, as large as planned, and of no other use, by the caller's promise.
        let handle = unsafe { (cache.open)(cache, model, &plan, sinks as usize, memory)? };
        // SAFETY: writable by the caller's promise, checked for null and alignment.
        unsafe { to.write(handle) };
        Ok(())
    })
}

/// Takes a token: the logits are then those of what follows it.
///
/// # Safety
/// `lm` is a handle that was opened, its memories as they were left, in use by no other thread; or it is
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_push(lm: *mut TqkvLm, token: u32) -> TqkvLmStatus {
    status::of(|| {
        // SAFETY: a handle by the caller's promise.
        unsafe { (TqkvLm::of(lm)?.push)(lm, token)? };
        Ok(())
    })
}

/// Takes tokens one after the other; where one of them is not in the vocabulary, none.
///
/// # Safety
/// As `tqkv_lm_push`; `tokens` points to `count` readable numbers, or is null.
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

/// Computes the logits of the token after the last one taken.
///
/// # Safety
/// As `tqkv_lm_push`; `logits` points to a writable struct, or is null.
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

/// Writes how many tokens were taken since the start.
///
/// # Safety
/// As `tqkv_lm_push`; `position` points to a writable number, or is null.
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
/// As `tqkv_lm_push`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_clear(lm: *mut TqkvLm) -> TqkvLmStatus {
    status::of(|| {
        // SAFETY: a handle by the caller's promise.
        unsafe { (TqkvLm::of(lm)?.clear)(lm) };
        Ok(())
    })
}

/// The values that a C program says that it has.
///
/// # Safety
/// `logits` points to logits whose values can be read, or is null.
unsafe fn logits<'a>(logits: *const TqkvLmLogits) -> Result<Logits<'a>, TqkvLmStatus> {
    // SAFETY: readable by the caller's promise.
    let TqkvLmLogits { values, count, exponent } = unsafe { *input(logits)? };
    // SAFETY: as above.
    let values = unsafe { region(values, count as usize)? };
    if values.is_empty() { Err(TqkvLmStatus::TqkvLmLength) } else { Ok(Logits { values, exponent }) }
}

/// Writes the likeliest token, the first among equals.
///
/// # Safety
/// `logits` are those of `tqkv_lm_next_logits`, not yet overwritten, and `token` points to a writable number,
/// or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_greedy(logits: *const TqkvLmLogits, token: *mut u32) -> TqkvLmStatus {
    status::of(|| {
        let to = output(token)?;
        // SAFETY: readable logits and a writable number, by the caller's promise.
        unsafe { to.write(self::logits(logits)?.greedy()) };
        Ok(())
    })
}

/// Starts a sampler of softmax(logits / temperature): the same seed and logits give the same tokens on every
/// machine. The temperature is in 256ths: 205 is 0.8; 0 is nearly greedy.
///
/// # Safety
/// `sampler` points to a writable struct, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_sampler_init(
    temperature: u16,
    seed: u64,
    sampler: *mut TqkvLmSampler,
) -> TqkvLmStatus {
    status::of(|| {
        let to = output(sampler)?.cast::<Sampler>();
        // SAFETY: writable by the caller's promise; size and alignment are asserted above.
        unsafe { to.write(Sampler::new(temperature, seed)) };
        Ok(())
    })
}

/// Draws the next token.
///
/// # Safety
/// As `tqkv_lm_greedy`; `sampler` was started and is in use by no other thread, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_lm_sample(
    sampler: *mut TqkvLmSampler,
    logits: *const TqkvLmLogits,
    token: *mut u32,
) -> TqkvLmStatus {
    status::of(|| {
        let (sampler, to) = (output(sampler)?.cast::<Sampler>(), output(token)?);
        // SAFETY: a sampler, of which all bits are values, readable logits and a writable number, by the
        // caller's promise.
        unsafe { to.write((*sampler).pick(&self::logits(logits)?)) };
        Ok(())
    })
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Nothing of the model panics; the language wants a handler.
    loop {
        core::hint::spin_loop();
    }
}

//! C interface of the integer codec at one shape: head dim 128, codec s4, seed 42.
//!
//! A static library without `std` or a heap; README.md beside it is for authors of C. Other shapes: change [`Codec`] and the
//! constants, and generate the header again. Every pointer is checked for null; lengths are those of the types in the header.
//! When not to use it: from Rust, [`tqkv_core::fixed`] has all shapes, attention and a ring cache.
#![no_std]

use tqkv_core::code::S4;
use tqkv_core::fixed::{FixedCodec, FixedQuery};

type Codec = FixedCodec<128, S4>;
static CODEC: Codec = Codec::DEFAULT;

/// Samples of a vector.
pub const TQKV_DIM: usize = 128;
/// Bytes of a block.
pub const TQKV_BLOCK_BYTES: usize = 66;
/// Words of a prepared query.
pub const TQKV_QUERY_WORDS: usize = 66;

const _: () = {
    assert!(Codec::BLOCK_BYTES == TQKV_BLOCK_BYTES);
    assert!(size_of::<FixedQuery<TQKV_DIM>>() == 4 * TQKV_QUERY_WORDS);
    assert!(align_of::<FixedQuery<TQKV_DIM>>() == align_of::<TqkvQuery>());
};

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TqkvStatus {
    /// All is well.
    TqkvOk = 0,
    /// A pointer is null; nothing was done.
    TqkvNull = 1,
    /// The vector is too large for an f16 scale; the block holds zeros.
    TqkvOutOfRange = 2,
    /// The stored scale is NaN or infinite; nothing was written.
    TqkvDamaged = 3,
}

/// A prepared query; its content is private.
#[repr(C)]
pub struct TqkvQuery {
    words: [u32; TQKV_QUERY_WORDS],
}

/// Encodes TQKV_DIM samples, multiples of 2^exponent, into a block of TQKV_BLOCK_BYTES bytes.
///
/// # Safety
/// `x` points to TQKV_DIM readable samples and `block` to TQKV_BLOCK_BYTES writable bytes, or
/// either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_encode(x: *const i16, exponent: i32, block: *mut u8) -> TqkvStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths.
    let (x, block) =
        unsafe { (x.cast::<[i16; TQKV_DIM]>().as_ref(), block.cast::<[u8; TQKV_BLOCK_BYTES]>().as_mut()) };
    let (Some(x), Some(block)) = (x, block) else { return TqkvStatus::TqkvNull };
    match CODEC.encode(x, exponent, block) {
        Ok(()) => TqkvStatus::TqkvOk,
        Err(_) => TqkvStatus::TqkvOutOfRange,
    }
}

/// Decodes a block to TQKV_DIM samples in multiples of 2^exponent, rounded and saturated.
///
/// # Safety
/// `block` points to TQKV_BLOCK_BYTES readable bytes and `out` to TQKV_DIM writable samples, or
/// either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_decode(block: *const u8, exponent: i32, out: *mut i16) -> TqkvStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths.
    let (block, out) =
        unsafe { (block.cast::<[u8; TQKV_BLOCK_BYTES]>().as_ref(), out.cast::<[i16; TQKV_DIM]>().as_mut()) };
    let (Some(block), Some(out)) = (block, out) else { return TqkvStatus::TqkvNull };
    match CODEC.decode(block, exponent, out) {
        Ok(()) => TqkvStatus::TqkvOk,
        Err(_) => TqkvStatus::TqkvDamaged,
    }
}

/// Prepares a query of TQKV_DIM samples, multiples of 2^exponent.
///
/// # Safety
/// `q` points to TQKV_DIM readable samples and `query` to a writable query, or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_query(q: *const i16, exponent: i32, query: *mut TqkvQuery) -> TqkvStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths.
    let q = unsafe { q.cast::<[i16; TQKV_DIM]>().as_ref() };
    let Some(q) = q else { return TqkvStatus::TqkvNull };
    if query.is_null() {
        return TqkvStatus::TqkvNull;
    }
    // SAFETY: not null, writable by the caller's promise; size and alignment are asserted above.
    unsafe { query.cast::<FixedQuery<TQKV_DIM>>().write(CODEC.query(q, exponent)) };
    TqkvStatus::TqkvOk
}

/// Writes the score of a query and a block: their dot product / sqrt(TQKV_DIM) in units of 2^-16.
///
/// # Safety
/// `query` was filled by `tqkv_query`, `block` points to TQKV_BLOCK_BYTES readable bytes, and
/// `score` to a writable word, or one is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_score(
    query: *const TqkvQuery,
    block: *const u8,
    score: *mut i32,
) -> TqkvStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths, and
    // that the query was written by `tqkv_query`.
    let (query, block, score) = unsafe {
        (
            query.cast::<FixedQuery<TQKV_DIM>>().as_ref(),
            block.cast::<[u8; TQKV_BLOCK_BYTES]>().as_ref(),
            score.as_mut(),
        )
    };
    let (Some(query), Some(block), Some(score)) = (query, block, score) else { return TqkvStatus::TqkvNull };
    match CODEC.score(query, block) {
        Ok(value) => {
            *score = value;
            TqkvStatus::TqkvOk
        }
        Err(_) => TqkvStatus::TqkvDamaged,
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Nothing of the codec panics; the language wants a handler.
    loop {
        core::hint::spin_loop();
    }
}

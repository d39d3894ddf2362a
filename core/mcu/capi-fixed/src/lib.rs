//! C interface of the integer codec at one shape: head dim 128, codec s4, seed 42.
//!
//! A static library without `std` or a heap; README.md is for C programmers. For another shape, change
//! [`Codec`] and the constants, and generate the header again. Every pointer is checked for null; lengths are
//! those of the types in the header. Rust programs use [`tqkv_core::fixed`], which has all shapes, attention
//! and a ring cache.
#![no_std]

use tqkv_core::code::S4;
use tqkv_core::fixed::{FixedCodec, FixedQuery};

type Codec = FixedCodec<128, S4>;
static CODEC: Codec = Codec::DEFAULT;

/// Samples per vector.
pub const TQKV_FIXED_DIM: usize = 128;
/// Bytes per block.
pub const TQKV_FIXED_BLOCK_BYTES: usize = 66;
/// Words per prepared query.
pub const TQKV_FIXED_QUERY_WORDS: usize = 66;

const _: () = {
    assert!(Codec::BLOCK_BYTES == TQKV_FIXED_BLOCK_BYTES);
    assert!(size_of::<FixedQuery<TQKV_FIXED_DIM>>() == 4 * TQKV_FIXED_QUERY_WORDS);
    assert!(align_of::<FixedQuery<TQKV_FIXED_DIM>>() == align_of::<TqkvFixedQuery>());
};

/// The status of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TqkvFixedStatus {
    /// The call succeeded.
    TqkvFixedOk = 0,
    /// A pointer is null. Nothing was done.
    TqkvFixedNullPointer = 1,
    /// The vector is too large for an f16 scale. The block holds zeros.
    TqkvFixedBadVector = 2,
    /// The stored scale is NaN or infinite. Nothing was written.
    TqkvFixedBadBlock = 3,
}

/// A prepared query. Its content is private.
#[repr(C)]
pub struct TqkvFixedQuery {
    words: [u32; TQKV_FIXED_QUERY_WORDS],
}

/// Encodes TQKV_FIXED_DIM samples, multiples of 2^exponent, into a block of TQKV_FIXED_BLOCK_BYTES bytes.
///
/// # Safety
/// `x` points to TQKV_FIXED_DIM readable samples and `block` to TQKV_FIXED_BLOCK_BYTES writable bytes. Either
/// may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_fixed_encode(x: *const i16, exponent: i32, block: *mut u8) -> TqkvFixedStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths.
    let (x, block) = unsafe {
        (x.cast::<[i16; TQKV_FIXED_DIM]>().as_ref(), block.cast::<[u8; TQKV_FIXED_BLOCK_BYTES]>().as_mut())
    };
    let (Some(x), Some(block)) = (x, block) else { return TqkvFixedStatus::TqkvFixedNullPointer };
    match CODEC.encode(x, exponent, block) {
        Ok(()) => TqkvFixedStatus::TqkvFixedOk,
        Err(_) => TqkvFixedStatus::TqkvFixedBadVector,
    }
}

/// Decodes a block to TQKV_FIXED_DIM samples in multiples of 2^exponent, rounded and saturated.
///
/// # Safety
/// `block` points to TQKV_FIXED_BLOCK_BYTES readable bytes and `out` to TQKV_FIXED_DIM writable samples.
/// Either may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_fixed_decode(
    block: *const u8,
    exponent: i32,
    out: *mut i16,
) -> TqkvFixedStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths.
    let (block, out) = unsafe {
        (block.cast::<[u8; TQKV_FIXED_BLOCK_BYTES]>().as_ref(), out.cast::<[i16; TQKV_FIXED_DIM]>().as_mut())
    };
    let (Some(block), Some(out)) = (block, out) else { return TqkvFixedStatus::TqkvFixedNullPointer };
    match CODEC.decode(block, exponent, out) {
        Ok(()) => TqkvFixedStatus::TqkvFixedOk,
        Err(_) => TqkvFixedStatus::TqkvFixedBadBlock,
    }
}

/// Prepares a query of TQKV_FIXED_DIM samples, multiples of 2^exponent.
///
/// # Safety
/// `q` points to TQKV_FIXED_DIM readable samples and `query` to a writable query. Either may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_fixed_query_init(
    q: *const i16,
    exponent: i32,
    query: *mut TqkvFixedQuery,
) -> TqkvFixedStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths.
    let q = unsafe { q.cast::<[i16; TQKV_FIXED_DIM]>().as_ref() };
    let Some(q) = q else { return TqkvFixedStatus::TqkvFixedNullPointer };
    if query.is_null() {
        return TqkvFixedStatus::TqkvFixedNullPointer;
    }
    // SAFETY: not null, and writable by the caller's promise. Size and alignment are asserted above.
    unsafe { query.cast::<FixedQuery<TQKV_FIXED_DIM>>().write(CODEC.query(q, exponent)) };
    TqkvFixedStatus::TqkvFixedOk
}

/// Writes the score of a query and a block: their dot product / sqrt(TQKV_FIXED_DIM), in units of 2^-16.
///
/// # Safety
/// `query` was filled by `tqkv_fixed_query_init`. `block` points to TQKV_FIXED_BLOCK_BYTES readable bytes,
/// and `score` to a writable word. Each may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_fixed_score(
    query: *const TqkvFixedQuery,
    block: *const u8,
    score: *mut i32,
) -> TqkvFixedStatus {
    // SAFETY: the caller promises that pointers that are not null are good for these lengths, and
    // that the query was written by `tqkv_fixed_query_init`.
    let (query, block, score) = unsafe {
        (
            query.cast::<FixedQuery<TQKV_FIXED_DIM>>().as_ref(),
            block.cast::<[u8; TQKV_FIXED_BLOCK_BYTES]>().as_ref(),
            score.as_mut(),
        )
    };
    let (Some(query), Some(block), Some(score)) = (query, block, score) else {
        return TqkvFixedStatus::TqkvFixedNullPointer;
    };
    match CODEC.score(query, block) {
        Ok(value) => {
            *score = value;
            TqkvFixedStatus::TqkvFixedOk
        }
        Err(_) => TqkvFixedStatus::TqkvFixedBadBlock,
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // The codec never panics, but a `no_std` library needs a handler.
    loop {
        core::hint::spin_loop();
    }
}

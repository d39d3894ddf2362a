//! Codes to bytes and back: the only file that knows where a scalar or `i8` block keeps its codes.
//!
//! A block is the f16 scale, then the codes densely packed, least significant bit first: code i at
//! bit `bits * i`, so 8 codes take `bits` bytes (SPEC.md, "Blocks").

use crate::lanes::Memory;
use half::f16;

/// Bytes of the scale at the start of a block.
pub const SCALE_BYTES: usize = 2;

/// Takes a block apart into scale and code bytes; a short block reads as scale 0.
#[inline(always)]
pub fn split(block: &[u8]) -> (f16, &[u8]) {
    match block.split_first_chunk::<SCALE_BYTES>() {
        Some((scale, codes)) => (f16::from_le_bytes(*scale), codes),
        None => (f16::ZERO, &[]),
    }
}

/// Writes scale and codes.
#[inline(always)]
pub fn write<I: Memory, const BITS: usize>(isa: I, scale: f16, codes: &[I::C], block: &mut [u8]) {
    let Some((head, body)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return };
    *head = scale.to_le_bytes();
    for (bytes, &code) in body.chunks_mut(4 * BITS).zip(codes) {
        isa.write_codes::<BITS>(code, bytes);
    }
}

/// Reads codes; registers past the end of `bytes` keep the code 0.
#[inline(always)]
pub fn read<I: Memory, const BITS: usize>(isa: I, bytes: &[u8], codes: &mut [I::C]) {
    for (code, bytes) in codes.iter_mut().zip(bytes.chunks(4 * BITS)) {
        *code = isa.read_codes::<BITS>(bytes);
    }
}

/// Up to 32 codes as four words of 8 codes each.
#[inline(always)]
pub fn words<const BITS: usize>(bytes: &[u8]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(BITS)) {
        let mut padded = [0; 8];
        for (to, &from) in padded.iter_mut().zip(eight) {
            *to = from;
        }
        *word = u64::from_le_bytes(padded);
    }
    words
}

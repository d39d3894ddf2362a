//! The bytes of a block: where a scalar or `i8` block keeps its scale and its codes.
//!
//! A block is the f16 scale, then the codes densely packed, least significant bit first. Code i starts at bit
//! `bits * i`, so 8 codes take `bits` bytes (SPEC.md, "Blocks"). [`super::lanes::Memory`] turns them into
//! registers.

use half::f16;

/// Bytes of the scale at the start of a block.
pub(crate) const SCALE_BYTES: usize = 2;

/// Splits a block into its scale and its code bytes; a short block reads as scale 0.
#[inline(always)]
pub(crate) fn split(block: &[u8]) -> (f16, &[u8]) {
    match block.split_first_chunk::<SCALE_BYTES>() {
        Some((scale, codes)) => (f16::from_le_bytes(*scale), codes),
        None => (f16::ZERO, &[]),
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

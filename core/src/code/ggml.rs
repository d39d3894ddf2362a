//! `q8_0` and `q4_0`: the block formats of ggml, kept for comparison.
//!
//! Each run of 32 coordinates has its own f16 scale: 8.5 and 4.5 bits per value. They are not part of
//! TurboQuant and are not rotated.

use crate::machine::block_io::SCALE_BYTES;
use half::f16;

/// Coordinates per run.
pub(super) const RUN: usize = 32;

fn reciprocal(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

/// Encodes a run whose scale fits f16. The scale is absmax / 127. Codes are rounded half away from zero with
/// the unrounded scale, as the reference quantiser of the format does. Out of line: inline it would be
/// unrolled in every instruction set.
#[inline(never)]
pub(super) fn encode_q8_0(run: &[f32; RUN], bytes: &mut [u8]) {
    let scale = run.iter().fold(0.0, |m, v| f32::max(m, v.abs())) / 127.0;
    let inverse = reciprocal(scale);
    if let Some((head, codes)) = bytes.split_first_chunk_mut::<SCALE_BYTES>() {
        *head = f16::from_f32(scale).to_le_bytes();
        for (code, v) in codes.iter_mut().zip(run) {
            *code = libm::roundf(v * inverse) as i8 as u8;
        }
    }
}

/// Encodes a run whose scale fits f16. The scale is the value of largest magnitude over -8. Codes are floor(x
/// / scale + 8.5), clamped to 15. Byte j holds coordinate j in its low nibble and j + 16 in its high nibble.
#[inline(never)]
pub(super) fn encode_q4_0(run: &[f32; RUN], bytes: &mut [u8]) {
    let largest = run.iter().fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
    let scale = largest / -8.0;
    let inverse = reciprocal(scale);
    let code = |v: f32| ((v * inverse + 8.5) as u8).min(15);
    if let Some((head, codes)) = bytes.split_first_chunk_mut::<SCALE_BYTES>() {
        *head = f16::from_f32(scale).to_le_bytes();
        let (low, high) = run.split_at(RUN / 2);
        for ((byte, &a), &b) in codes.iter_mut().zip(low).zip(high) {
            *byte = code(a) | code(b) << 4;
        }
    }
}

/// Levels of the nibbles of a `q4_0` run, code - 8, as signed bytes.
#[inline(always)]
pub(super) fn nibbles(codes: &[u8]) -> [u8; RUN] {
    let mut levels = [0; RUN];
    let (low, high) = levels.split_at_mut(RUN / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(codes) {
        *low = (byte & 15).wrapping_sub(8);
        *high = (byte >> 4).wrapping_sub(8);
    }
    levels
}

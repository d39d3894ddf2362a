//! `q8_0` and `q4_0`: the block formats of ggml, kept as the yardstick.
//!
//! Each run of 32 coordinates has its own f16 scale: 8.5 and 4.5 bits a value. They are not part
//! of TurboQuant. With the rotation in front (`q8_0r`, `q4_0r`) they are what llama.cpp does by
//! default to a quantised cache. Plain portable code: only the yardstick's speed matters, and that
//! is the business of the kernels that score pages.

use crate::error::EncodeError;
use half::f16;

/// Coordinates a run.
pub const RUN: usize = 32;
/// Bytes of a `q8_0` run: scale and 32 signed bytes.
pub const Q8_0_BYTES: usize = 34;
/// Bytes of a `q4_0` run: scale and 16 bytes, coordinate j in the low and j + 16 in the high nibble.
pub const Q4_0_BYTES: usize = 18;

/// Whether every run's scale, its largest magnitude over `steps`, fits f16.
fn check_range(x: &[f32], steps: f32) -> Result<(), EncodeError> {
    let largest = x.iter().fold(0.0, |m, v| f32::max(m, v.abs()));
    if f16::from_f32(largest / steps).is_finite() { Ok(()) } else { Err(EncodeError::OutOfRange) }
}

fn reciprocal(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

/// Encodes finite values; the scale is absmax / 127, codes are rounded half away from zero with
/// the unrounded scale, as the reference quantiser of that format does.
pub(crate) fn encode_q8_0(x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    check_range(x, 127.0)?;
    for (run, bytes) in x.as_chunks::<RUN>().0.iter().zip(block.as_chunks_mut::<Q8_0_BYTES>().0) {
        let scale = run.iter().fold(0.0, |m, v| f32::max(m, v.abs())) / 127.0;
        let stored = f16::from_f32(scale);
        let inverse = reciprocal(scale);
        if let Some((head, codes)) = bytes.split_first_chunk_mut::<2>() {
            *head = stored.to_le_bytes();
            for (code, v) in codes.iter_mut().zip(run) {
                *code = libm::roundf(v * inverse) as i8 as u8;
            }
        }
    }
    Ok(())
}

/// Encodes finite values; the scale is the value of largest magnitude over -8, codes are
/// floor(x / scale + 8.5) clamped to 15.
pub(crate) fn encode_q4_0(x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    check_range(x, 8.0)?;
    for (run, bytes) in x.as_chunks::<RUN>().0.iter().zip(block.as_chunks_mut::<Q4_0_BYTES>().0) {
        let largest = run.iter().fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
        let scale = largest / -8.0;
        let stored = f16::from_f32(scale);
        let inverse = reciprocal(scale);
        let code = |v: f32| ((v * inverse + 8.5) as u8).min(15);
        if let Some((head, codes)) = bytes.split_first_chunk_mut::<2>() {
            *head = stored.to_le_bytes();
            let (low, high) = run.split_at(RUN / 2);
            for ((byte, &a), &b) in codes.iter_mut().zip(low).zip(high) {
                *byte = code(a) | code(b) << 4;
            }
        }
    }
    Ok(())
}

/// Calls `f(i, value)` for every decoded coordinate of a `q8_0` block.
#[inline(always)]
pub(crate) fn each_q8_0(block: &[u8], mut f: impl FnMut(usize, f32)) {
    for (r, bytes) in block.as_chunks::<Q8_0_BYTES>().0.iter().enumerate() {
        let (scale, codes) = crate::block_io::split(bytes);
        let scale = scale.to_f32();
        for (j, &code) in codes.iter().enumerate() {
            f(r * RUN + j, f32::from(code as i8) * scale);
        }
    }
}

/// Calls `f(i, value)` for every decoded coordinate of a `q4_0` block.
#[inline(always)]
pub(crate) fn each_q4_0(block: &[u8], mut f: impl FnMut(usize, f32)) {
    for (r, bytes) in block.as_chunks::<Q4_0_BYTES>().0.iter().enumerate() {
        let (scale, codes) = crate::block_io::split(bytes);
        let scale = scale.to_f32();
        for (j, &code) in codes.iter().enumerate() {
            f(r * RUN + j, (f32::from(code & 15) - 8.0) * scale);
            f(r * RUN + j + RUN / 2, (f32::from(code >> 4) - 8.0) * scale);
        }
    }
}

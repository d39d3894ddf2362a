//! The `i8` codec on registers: rotated coordinates as signed bytes with one absmax scale.
//!
//! Levels are code / 32, so the scale is about the norm of the vector. It fits f16 wherever the scales of the
//! scalar codes do. Codes are rounded with the *stored* (f16) scale, so the rounding of the scale costs
//! nothing.

use crate::machine::{Isa, Lanes};

/// Sigmas in one code.
pub const UNIT: f32 = 1.0 / 32.0;
/// Codes per sigma.
const STEPS: f32 = 1.0 / UNIT;

/// The scale that maps the largest |y| to code 127, before rounding to f16.
#[inline(always)]
pub fn scale<I: Isa>(isa: I, y: &[I::V]) -> f32 {
    let mut largest = isa.splat(0.0);
    for &v in y {
        largest = v.max_abs(largest);
    }
    largest.max() * (STEPS / 127.0)
}

/// Codes of `y` with the stored scale, which is positive.
#[inline(always)]
pub fn quantise<I: Isa>(isa: I, scale: f32, y: &[I::V], codes: &mut [I::C]) {
    let inverse = isa.splat(STEPS / scale);
    for (code, &v) in codes.iter_mut().zip(y) {
        *code = isa.round_i8(v * inverse);
    }
}

//! The scalar codes `s1`..`s5` and `n1`..`n4` on registers: the paper's Algorithm 1.
//!
//! Everything here is generic over the instruction set, and takes and returns registers. The file `form`
//! reads and writes blocks.

use super::codebook::Codebook;
use super::scale::{Effort, MAX_CANDIDATES, Moments, ScaleMode, canonical_sum};
use crate::error::EncodeError;
use crate::machine::{Isa, Lanes};

/// |x|^2 in the canonical order.
#[inline(always)]
pub fn norm_squared<I: Isa>(isa: I, x: &[I::V]) -> f32 {
    canonical_sum(isa, x.iter().map(|&v| v * v))
}

/// A register with 1 in lanes 0..16 and 0 in the others: the mask for the last group of a ragged dim.
#[inline(always)]
fn half_mask<I: Isa>(isa: I) -> I::V {
    const HALF: [f32; 32] = {
        let (mut lanes, mut i) = ([0.0; 32], 0);
        while i < 16 {
            lanes[i] = 1.0;
            i += 1;
        }
        lanes
    };
    isa.load(&HALF)
}

/// Levels of the codes in units of the codebook; pad lanes of a ragged dim are 0.
#[inline(always)]
pub fn levels<I: Isa, const BITS: usize>(
    isa: I,
    book: &Codebook,
    codes: &[I::C],
    ragged: bool,
    out: &mut [I::V],
) {
    let last = codes.len().wrapping_sub(1);
    for (g, (level, &code)) in out.iter_mut().zip(codes).enumerate() {
        *level = isa.lookup::<BITS>(book.level_table(), code);
        if ragged && g == last {
            *level = *level * half_mask(isa);
        }
    }
}

/// Codes of `y` for the assumed norm, and the moments that judge them, with levels in units; the energy is
/// exact.
#[inline(always)]
fn quantise_at<I: Isa, const BITS: usize>(
    isa: I,
    book: &Codebook,
    norm_squared: f32,
    assumed: f32,
    y: &[I::V],
    ragged: bool,
    codes: &mut [I::C],
) -> Moments {
    let boundaries = isa.scaled::<BITS>(book.boundary_table(), assumed);
    let (mut cross, mut energy) = (isa.splat(0.0), isa.splat(0.0));
    let last = y.len().wrapping_sub(1);
    for (g, (code, &v)) in codes.iter_mut().zip(y).enumerate() {
        let (nearest, mut level) = isa.nearest::<BITS>(v, &boundaries, book.level_table());
        *code = nearest;
        if ragged && g == last {
            level = level * half_mask(isa);
        }
        cross = cross + v * level;
        energy = energy + level * level;
    }
    Moments { norm_squared, assumed, cross: cross.sum(), energy: energy.sum(), whole: None }
}

/// [`quantise`] for machines that index memory. The codes stay where their pass wrote them, so choosing one
/// pass needs neither a copy nor a branch. Also returns the index in `codes` of the chosen set.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "as for `quantise`")]
pub(crate) fn quantise_in_place<I: Isa, const BITS: usize>(
    isa: I,
    book: &Codebook,
    mode: ScaleMode,
    effort: Effort,
    dim: usize,
    norm_squared: f32,
    y: &[I::V],
    ragged: bool,
    codes: &mut [&mut [I::C]; 2],
) -> (f32, usize) {
    let norm = isa.sqrt(norm_squared);
    let candidates = effort.candidates(BITS);
    let mut sums = [[0.0; 2]; MAX_CANDIDATES];
    // One number that orders the passes: the quality first, then the earlier pass; the low bit is the set of
    // codes. The quality is never negative, so its bits sort as the number does.
    let mut best = 1;
    for (i, (sums, &factor)) in sums.iter_mut().zip(candidates).enumerate() {
        let spare = 1 - (best & 1) as usize;
        let codes = &mut *codes[spare];
        let moments = quantise_at::<I, BITS>(isa, book, norm_squared, norm * factor, y, ragged, codes);
        *sums = [moments.cross, moments.energy];
        let quality = u64::from(moments.quality().to_bits());
        best = u64::max(best, quality << 8 | ((MAX_CANDIDATES - i) << 1 | spare) as u64);
    }
    let chosen = MAX_CANDIDATES - (best as usize >> 1 & 15);
    // If there is only one candidate, the scale need not wait for its quality.
    let (i, whose) = if candidates.len() == 1 { (0, 0) } else { (chosen, (best & 1) as usize) };
    let [cross, energy] = sums.get(i).copied().unwrap_or_default();
    let assumed = norm * candidates.get(i).copied().unwrap_or_default();
    let moments = Moments { norm_squared, assumed, cross, energy, whole: None }.in_units_of(book.unit());
    (moments.scale(isa, mode, dim), whose)
}

/// Quantises the rotated vector `y` with |x|^2 = `norm_squared` > 0; returns the scale. This variant keeps
/// everything in registers, for GPU warps.
///
/// `ragged`: the last group holds 16 coordinates. `spare` is as long as `codes`. Cost: one pass over `y` per
/// candidate scale of `effort`.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "registers and their description; a struct would hide which are outputs"
)]
pub fn quantise<I: Isa, const BITS: usize>(
    isa: I,
    book: &Codebook,
    mode: ScaleMode,
    effort: Effort,
    dim: usize,
    norm_squared: f32,
    y: &[I::V],
    ragged: bool,
    codes: &mut [I::C],
    spare: &mut [I::C],
) -> f32 {
    let norm = isa.sqrt(norm_squared);
    let mut best = Moments { norm_squared, assumed: norm, cross: 0.0, energy: 1.0, whole: None };
    // One call only: each copy of the body would be a copy per instruction set, width and shape.
    for (i, &factor) in effort.candidates(BITS).iter().enumerate() {
        let next = quantise_at::<I, BITS>(isa, book, norm_squared, norm * factor, y, ragged, spare);
        if i == 0 || next.quality() > best.quality() {
            best = next;
            codes.copy_from_slice(spare);
        }
    }
    best.in_units_of(book.unit()).scale(isa, mode, dim)
}

/// `measure` is finite only where all of `x` is and nothing overflowed.
#[inline(always)]
pub(crate) fn check_finite(x: &[f32], measure: f32) -> Result<(), EncodeError> {
    if measure.is_finite() {
        Ok(())
    } else if x.iter().all(|v| v.is_finite()) {
        Err(EncodeError::OutOfRange)
    } else {
        Err(EncodeError::NonFinite)
    }
}

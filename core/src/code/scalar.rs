//! The scalar codes `s2`..`s5` and `n2`..`n4` on registers: the paper's Algorithm 1.
//!
//! Everything here is generic over the instruction set, and takes and returns registers. The file `form`
//! reads and writes blocks.

use super::batch::{Batch, fill};
use super::codebook::Codebook;
use super::scale::{Effort, Moments, ScaleMode, canonical_sum};
use crate::error::EncodeError;
use crate::head_dim::{GROUP, HeadDim};
use crate::machine::{Isa, Lanes, Memory};
use crate::rotation;
use heapless::Vec;

/// The squares of all groups of `x` in one register; their sum is |x|^2 in the canonical order.
#[inline(always)]
pub(crate) fn squares<I: Isa>(isa: I, x: &[f32]) -> I::V {
    let mut squares = isa.splat(0.0);
    for group in x.chunks(GROUP) {
        let mut v = [isa.splat(0.0)];
        rotation::load(isa, group, &mut v);
        squares = squares + v[0] * v[0];
    }
    squares
}

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

/// Codes of `y` for the assumed norm. Returns the products y l and the squares l^2 of levels in units, summed
/// over the groups; the second sums are exact.
#[inline(always)]
fn quantise_at<I: Isa, const BITS: usize>(
    isa: I,
    book: &Codebook,
    assumed: f32,
    y: &[I::V],
    ragged: bool,
    codes: &mut [I::C],
) -> [I::V; 2] {
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
        energy = level.square_of_integer(energy);
    }
    [cross, energy]
}

/// [`quantise`] for machines that index memory, of vectors side by side. Every step is done for all vectors
/// before the next one begins, so that no root, division or sum is waited for. Codes stay where their pass
/// wrote them, so choosing one pass needs no copy. Returns the scale of each vector, and
/// which set of its codes is chosen.
#[inline(always)]
pub(crate) fn quantise_all<I: Memory, const BITS: usize, const G: usize, const N: usize>(
    isa: I,
    book: &Codebook,
    mode: ScaleMode,
    effort: Effort,
    shape: HeadDim,
    batch: &mut Batch<I, G, N>,
) -> [(f32, usize); N] {
    // The best pass has a quality, a set of codes, an assumed norm and moments. No quality is below 0.
    let (mut best, mut chosen) = ([-1.0; N], [1; N]);
    let (mut scales, mut crosses, mut energies) = ([0.0; N], [0.0; N], [0.0; N]);
    for &factor in effort.candidates(BITS) {
        let (mut cross, mut energy) = (Vec::<_, N>::new(), Vec::<_, N>::new());
        #[expect(clippy::needless_range_loop, reason = "zipped, AVX2 takes a twelfth more for one vector")]
        for k in 0..N {
            let Some(y) = batch.vectors.get(k) else { continue };
            let (y, assumed) = (&y[..shape.groups()], batch.roots[k] * factor);
            let sums = fill::<I, _, _, _, _>(
                &mut batch.sets[(chosen[k] ^ 1) & 1],
                k,
                isa.round_i8(isa.splat(0.0)),
                #[inline(always)]
                |codes| {
                    let codes = &mut codes[..shape.groups()];
                    quantise_at::<I, BITS>(isa, book, assumed, y, shape.is_ragged(), codes)
                },
            );
            let Some(sums) = sums else { continue };
            _ = (cross.push(sums[0]), energy.push(sums[1]));
        }
        let (cross, energy) = (isa.sum_each::<N>(&cross), isa.sum_each::<N>(&energy));
        for k in 0..N {
            let quality = cross[k] * cross[k] / energy[k];
            let better = quality > best[k];
            best[k] = if better { quality } else { best[k] };
            scales[k] = if better { batch.roots[k] * factor } else { scales[k] };
            crosses[k] = if better { cross[k] } else { crosses[k] };
            energies[k] = if better { energy[k] } else { energies[k] };
            chosen[k] ^= usize::from(better);
        }
    }
    core::array::from_fn(
        #[inline(always)]
        |k| {
            let (norm_squared, assumed, cross, energy) = (batch.norms[k], scales[k], crosses[k], energies[k]);
            let moments = Moments { norm_squared, assumed, cross, energy, whole: None };
            (moments.in_units_of(book.unit()).scale(isa, mode, shape.dim()), chosen[k] & 1)
        },
    )
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
        let assumed = norm * factor;
        let [cross, energy] = quantise_at::<I, BITS>(isa, book, assumed, y, ragged, spare);
        let (cross, energy) = (cross.sum(), energy.sum());
        let next = Moments { norm_squared, assumed, cross, energy, whole: None };
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

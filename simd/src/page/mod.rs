//! Pages: codes of a run of tokens, arranged in memory for the kernels that attend over them.
//!
//! The caller owns the memory, a slice of [`Line`]s. [`KeyPages`] and [`ValuePages`] give the size of a page,
//! write blocks to it and read them back unchanged, in any order. Appending writes the next slot; truncating
//! only forgets the last slots. The layout is private and never stored; files hold blocks.
//!
//! ```text
//! keys    tile of 16 tokens: line = 4 code bytes of each, so 16 dot products fill 16 lanes
//! values  lines of 4 tokens: line = one code byte of each for 16 positions
//! scales  f16, at the head of the page, so that both are streams of full lines
//! ```
//!
//! Scores multiply an int8 query with int8 levels in exact integer arithmetic. The logits are therefore equal
//! to the bit on every level of the machine. Sums of values do the same with 8-bit weights (14 bits for
//! 8-bit codes). The cost in accuracy is under 1 % of a logit's spread. [`crate::codec`] has the exact levels
//! in `f32`, on stored blocks.

mod attend;
mod columns;
mod exp;
mod half_rows;
mod keys;
mod plan;
mod query;
mod rows;
mod sums;
pub(crate) mod trellis;
mod values;
mod weights;
mod woven;

pub use crate::lines::Line;
pub use attend::{Attention, AttentionParts, WeightedPart, attend, merge, rescale, soften};
pub use exp::{EXP_ERROR, exp};
pub use half_rows::HalfPages;
pub use keys::KeyPages;
pub use query::Queries;
pub use rows::{narrow_rows, row_scores, row_sums, widen_rows};
pub use sums::ValuePart;
pub use values::ValuePages;

/// Maximum number of query heads per call; a larger GQA group takes several calls.
pub const MAX_HEADS: usize = 8;

/// Maximum number of tokens of a page; it keeps sums of values inside `i32`.
pub const MAX_SLOTS: usize = 512;

/// Maximum number of tokens of a part, which is scored at once.
pub const MAX_PART: usize = 128;

/// Maximum number of parts that are softened and summed together.
pub const MAX_PARTS: usize = 8;

/// Maximum number of tokens of these parts.
pub const MAX_TOGETHER: usize = 2 * MAX_PART;

/// The number of tokens of a page is a multiple of this.
pub const SLOT_STEP: usize = 32;

/// Prefetches the first lines of a page that is read soon: its scales, as many lines as the present page has.
/// Returns the other lines, which the loop of the present page prefetches.
#[inline(always)]
fn fetch_scales<I: crate::lines::Machine>(isa: I, next: &[Line], scales: usize) -> &[Line] {
    let (first, others) = next.split_at(scales.min(next.len()));
    first.iter().for_each(|line| isa.prefetch(line));
    others
}

/// Prefetches lines that are read soon. `BITS` is the width of the codes, or 0 for trellis codes. From 3 bits
/// on, a page leaves the first level before it is read, so it is prefetched to the second level.
#[inline(always)]
fn prefetch<I: crate::lines::Machine, const BITS: usize>(isa: I, lines: &[Line]) {
    for line in lines {
        if const { BITS > 2 } { isa.prefetch_near(line) } else { isa.prefetch(line) }
    }
}

/// The lines of one step. `array::from_fn` may be compiled without the instruction set, so it is not used.
#[inline(always)]
fn read_lines<I: crate::lines::Machine, const DEPTH: usize>(
    isa: I,
    lines: &[Line; DEPTH],
) -> [I::Line; DEPTH] {
    let mut read = [isa.line(&lines[0]); DEPTH];
    for k in 1..DEPTH {
        read[k] = isa.line(&lines[k]);
    }
    read
}

/// Returns lines to prefetch, as many as `lines` has: those of `next`, or `lines` itself if `next` has fewer.
/// Prefetching a line that is already there costs less than a check per line.
#[inline(always)]
fn ahead_of<'a>(lines: &'a [Line], next: &'a [Line]) -> &'a [Line] {
    next.get(..lines.len()).unwrap_or(lines)
}

/// Prefetches the line in which a value begins. Use it for data that is read soon, such as the descriptor of
/// a page.
#[inline]
pub fn ask_for<T>(value: &T) {
    let at: *const T = value;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the hint reads nothing that the program can see. Every processor of this architecture has it.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// The bytes of lines.
#[inline(always)]
pub(crate) fn bytes(lines: &[Line]) -> &[[u8; 64]] {
    bytemuck::cast_slice(lines)
}

/// The bytes of lines, mutable.
#[inline(always)]
pub(crate) fn bytes_mut(lines: &mut [Line]) -> &mut [[u8; 64]] {
    bytemuck::cast_slice_mut(lines)
}

/// Lines as f16 bit patterns.
#[inline(always)]
pub(crate) fn halves(lines: &[Line]) -> &[u16] {
    bytemuck::cast_slice(lines)
}

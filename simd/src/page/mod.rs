//! Pages: codes of a run of tokens, arranged in memory for the kernels that attend over them.
//!
//! The caller owns the memory, a slice of [`Line`]s; [`KeyPages`] and [`ValuePages`] say how many
//! a page takes and put blocks in and take them out unchanged, in any order: appending is
//! writing the next slot, truncating is forgetting the last ones. The arrangement is private and
//! never stored; files hold blocks.
//!
//! ```text
//! keys    tile of 16 tokens: line = 4 code bytes of each, so 16 dot products fill 16 lanes
//! values  lines of 4 tokens: line = one code byte of each for 16 positions
//! scales  f16, at the head of the page, so that both are streams of whole lines
//! ```
//!
//! Scores multiply an int8 query with int8 levels in exact integer arithmetic: the logits are
//! equal to the bit on every level of the machine. Sums of values do the same with 14-bit weights.
//! What that costs in accuracy is under 1 % of a logit's spread; the exact levels in `f32`, on
//! stored blocks, are in [`crate::codec`].

mod attend;
mod columns;
mod exp;
mod half_rows;
mod keys;
mod plan;
mod query;
mod rows;
mod trellis;
mod values;
mod weights;
mod woven;

pub use crate::lines::Line;
pub use attend::{Attention, Part, Parts, attend, merge, rescale, soften};
pub use exp::{EXP_ERROR, exp};
pub use half_rows::HalfPages;
pub use keys::KeyPages;
pub use query::Queries;
pub use rows::{narrow_rows, row_scores, row_sums, widen_rows};
pub use values::{ValuePages, ValuePart};

/// Most query heads of a call: a larger GQA group takes several.
pub const MAX_HEADS: usize = 8;

/// Most tokens of a page: what keeps sums of values inside `i32`.
pub const MAX_SLOTS: usize = 512;

/// Most tokens of a part: what is scored at once.
pub const MAX_PART: usize = 128;

/// Most parts that are softened and summed together.
pub const MAX_PARTS: usize = 2;

/// Tokens of a page are a multiple of this.
pub const SLOT_STEP: usize = 32;

/// Asks for the first lines of a page that is read soon, as many as the present page has beyond those that
/// its loop goes through: its scales. Returns the others.
#[inline(always)]
fn fetch_scales<I: crate::lines::Machine>(isa: I, next: &[Line], scales: usize) -> &[Line] {
    let (first, others) = next.split_at(scales.min(next.len()));
    first.iter().for_each(|line| isa.prefetch(line));
    others
}

/// Asks for lines that are read soon. Codes of `BITS` bits, 0 for trellis codes: from 3 bits on a page leaves
/// the first level before it is read, so the second is asked to hold it.
#[inline(always)]
fn prefetch<I: crate::lines::Machine, const BITS: usize>(isa: I, lines: &[Line]) {
    for line in lines {
        if const { BITS > 2 } { isa.prefetch_near(line) } else { isa.prefetch(line) }
    }
}

/// Lines of one step. No `array::from_fn`: it may be compiled without the instruction set.
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

/// As many lines to ask for as `lines` has: `next`, or where these are fewer the lines themselves. To ask for
/// what is there costs less than to look, line by line, whether there is something to ask for.
#[inline(always)]
fn ahead_of<'a>(lines: &'a [Line], next: &'a [Line]) -> &'a [Line] {
    next.get(..lines.len()).unwrap_or(lines)
}

/// Asks for the line in which a value begins: what is read soon, such as that which says where a page is.
#[inline]
pub fn ask_for<T>(value: &T) {
    let at: *const T = value;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing that the program can see; every processor of this architecture has
    // it.
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

/// The bytes of lines, to write.
#[inline(always)]
pub(crate) fn bytes_mut(lines: &mut [Line]) -> &mut [[u8; 64]] {
    bytemuck::cast_slice_mut(lines)
}

/// Lines as f16 bit patterns.
#[inline(always)]
pub(crate) fn halves(lines: &[Line]) -> &[u16] {
    bytemuck::cast_slice(lines)
}

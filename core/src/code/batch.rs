//! Vectors that are encoded side by side, and their memory.

use crate::machine::Memory;
use heapless::Vec;

/// `N` vectors after the rotation, and memory for their codes. It is cleared where it is first used, because
/// clearing all of it would take as long as encoding does.
pub struct Batch<I: Memory, const G: usize, const N: usize> {
    /// |x|^2 of each.
    pub(crate) norms: [f32; N],
    /// |x| of each.
    pub(crate) roots: [f32; N],
    /// The vectors.
    pub(crate) vectors: Vec<[I::V; G], N>,
    /// Two codes of each: the best so far, and those of the pass that is tried.
    pub(crate) sets: [Vec<[I::C; G], N>; 2],
}

impl<I: Memory, const G: usize, const N: usize> Batch<I, G, N> {
    /// No vectors.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let sets = [Vec::new(), Vec::new()];
        Self { norms: [0.0; N], roots: [0.0; N], vectors: Vec::new(), sets }
    }
}

/// Fills place `k` of `slots`: in registers if they hold it, else in memory that is cleared on first use.
/// Places are filled in order; one that is skipped gives `None`.
#[inline(always)]
pub(crate) fn fill<I: Memory, T: Copy, R, const G: usize, const N: usize>(
    slots: &mut Vec<[T; G], N>,
    k: usize,
    first: T,
    fill: impl FnOnce(&mut [T; G]) -> R,
) -> Option<R> {
    if const { G > I::GROUPS_IN_REGISTERS } {
        if k == slots.len() {
            _ = slots.push([first; G]);
        }
        return slots.get_mut(k).map(fill);
    }
    let mut place = [first; G];
    let filled = fill(&mut place);
    match slots.get_mut(k) {
        Some(slot) => *slot = place,
        None => _ = slots.push(place),
    }
    Some(filled)
}

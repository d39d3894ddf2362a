//! Sums over slots that are exact rows on one side and codes on the other.
//!
//! Such slots exist where the codec of one side is f16, or where a row of one side cannot be encoded.

use super::rows;
use super::stream::SlotPlace;
use super::task::StreamSide;
use crate::attend::{PageSum, sum_pages};
use crate::cache::life::{PAGE_TOKENS, add_weighted};
use tqkv_simd::page::{MAX_HEADS, MAX_PART};

/// Adds the values of some slots, at most [`MAX_PART`], weighted by `weights` (`[n, slots]`), to the two sums
/// (`[n, dim]`) of at most [`MAX_HEADS`] queries: of rows and means, and of blocks in their domain.
pub(super) fn sum(
    values: StreamSide<'_>,
    slots: impl Iterator<Item = usize> + Clone,
    weights: &[f32],
    [plain, rotated]: [&mut [f32]; 2],
) {
    let count = slots.clone().count();
    let place = |slot: usize| (slot, values.stream.place(slot));
    let (mut from, mut places) = (0, slots.map(place).peekable());
    let mut room = [0.0; MAX_HEADS * PAGE_TOKENS];
    while let Some((slot, first)) = places.next() {
        let mut to = from + 1;
        let follows = |place: &(usize, SlotPlace), to: usize| match (first, place.1) {
            (SlotPlace::Exact(first), SlotPlace::Exact(at)) => at == first + to - from,
            // Codes are summed where they lie, so that a run of them is in order.
            (SlotPlace::Coded(first), SlotPlace::Coded(tier)) => {
                tier == first && place.0 == slot + to - from && place.0 / PAGE_TOKENS == slot / PAGE_TOKENS
            }
            (SlotPlace::Empty, SlotPlace::Empty) => true,
            _ => false,
        };
        while places.next_if(|place| follows(place, to)).is_some() {
            to += 1;
        }
        let n = weights.len() / count;
        let run = &mut room[..n * (to - from)];
        for (run, weights) in run.chunks_exact_mut(to - from).zip(weights.chunks_exact(count)) {
            run.copy_from_slice(&weights[from..to]);
        }
        match first {
            _ if run.iter().all(|weight| *weight == 0.0) => {}
            SlotPlace::Exact(at) => rows::sum(values, at..at + to - from, run, plain),
            SlotPlace::Coded(tier) => {
                if let Some(page) = values.page(tier, slot / PAGE_TOKENS) {
                    let part = PageSum { page, index: slot, weights: run, next: &[] };
                    sum_pages(std::iter::once(part), rotated);
                    add_weighted(plain, run, values.mean_of_values());
                }
            }
            SlotPlace::Empty => {}
        }
        from = to;
    }
    const { assert!(MAX_PART <= PAGE_TOKENS) }
}

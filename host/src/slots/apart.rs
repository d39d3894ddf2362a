//! Sums over slots that are exact rows on one side and codes on the other.
//!
//! Such slots exist where the codec of one side is f16, or where a row of one side cannot be encoded.

use super::rows;
use super::stream::SlotPlace;
use super::task::Track;
use crate::cache::life::{PAGE_TOKENS, add_weighted};
use tqkv_simd::page::MAX_HEADS;

/// Adds the values of `slots`, weighted by `weights` (`[n, slots]`), to `sums` (`[n, dim]`).
pub(super) fn sum(values: Track<'_>, slots: &[usize], weights: &[f32], sums: &mut [f32]) {
    let (stream, mut wide) = (values.stream, Vec::new());
    let mut from = 0;
    while from < slots.len() {
        let first = stream.place(slots[from]);
        let follows = |to: usize| match (first, stream.place(slots[to])) {
            (SlotPlace::Exact(first), SlotPlace::Exact(at)) => at == first + to - from,
            (SlotPlace::Coded(first), SlotPlace::Coded(tier)) => {
                tier == first && slots[to] / PAGE_TOKENS == slots[from] / PAGE_TOKENS
            }
            (SlotPlace::Empty, SlotPlace::Empty) => true,
            _ => false,
        };
        let mut to = from + 1;
        while to < slots.len() && follows(to) {
            to += 1;
        }
        let run = weights.chunks_exact(slots.len()).flat_map(|weights| &weights[from..to]);
        let run: Vec<f32> = run.copied().collect();
        let weighs = run.iter().any(|weight| *weight != 0.0);
        match first {
            SlotPlace::Exact(at) if weighs => rows::sum(values, at..at + to - from, &run, sums, &mut wide),
            SlotPlace::Coded(tier) if weighs => add_codes(values, tier, &slots[from..to], &run, sums),
            _ => {}
        }
        from = to;
    }
}

/// Adds codes of one page and tier, weighted by `weights` (`[n, slots]`).
fn add_codes(values: Track<'_>, tier: usize, slots: &[usize], weights: &[f32], sums: &mut [f32]) {
    let dim = values.format.dim;
    let (page, of) = (slots[0] / PAGE_TOKENS, &values.stream.pages);
    let pages = values.format.pages_of(tier, of.room(tier, page));
    let (Some(pages), Some(lines)) = (pages, of.page(tier, values.head, page)) else { return };
    let room = pages.slots();
    let mut rotated = vec![0.0; sums.len()];
    let chunks = weights.chunks(MAX_HEADS * slots.len());
    for (rotated, weights) in rotated.chunks_mut(MAX_HEADS * dim).zip(chunks) {
        let mut spread = vec![0.0; rotated.len() / dim * room];
        for (spread, weights) in spread.chunks_exact_mut(room).zip(weights.chunks_exact(slots.len())) {
            slots.iter().zip(weights).for_each(|(slot, weight)| spread[slot % PAGE_TOKENS] = *weight);
        }
        pages.accumulate(lines, page * PAGE_TOKENS, &spread, &[], rotated);
    }
    values.format.unrotate(tier, &mut rotated);
    sums.iter_mut().zip(&rotated).for_each(|(sum, x)| *sum += x);
    add_weighted(sums, weights, values.mean());
}

//! Sums over slots that are exact rows on one side and codes on the other.
//!
//! Such slots exist where the codec of one side is f16, or where a row of one side cannot be encoded.

use super::rows;
use super::stream::Place;
use super::task::Track;
use crate::cache::life::PAGE_TOKENS;
use tqkv_simd::page::MAX_HEADS;

/// Adds the values of `slots`, weighted by `weights` (`[n, slots]`), to `sums` (`[n, dim]`).
pub(super) fn sum(values: Track<'_>, slots: &[usize], weights: &[f32], sums: &mut [f32]) {
    let (stream, mut wide) = (values.stream, Vec::new());
    let mut from = 0;
    while from < slots.len() {
        let first = stream.place(slots[from]);
        let follows = |to: usize| match (first, stream.place(slots[to])) {
            (Place::Exact(first), Place::Exact(at)) => at == first + to - from,
            (Place::Coded, Place::Coded) => slots[to] / PAGE_TOKENS == slots[from] / PAGE_TOKENS,
            (Place::Empty, Place::Empty) => true,
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
            Place::Exact(at) if weighs => rows::sum(values, at..at + to - from, &run, sums, &mut wide),
            Place::Coded if weighs => add_codes(values, &slots[from..to], &run, sums),
            _ => {}
        }
        from = to;
    }
}

/// Adds codes of one page, weighted by `weights` (`[n, slots]`).
fn add_codes(values: Track<'_>, slots: &[usize], weights: &[f32], sums: &mut [f32]) {
    let dim = values.format.dim;
    let lines = values.stream.page(values.head, slots[0] / PAGE_TOKENS);
    let (Some(pages), Some(lines)) = (&values.format.coded, lines) else { return };
    let mut rotated = vec![0.0; sums.len()];
    let weights = weights.chunks(MAX_HEADS * slots.len());
    for (rotated, weights) in rotated.chunks_mut(MAX_HEADS * dim).zip(weights) {
        let mut spread = vec![0.0; rotated.len() / dim * PAGE_TOKENS];
        for (spread, weights) in spread.chunks_exact_mut(PAGE_TOKENS).zip(weights.chunks_exact(slots.len())) {
            slots.iter().zip(weights).for_each(|(slot, weight)| spread[slot % PAGE_TOKENS] = *weight);
        }
        pages.accumulate(lines, slots[0] / PAGE_TOKENS * PAGE_TOKENS, &spread, &[], rotated);
    }
    values.format.unrotate(&mut rotated);
    sums.iter_mut().zip(&rotated).for_each(|(sum, x)| *sum += x);
}

//! Attention of the queries of one KV head over the slots of one stream.
//!
//! Slots are divided into parts: runs of exact rows, and runs of pages of codes. Any thread may compute a
//! part; the results are merged in order. The division depends only on the slots, so the number of threads
//! changes no bit of a result.

use super::codes;
use super::exact;
use super::rule::{Asked, QueryRule};
use super::task::{PartSums, Task, Track};
use crate::cache::life::PAGE_TOKENS;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::page::{Attention, merge};

/// Most exact rows of a part.
const PART_ROWS: usize = 1024;

/// Most pages of a part.
const PART_PAGES: usize = PART_ROWS / PAGE_TOKENS;

/// Slots that are attended to at once.
#[derive(Clone, Debug)]
enum SlotPart {
    /// Exact rows, by their places.
    Exact(Range<usize>),
    /// Slots of pages that are codes of a tier, and with the first tier the empty ones.
    Pages(usize, Range<usize>),
}

/// Working memory of a thread, kept from call to call.
#[derive(Default)]
struct PartScratch {
    codes: codes::CodeScratch,
    exact: exact::RowScratch,
}

thread_local!(static SCRATCH: RefCell<PartScratch> = RefCell::default());

/// Attends with any number of queries (`[n, head_dim]`, one of `asked` each); `out` is `[n, value_dim]`.
///
/// In a thread of a rayon pool, the pool's threads share the parts.
pub fn attend(
    rule: &QueryRule,
    (keys, values): (Track<'_>, Track<'_>),
    asked: &[Asked<'_>],
    queries: &[f32],
    out: &mut [f32],
) {
    let task = Task { rule, keys, values, asked, queries };
    let parts = task.parts();
    let each = |part: &SlotPart| task.attend(part);
    let seen: Vec<PartSums> = if parts.len() > 1 && rayon::current_thread_index().is_some() {
        parts.par_iter().map(each).collect()
    } else {
        parts.iter().map(each).collect()
    };
    let dim = values.format.dim;
    for (q, out) in out.chunks_exact_mut(dim).take(asked.len()).enumerate() {
        let sink = asked[q].sink.map(|max| Attention { max, sum: 1.0 });
        let mut state = sink.unwrap_or(Attention::EMPTY);
        out.fill(0.0);
        for seen in &seen {
            let [old, new] = merge(&mut state, &seen.state[q]);
            let sums = &seen.sums[q * dim..(q + 1) * dim];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *out * old + sum * new);
        }
        // A query that sees no slot gets zeros, as in the host's own attention.
        let factor = if state.sum == 0.0 { 0.0 } else { 1.0 / state.sum };
        out.iter_mut().for_each(|out| *out *= factor);
    }
}

impl Task<'_> {
    fn parts(&self) -> Vec<SlotPart> {
        let pieces = |end: usize, step: usize| (0..end).step_by(step).map(move |at| at..end.min(at + step));
        let end = self.rule.slots.div_ceil(PAGE_TOKENS);
        let pages = (0..self.keys.format.tiers().max(1))
            .flat_map(|tier| pieces(end, PART_PAGES).map(move |pages| SlotPart::Pages(tier, pages)));
        pages.chain(pieces(self.keys.stream.exact.len(), PART_ROWS).map(SlotPart::Exact)).collect()
    }

    fn attend(&self, part: &SlotPart) -> PartSums {
        SCRATCH.with_borrow_mut(|scratch| match part {
            SlotPart::Exact(rows) => exact::attend(self, rows.clone(), &mut scratch.exact),
            SlotPart::Pages(tier, pages) => codes::attend(self, (*tier, pages.clone()), &mut scratch.codes),
        })
    }
}

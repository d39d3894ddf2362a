//! Attention of the queries of one KV head over the slots of one stream.
//!
//! Slots are divided into parts: runs of exact rows, and runs of pages of codes. Any thread may compute a
//! part; the results are merged in order. The division depends only on the slots, so the number of threads
//! changes no bit of a result.

use super::codes;
use super::exact;
use super::format::Format;
use super::stream::{SLOTS, Stream};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::page::{Attention, merge};

/// Most exact rows of a part.
const PART_ROWS: usize = 1024;

/// Most pages of a part.
const PART_PAGES: usize = PART_ROWS / SLOTS;

/// The settings that all queries of an operation share.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Factor of logits.
    pub scale: f32,
    /// Logits l become cap * tanh(l / cap); 0 for none.
    pub soft_cap: f32,
    /// Number of slots that are attended to, from the first on.
    pub slots: usize,
}

/// The settings of one query.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// One number per slot, added to the logits; -inf hides the slot. Empty for no mask. All query heads of a
    /// token may share one slice.
    pub mask: &'a [f16],
    /// Factor of the mask.
    pub slope: f32,
    /// A logit that takes weight but has no value (a learned sink).
    pub sink: Option<f32>,
}

impl Asked<'_> {
    /// True if both queries share one mask slice.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        std::ptr::eq(self.mask, other.mask)
    }

    /// The mask of slots `from..to`. Slots past the end of the mask are seen; the result leaves them out.
    pub(super) fn mask_of(&self, from: usize, to: usize) -> &[f16] {
        self.mask.get(from..to.min(self.mask.len())).unwrap_or_default()
    }
}

const MINUS_INFINITY: u16 = 0xfc00;

/// True if a mask shows one of its own slots. Slots past its end, which are seen too, do not count.
pub(super) fn shows_any(mask: &[f16]) -> bool {
    !mask.iter().fold(true, |hidden, x| hidden & (x.to_bits() == MINUS_INFINITY))
}

/// True if a mask changes a logit.
pub(super) fn changes_any(mask: &[f16]) -> bool {
    mask.iter().fold(false, |changed, x| changed | (x.to_bits() != 0))
}

/// Adds a mask times its factor to logits; `wide` is working memory.
pub(super) fn add_mask(logits: &mut [f32], mask: &[f16], slope: f32, wide: &mut Vec<f32>) {
    wide.resize(mask.len(), 0.0);
    mask.convert_to_f32_slice(wide);
    logits.iter_mut().zip(&*wide).for_each(|(logit, mask)| *logit += slope * mask);
}

/// Logits l become cap * tanh(l / cap); a cap of 0 changes nothing.
pub(super) fn cap(logits: &mut [f32], soft_cap: f32) {
    if soft_cap != 0.0 {
        logits.iter_mut().for_each(|x| *x = soft_cap * (*x / soft_cap).tanh());
    }
}

/// The keys or the values of one KV head in one stream.
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    /// The stream, with all its heads.
    pub stream: &'a Stream,
    /// The format of the heads.
    pub format: &'a Format,
    /// Index of the head.
    pub head: usize,
}

/// Slots that are attended to at once.
#[derive(Clone, Debug)]
enum Part {
    /// Exact rows, by their places.
    Exact(Range<usize>),
    /// Coded and empty slots of pages.
    Pages(Range<usize>),
}

/// Result of a part: the softmax state of each query, and weighted sums of values (`[n, value_dim]`).
pub(super) struct Seen {
    pub(super) state: Vec<Attention>,
    pub(super) sums: Vec<f32>,
}

/// Working memory of a thread, kept from call to call.
#[derive(Default)]
struct Scratch {
    codes: codes::Scratch,
    exact: exact::Scratch,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

/// Keys, values and n queries (`[n, head_dim]`) with their settings.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) rule: &'a Rule,
    pub(super) keys: Track<'a>,
    pub(super) values: Track<'a>,
    pub(super) asked: &'a [Asked<'a>],
    pub(super) queries: &'a [f32],
}

/// Attends with any number of queries (`[n, head_dim]`, one of `asked` each); `out` is `[n, value_dim]`.
///
/// In a thread of a rayon pool, the pool's threads share the parts.
pub fn attend(
    rule: &Rule,
    (keys, values): (Track<'_>, Track<'_>),
    asked: &[Asked<'_>],
    queries: &[f32],
    out: &mut [f32],
) {
    let task = Task { rule, keys, values, asked, queries };
    let parts = task.parts();
    let each = |part: &Part| task.attend(part);
    let seen: Vec<Seen> = if parts.len() > 1 && rayon::current_thread_index().is_some() {
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
    fn parts(&self) -> Vec<Part> {
        let pieces = |end: usize, step: usize| (0..end).step_by(step).map(move |at| at..end.min(at + step));
        let pages = pieces(self.rule.slots.div_ceil(SLOTS), PART_PAGES).map(Part::Pages);
        pages.chain(pieces(self.keys.stream.exact_rows(), PART_ROWS).map(Part::Exact)).collect()
    }

    fn attend(&self, part: &Part) -> Seen {
        SCRATCH.with_borrow_mut(|scratch| match part {
            Part::Exact(rows) => exact::attend(self, rows.clone(), &mut scratch.exact),
            Part::Pages(pages) => codes::attend(self, pages.clone(), &mut scratch.codes),
        })
    }
}

impl Seen {
    /// The state before any slot: no weight, and sums of 0.
    pub(super) fn nothing(task: &Task<'_>) -> Self {
        let n = task.asked.len();
        Self { state: vec![Attention::EMPTY; n], sums: vec![0.0; n * task.values.format.dim] }
    }
}

//! Attention of the queries of one KV head over the slots of one stream.
//!
//! Slots are divided into parts: runs of exact rows, and runs of pages of codes. Parts are attended to apart,
//! by any threads, and joined in order. Which parts there are depends on nothing but the slots, so the number
//! of threads changes no bit of a result.

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

/// Exact rows of a part.
const PART_ROWS: usize = 1024;

/// Pages of a part.
const PART_PAGES: usize = PART_ROWS / SLOTS;

/// The settings that all queries of an operation share.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Factor of logits.
    pub scale: f32,
    /// Logits l become cap * tanh(l / cap); 0 for none.
    pub soft_cap: f32,
    /// Slots from the first on that are attended to.
    pub slots: usize,
}

/// One query's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Added to the logits, one a slot; empty for none. -inf hides a slot. Query heads of one token share it.
    pub mask: &'a [f16],
    /// Factor of the mask.
    pub slope: f32,
    /// A logit that takes weight and adds no value.
    pub sink: Option<f32>,
}

impl Asked<'_> {
    /// Whether both have one mask.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        std::ptr::eq(self.mask, other.mask)
    }

    /// The mask of slots `from..to`; those past its end are seen, and are not in it.
    pub(super) fn mask_of(&self, from: usize, to: usize) -> &[f16] {
        self.mask.get(from..to.min(self.mask.len())).unwrap_or_default()
    }
}

const MINUS_INFINITY: u16 = 0xfc00;

/// Whether a mask hides no more than all slots but those past its end.
pub(super) fn shows_any(mask: &[f16]) -> bool {
    !mask.iter().fold(true, |hidden, x| hidden & (x.to_bits() == MINUS_INFINITY))
}

/// Whether a mask changes a logit.
pub(super) fn changes_any(mask: &[f16]) -> bool {
    mask.iter().fold(false, |changed, x| changed | (x.to_bits() != 0))
}

/// Adds what a mask holds times its factor; `wide` is room.
pub(super) fn add_mask(logits: &mut [f32], mask: &[f16], slope: f32, wide: &mut Vec<f32>) {
    wide.resize(mask.len(), 0.0);
    mask.convert_to_f32_slice(wide);
    logits.iter_mut().zip(&*wide).for_each(|(logit, mask)| *logit += slope * mask);
}

/// Logits l become cap * tanh(l / cap).
pub(super) fn cap(logits: &mut [f32], soft_cap: f32) {
    if soft_cap != 0.0 {
        logits.iter_mut().for_each(|x| *x = soft_cap * (*x / soft_cap).tanh());
    }
}

/// One side of a KV head.
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    /// All heads of the stream.
    pub stream: &'a Stream,
    /// How they are encoded.
    pub format: &'a Format,
    /// Which of them.
    pub head: usize,
}

/// Slots that are attended to at once.
#[derive(Clone, Debug)]
enum Part {
    /// These exact rows.
    Exact(Range<usize>),
    /// Slots of these pages that are no exact rows.
    Pages(Range<usize>),
}

/// What a part gives: for each query what it has seen, and its sum of values, `[n, value_dim]`.
pub(super) struct Seen {
    pub(super) state: Vec<Attention>,
    pub(super) sums: Vec<f32>,
}

/// Memory that a thread uses again.
#[derive(Default)]
struct Scratch {
    codes: codes::Scratch,
    exact: exact::Scratch,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

/// Keys and values, what is asked of them, and the queries (`[n, head_dim]`).
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) rule: &'a Rule,
    pub(super) keys: Track<'a>,
    pub(super) values: Track<'a>,
    pub(super) asked: &'a [Asked<'a>],
    pub(super) queries: &'a [f32],
}

/// Attends with any number of queries (`[n, head_dim]`, n of `asked`); `out` is `[n, value_dim]`. Parts are
/// divided among the threads of the pool that it is called in.
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
        // Nothing seen gives zeros, as the host's own attention does.
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
    /// Of queries that have seen nothing yet.
    pub(super) fn nothing(task: &Task<'_>) -> Self {
        let n = task.asked.len();
        Self { state: vec![Attention::EMPTY; n], sums: vec![0.0; n * task.values.format.dim] }
    }
}

//! Attention of up to [`MAX_HEADS`] queries over the slots of one stream and KV head.
//!
//! Two passes: logits of all slots that some query sees, then values weighted against each query's largest logit. Slots
//! are addressed by pages; pages that no query sees are not read.

use super::format::SLOTS;
use super::format::{Format, Pages};
use super::means::Means;
use super::stream::{Place, Stream};
use half::f16;
use half::slice::HalfFloatSliceExt;
use tqkv_simd::codec;
use tqkv_simd::page::{Attention, Line, MAX_HEADS, Queries, row_scores, row_sums, soften};

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
    /// Added to the logits, one a slot; empty for none. -inf hides a slot.
    pub mask: &'a [f16],
    /// Factor of the mask.
    pub slope: f32,
    /// A logit that takes weight and adds no value.
    pub sink: Option<f32>,
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

/// Memory that is used again.
#[derive(Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    scaled: Vec<f32>,
    rotated: Vec<f32>,
    offsets: Vec<f32>,
    exact: Vec<f32>,
    weights: Vec<f32>,
    sums: Vec<f32>,
    plain: Vec<f32>,
    /// Pages that some query sees, and whether a mask is to be added there.
    seen: Vec<(usize, bool)>,
    int8: Box<Queries>,
}

/// Attends with queries (`[n, head_dim]`, n of `asked`, at most [`MAX_HEADS`]); `out` is `[n, value_dim]`.
pub fn attend(
    rule: &Rule,
    (keys, values): (Track<'_>, Track<'_>),
    asked: &[Asked<'_>],
    queries: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let Scratch { logits, seen, .. } = scratch;
    see(rule.slots, asked, seen);
    logits.clear();
    logits.resize(seen.len() * SLOTS * asked.len(), 0.0);
    let largest = score(rule, keys, asked, queries, scratch);
    let mut state = [Attention::EMPTY; MAX_HEADS];
    for ((state, asked), largest) in state.iter_mut().zip(asked).zip(largest) {
        let sink = asked.sink.unwrap_or(f32::NEG_INFINITY);
        state.max = largest.max(sink);
        state.sum = if asked.sink.is_some() { (sink - state.max).exp() } else { 0.0 };
    }
    sum(rule, values, asked, &mut state[..asked.len()], out, scratch);
}

/// Finds the pages that some query sees.
fn see(slots: usize, asked: &[Asked<'_>], seen: &mut Vec<(usize, bool)>) {
    seen.clear();
    for page in 0..slots.div_ceil(SLOTS) {
        let (from, to) = (page * SLOTS, slots.min((page + 1) * SLOTS));
        let (mut any, mut masked) = (false, false);
        for asked in asked.iter() {
            // A slot past the mask is seen.
            let mask = asked.mask.get(from..to.min(asked.mask.len())).unwrap_or_default();
            let hidden = mask.iter().fold(true, |hidden, x| hidden & (x.to_bits() == MINUS_INFINITY));
            any |= mask.len() < to - from || !hidden;
            masked |= mask.iter().fold(false, |masked, x| masked | (x.to_bits() != 0));
        }
        if any {
            seen.push((page, masked));
        }
    }
}

const MINUS_INFINITY: u16 = 0xfc00;

/// Slots of a page that are attended to.
fn page_slots(rule: &Rule, page: usize) -> usize {
    (rule.slots - page * SLOTS).min(SLOTS)
}

/// Fills the logits of the pages that are seen, `[n, slots]` each; the largest of each query.
fn score(
    rule: &Rule,
    keys: Track<'_>,
    asked: &[Asked<'_>],
    queries: &[f32],
    scratch: &mut Scratch,
) -> [f32; MAX_HEADS] {
    let n = asked.len();
    let rows = prepare(rule, keys, asked, queries, scratch);
    let Scratch { logits, offsets, exact, seen, int8, .. } = scratch;
    let mut largest = [f32::NEG_INFINITY; MAX_HEADS];
    for (i, &(page, masked)) in seen.iter().enumerate() {
        let count = page_slots(rule, page);
        let logits = &mut logits[i * SLOTS * n..][..count * n];
        if let Some((lines, Pages::Keys(pages))) = coded_page(keys, page) {
            let next = seen.get(i + 1).and_then(|next| keys.stream.page(keys.head, next.0));
            pages.scores(keys.format.level, lines, 0, int8, next.unwrap_or_default(), logits);
            for (logits, offset) in logits.chunks_exact_mut(count).zip(&*offsets) {
                logits.iter_mut().for_each(|logit| *logit += offset);
            }
        } else {
            logits.fill(0.0);
        }
        if keys.stream.coded(page) < SLOTS {
            take_exact(keys.stream, page, count, logits, exact, rows);
        }
        for (q, (logits, asked)) in logits.chunks_exact_mut(count).zip(asked).enumerate() {
            if rule.soft_cap != 0.0 {
                logits.iter_mut().for_each(|x| *x = rule.soft_cap * (*x / rule.soft_cap).tanh());
            }
            if masked {
                let mask = asked.mask.get(page * SLOTS..).unwrap_or_default();
                for (logit, mask) in logits.iter_mut().zip(mask) {
                    *logit += asked.slope * mask.to_f32();
                }
            }
            largest[q] = logits.iter().fold(largest[q], |max, &x| if x > max { x } else { max });
        }
    }
    largest
}

/// True if some query sees a slot.
fn is_seen(rule: &Rule, asked: &[Asked<'_>], slot: usize) -> bool {
    let shown = |asked: &Asked<'_>| asked.mask.get(slot).is_none_or(|mask| mask.to_bits() != MINUS_INFINITY);
    slot < rule.slots && asked.iter().any(shown)
}

/// Queries times the factor of logits in all forms that slots need, and the logits of the exact rows that are seen: `[n, rows]`.
/// Returns the first and one past the last of these rows.
fn prepare(
    rule: &Rule,
    keys: Track<'_>,
    asked: &[Asked<'_>],
    queries: &[f32],
    scratch: &mut Scratch,
) -> (usize, usize) {
    let (dim, level) = (keys.format.dim, keys.format.level);
    let Scratch { scaled, rotated, offsets, exact, int8, .. } = scratch;
    scaled.clear();
    scaled.extend(queries.iter().map(|x| x * rule.scale));
    let n = queries.len() / dim;
    if let Some((codec, Pages::Keys(pages))) = &keys.format.coded {
        rotated.resize(scaled.len(), 0.0);
        codec::rotate_queries(level, codec, scaled, rotated);
        **int8 = pages.queries(level, rotated);
    }
    offsets.clear();
    if let Means::Known(_) = keys.stream.means {
        let mean = keys.stream.means.of(keys.head, dim);
        let dot = |q: &[f32]| q.iter().zip(mean).map(|(q, m)| q * m).sum::<f32>();
        offsets.extend(scaled.chunks_exact(dim).map(dot));
    }
    let (first, end) = keys.stream.exact_range(|slot| is_seen(rule, asked, slot));
    let rows = &keys.stream.exact[keys.head][first * dim..end * dim];
    exact.clear();
    exact.resize(n * (end - first), 0.0);
    row_scores(level, half_bits(rows), dim, scaled, exact);
    (first, end)
}

fn half_bits(rows: &[f16]) -> &[u16] {
    rows.reinterpret_cast()
}

/// A page that holds codes.
fn coded_page<'a>(track: Track<'a>, page: usize) -> Option<(&'a [Line], &'a Pages)> {
    let (_, pages) = track.format.coded.as_ref()?;
    Some((track.stream.page(track.head, page)?, pages))
}

/// Calls `visit` with runs of slots of a page that are no codes: the first slot, how many, and the exact row of the first, whose
/// neighbours are those of the others; none where nothing was written.
fn each_run(stream: &Stream, page: usize, count: usize, mut visit: impl FnMut(usize, usize, Option<usize>)) {
    let mut slot = 0;
    while slot < count {
        let first = stream.place(page * SLOTS + slot);
        let follows = |i: usize| match (first, stream.place(page * SLOTS + slot + i)) {
            (Place::Exact(first), Place::Exact(at)) => at == first + i,
            (first, place) => first == place && first != Place::Coded,
        };
        let mut length = 1;
        while slot + length < count && follows(length) {
            length += 1;
        }
        match first {
            Place::Exact(at) => visit(slot, length, Some(at)),
            Place::Empty => visit(slot, length, None),
            Place::Coded => {}
        }
        slot += length;
    }
}

/// The part of a run of exact rows that lies among rows `first..end`: the run's slot and row, and how many.
fn clip((slot, length, at): (usize, usize, usize), (first, end): (usize, usize)) -> (usize, usize, usize) {
    let from = at.max(first);
    (slot + from - at, from, (at + length).min(end).saturating_sub(from))
}

/// Logits of slots of a page that are no codes, from those of exact rows `first..end`.
fn take_exact(
    stream: &Stream,
    page: usize,
    count: usize,
    logits: &mut [f32],
    exact: &[f32],
    (first, end): (usize, usize),
) {
    each_run(stream, page, count, |slot, length, at| {
        let logits = logits.chunks_exact_mut(count);
        let Some(at) = at else {
            logits.for_each(|logits| logits[slot..slot + length].fill(0.0));
            return;
        };
        let (to, from, length) = clip((slot, length, at), (first, end));
        if length > 0 {
            for (q, logits) in logits.enumerate() {
                let from = q * (end - first) + from - first;
                logits[to..to + length].copy_from_slice(&exact[from..from + length]);
            }
        }
    });
}

/// Turns logits into weights against each query's largest, and sums values.
fn sum(
    rule: &Rule,
    values: Track<'_>,
    asked: &[Asked<'_>],
    state: &mut [Attention],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let (n, level, stream) = (state.len(), values.format.level, values.stream);
    let Scratch { logits, exact, weights, sums, plain, seen, .. } = scratch;
    let (first, end) = stream.exact_range(|slot| is_seen(rule, asked, slot));
    exact.clear();
    exact.resize(n * (end - first), 0.0);
    for buffer in [&mut *sums, &mut *plain] {
        buffer.clear();
        buffer.resize(out.len(), 0.0);
    }
    for (i, &(page, _)) in seen.iter().enumerate() {
        let count = page_slots(rule, page);
        let logits = &mut logits[i * SLOTS * n..][..count * n];
        // Their maximum is known, so that no sum is to be multiplied.
        soften(level, logits, state);
        let mut now = &*logits;
        if stream.coded(page) < SLOTS {
            weights.clear();
            weights.extend_from_slice(logits);
            give_exact(stream, page, count, weights, exact, (first, end));
            now = weights;
        }
        if let Some((lines, Pages::Values(pages))) = coded_page(values, page) {
            let next = seen.get(i + 1).and_then(|next| stream.page(values.head, next.0));
            pages.accumulate(level, lines, 0, now, next.unwrap_or_default(), sums);
        }
    }
    let dim = values.format.dim;
    let rows = &stream.exact[values.head][first * dim..end * dim];
    row_sums(level, half_bits(rows), dim, exact, plain);
    if let Some((codec, _)) = &values.format.coded {
        codec::unrotate(level, codec, sums);
    }
    for (q, state) in state.iter().enumerate() {
        // Nothing seen gives zeros, as the host's own attention does.
        let factor = if state.sum == 0.0 { 0.0 } else { 1.0 / state.sum };
        for i in q * dim..(q + 1) * dim {
            out[i] = (sums[i] + plain[i]) * factor;
        }
    }
}

/// Weights of slots of a page that are no codes: to the exact rows `first..end`, and off the codes.
fn give_exact(
    stream: &Stream,
    page: usize,
    count: usize,
    weights: &mut [f32],
    exact: &mut [f32],
    (first, end): (usize, usize),
) {
    each_run(stream, page, count, |slot, length, at| {
        for (q, weights) in weights.chunks_exact_mut(count).enumerate() {
            if let Some(at) = at {
                let (from, to, length) = clip((slot, length, at), (first, end));
                if length > 0 {
                    let to = q * (end - first) + to - first;
                    exact[to..to + length].copy_from_slice(&weights[from..from + length]);
                }
            }
            weights[slot..slot + length].fill(0.0);
        }
    });
}

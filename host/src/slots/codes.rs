//! Attention over pages of codes, up to eight queries at once. Empty slots count as zeros. Exact rows are
//! skipped, because [`super::exact`] attends to them.

use super::apart;
use super::means::Means;
use super::rule::{Asked, add_mask, changes_any, shows_any};
use super::stream::{Place, Stream};
use super::task::{Seen, Task, Track};
use crate::cache::format::{CodedQueries, PageFormat};
use crate::cache::life::{PAGE_TOKENS, cap};
use crate::cache::vectors::dot;
use std::ops::Range;
use tqkv_simd::page::{Attention, Line, MAX_HEADS, rescale, soften};

/// Working memory of a thread, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) logits: Vec<f32>,
    scaled: Vec<f32>,
    mapped: Vec<f32>,
    coded: CodedQueries,
    offsets: Vec<f32>,
    wide: Vec<f32>,
}

/// A page with codes or empty slots.
struct Page {
    number: usize,
    /// Runs of slots that are exact rows, counted in the page.
    exact: Vec<Range<usize>>,
    /// Runs of empty slots, counted in the page.
    empty: Vec<Range<usize>>,
}

/// Attends to the coded and the empty slots of some pages.
pub(super) fn attend(task: &Task<'_>, pages: Range<usize>, scratch: &mut Scratch) -> Seen {
    let mut seen = Seen::nothing(task);
    let held: Vec<Page> = pages.clone().filter_map(|page| look(task, page)).collect();
    if held.is_empty() {
        return seen;
    }
    let (dim, value_dim) = (task.keys.format.dim, task.values.format.dim);
    let queries = task.queries.chunks(MAX_HEADS * dim).zip(task.asked.chunks(MAX_HEADS));
    let (from, to) = (pages.start * PAGE_TOKENS, pages.end * PAGE_TOKENS);
    let is_alike = task.keys.stream.is_alike(task.values.stream, from, to);
    let sums = seen.sums.chunks_mut(MAX_HEADS * value_dim).zip(seen.state.chunks_mut(MAX_HEADS));
    for ((queries, asked), (sums, state)) in queries.zip(sums) {
        prepare(task, queries, scratch);
        for (i, page) in held.iter().enumerate() {
            let next = held.get(i + 1).map_or(page.number, |page| page.number);
            attend_page(task, (page, next, is_alike), asked, (state, sums), scratch);
        }
    }
    if is_alike {
        task.values.format.unrotate(&mut seen.sums);
    }
    seen
}

/// Finds the runs of a page; none where every slot is an exact row.
fn look(task: &Task<'_>, number: usize) -> Option<Page> {
    let stream = task.keys.stream;
    let (count, coded) = (task.slots_of(number), stream.coded(number));
    let mut page = Page { number, exact: Vec::new(), empty: Vec::new() };
    if coded < PAGE_TOKENS {
        runs(stream, number, count, &mut page);
    }
    (coded > 0 || !page.empty.is_empty()).then_some(page)
}

/// Finds runs of exact slots and of empty slots among the first `count` slots of a page.
fn runs(stream: &Stream, number: usize, count: usize, page: &mut Page) {
    for slot in 0..count {
        let list = match stream.place(number * PAGE_TOKENS + slot) {
            Place::Exact(_) => &mut page.exact,
            Place::Empty => &mut page.empty,
            Place::Coded => continue,
        };
        match list.last_mut() {
            Some(run) if run.end == slot => run.end += 1,
            _ => list.push(slot..slot + 1),
        }
    }
}

impl Task<'_> {
    /// Number of slots of a page that the operation attends to.
    fn slots_of(&self, page: usize) -> usize {
        (self.rule.slots - page * PAGE_TOKENS).min(PAGE_TOKENS)
    }
}

/// Scales queries by the factor of logits, and converts them to the forms that codes need.
pub(super) fn prepare(task: &Task<'_>, queries: &[f32], scratch: &mut Scratch) {
    let (format, keys) = (task.keys.format, task.keys);
    let Scratch { scaled, mapped, coded, offsets, .. } = scratch;
    scaled.clear();
    scaled.extend(queries.iter().map(|x| x * task.rule.scale));
    if let Some(pages) = &format.coded {
        mapped.clone_from(scaled);
        if let Some(map) = keys.stream.maps.of(keys.head) {
            map.apply_to_queries(mapped);
        }
        pages.set_queries(mapped, coded);
    }
    offsets.clear();
    if let Means::Known(_) = keys.stream.means {
        let mean = keys.stream.means.of(keys.head, format.dim);
        offsets.extend(scaled.chunks_exact(format.dim).map(|q| dot(q, mean)));
    }
}

/// Two facts about a page: some query sees a coded or an empty slot, and some mask changes a logit.
fn sees(asked: &[Asked<'_>], page: &Page, count: usize, has_codes: bool) -> (bool, bool) {
    let (mut any, mut masked) = (false, false);
    let from = page.number * PAGE_TOKENS;
    for (i, now) in asked.iter().enumerate() {
        if i > 0 && now.is_beside(&asked[i - 1]) {
            continue;
        }
        let shows = |run: &Range<usize>| {
            let mask = now.mask_of(from + run.start, from + run.end);
            mask.len() < run.len() || shows_any(mask)
        };
        any |= if has_codes { shows(&(0..count)) } else { page.empty.iter().any(shows) };
        masked |= changes_any(now.mask_of(from, from + count));
    }
    (any, masked)
}

/// Attends to one page; `next` is the page after it, for prefetch.
///
/// If keys and values are alike, sums stay rotated, as codes are; [`attend`] rotates them back once.
fn attend_page(
    task: &Task<'_>,
    (page, next, is_alike): (&Page, usize, bool),
    asked: &[Asked<'_>],
    (state, sums): (&mut [Attention], &mut [f32]),
    scratch: &mut Scratch,
) {
    let count = task.slots_of(page.number);
    let keys = coded_page(task.keys, page.number);
    let (any, masked) = sees(asked, page, count, keys.is_some());
    if !any {
        return;
    }
    score(task.keys, (page.number, next), asked.len() * count, scratch);
    let Scratch { logits, wide, .. } = scratch;
    for (logits, asked) in logits.chunks_exact_mut(count).zip(asked) {
        page.empty.iter().for_each(|run| logits[run.clone()].fill(0.0));
        if let Some(soft_cap) = task.rule.soft_cap {
            cap(logits, soft_cap);
        }
        page.exact.iter().for_each(|run| logits[run.clone()].fill(f32::NEG_INFINITY));
        if masked {
            let from = page.number * PAGE_TOKENS;
            add_mask(logits, asked.mask_of(from, from + count), asked.slope, wide);
        }
    }
    let level = task.values.format.level;
    let factors = soften(level, logits, state);
    rescale(&factors[..state.len()], task.values.format.dim, sums);
    if !is_alike {
        let slots: Vec<usize> = (page.number * PAGE_TOKENS..).take(count).collect();
        apart::sum(task.values, &slots, logits, sums);
    } else if let Some((lines, pages)) = coded_page(task.values, page.number) {
        for logits in logits.chunks_exact_mut(count) {
            page.empty.iter().for_each(|run| logits[run.clone()].fill(0.0));
        }
        let next = task.values.stream.page(task.values.head, next).unwrap_or_default();
        pages.accumulate(lines, page.number * PAGE_TOKENS, logits, next, sums);
    }
}

/// Leaves the logits of a page (`[n, slots]`, `values` in all) for the prepared queries in the scratch
/// memory. They are zeros if the page has no code.
pub(super) fn score(keys: Track<'_>, (page, next): (usize, usize), values: usize, scratch: &mut Scratch) {
    let Scratch { logits, offsets, coded, .. } = scratch;
    logits.resize(values, 0.0);
    let Some((lines, pages)) = coded_page(keys, page) else { return logits.fill(0.0) };
    let next = keys.stream.page(keys.head, next).unwrap_or_default();
    pages.scores(lines, 0, coded, next, logits);
    for (logits, offset) in logits.chunks_exact_mut(values / offsets.len().max(1)).zip(&*offsets) {
        logits.iter_mut().for_each(|logit| *logit += offset);
    }
}

/// The codes of a page, and their arrangement; none where it has no code.
fn coded_page<'a>(track: Track<'a>, page: usize) -> Option<(&'a [Line], &'a PageFormat)> {
    Some((track.stream.page(track.head, page)?, track.format.coded.as_ref()?))
}

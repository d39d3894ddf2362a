//! Attention over pages of codes, up to eight queries at once. Empty slots count as zeros. Exact rows are
//! skipped, because [`super::exact`] attends to them. Each tier is attended to for itself.

use super::apart;
use super::rule::{Asked, add_mask, changes_any, shows_any};
use super::stream::Stream;
use super::task::{PartSums, Task, Track};
use crate::cache::format::{CodedQueries, PageFormat};
use crate::cache::life::{PAGE_TOKENS, add_weighted, cap};
use crate::cache::vectors::dot;
use std::ops::Range;
use tqkv_simd::page::{Attention, Line, MAX_HEADS, rescale, soften};

/// Working memory of a thread, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct CodeScratch {
    pub(super) logits: Vec<f32>,
    scaled: Vec<f32>,
    mapped: Vec<f32>,
    coded: CodedQueries,
    offsets: Vec<f32>,
    wide: Vec<f32>,
    /// Logits or weights of the slots that a page has room for.
    part: Vec<f32>,
}

/// A page with codes of a tier, or with empty slots.
struct CodedPage {
    number: usize,
    /// Runs of slots that are exact rows or codes of another tier, counted in the page. With codes that are
    /// not warm, empty slots are among them.
    hidden: Vec<Range<usize>>,
    /// Runs of empty slots, counted in the page.
    empty: Vec<Range<usize>>,
}

/// Attends to the codes of a tier in some pages, and with those of the first to the empty slots.
pub(super) fn attend(
    task: &Task<'_>,
    (tier, pages): (usize, Range<usize>),
    scratch: &mut CodeScratch,
) -> PartSums {
    let mut seen = PartSums::nothing(task);
    let held: Vec<CodedPage> = pages.clone().filter_map(|page| look(task, tier, page)).collect();
    if held.is_empty() {
        return seen;
    }
    let (dim, value_dim) = (task.keys.format.dim, task.values.format.dim);
    let queries = task.queries.chunks(MAX_HEADS * dim).zip(task.asked.chunks(MAX_HEADS));
    let is_alike = task.keys.stream.is_alike(task.values.stream, pages, task.tiers());
    // The weight of the codes for each query, where sums of theirs miss a mean.
    let mean = task.values.mean();
    let mut weights = vec![0.0; if is_alike && !mean.is_empty() { seen.state.len() } else { 0 }];
    let mut of_weights = weights.chunks_mut(MAX_HEADS);
    let sums = seen.sums.chunks_mut(MAX_HEADS * value_dim).zip(seen.state.chunks_mut(MAX_HEADS));
    for ((queries, asked), (sums, state)) in queries.zip(sums) {
        prepare(task, tier, queries, scratch);
        let weights = of_weights.next().unwrap_or_default();
        for (i, page) in held.iter().enumerate() {
            let next = held.get(i + 1).map_or(page.number, |page| page.number);
            attend_page(task, (tier, page, next, is_alike), asked, (state, sums, weights), scratch);
        }
    }
    if is_alike {
        task.values.format.unrotate(tier, &mut seen.sums);
    }
    if !weights.is_empty() {
        add_weighted(&mut seen.sums, &weights, mean);
    }
    seen
}

/// Finds the runs of a page; none where no slot is attended to with this tier.
fn look(task: &Task<'_>, tier: usize, number: usize) -> Option<CodedPage> {
    let Stream { exact, pages, .. } = task.keys.stream;
    let (count, coded) = (task.slots_of(number), pages.mask(tier, number));
    let empty = if tier == 0 { !(exact.mask(number) | pages.all(number)) } else { 0 };
    let page = CodedPage { number, hidden: runs(!(coded | empty), count), empty: runs(empty, count) };
    (coded != 0 || !page.empty.is_empty()).then_some(page)
}

/// The runs of ones among the first `count` bits.
fn runs(mut bits: u128, count: usize) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    if count < PAGE_TOKENS {
        bits &= (1 << count) - 1;
    }
    while bits != 0 {
        let start = bits.trailing_zeros() as usize;
        let end = start + (bits >> start).trailing_ones() as usize;
        runs.push(start..end);
        // All bits below the end are done; a shift by all bits would overflow.
        bits = if end < PAGE_TOKENS { bits >> end << end } else { 0 };
    }
    runs
}

impl Task<'_> {
    /// Number of tiers of the keys or of the values, whichever has more.
    pub(super) fn tiers(&self) -> usize {
        self.keys.format.tiers().max(self.values.format.tiers())
    }

    /// Number of slots of a page that the operation attends to.
    fn slots_of(&self, page: usize) -> usize {
        (self.rule.slots - page * PAGE_TOKENS).min(PAGE_TOKENS)
    }
}

/// Scales queries by the factor of logits, and converts them to the forms that codes need.
pub(super) fn prepare(task: &Task<'_>, tier: usize, queries: &[f32], scratch: &mut CodeScratch) {
    let (format, keys) = (task.keys.format, task.keys);
    let CodeScratch { scaled, mapped, coded, offsets, .. } = scratch;
    scaled.clear();
    scaled.extend(queries.iter().map(|x| x * task.rule.scale));
    if let Some(pages) = format.pages(tier) {
        mapped.clone_from(scaled);
        if let Some(map) = keys.stream.maps.of(keys.head) {
            map.apply_to_queries(mapped);
        }
        pages.set_queries(mapped, coded);
    }
    offsets.clear();
    let mean = keys.mean();
    if !mean.is_empty() {
        offsets.extend(scaled.chunks_exact(format.dim).map(|q| dot(q, mean)));
    }
}

/// Two facts about a page: some query sees a coded or an empty slot, and some mask changes a logit.
fn sees(asked: &[Asked<'_>], page: &CodedPage, count: usize, has_codes: bool) -> (bool, bool) {
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
/// If keys and values are alike, sums stay rotated, as codes are; [`attend`] rotates them back once, and adds
/// the mean of values for the weights that codes got. There are no weights where it has none to add.
fn attend_page(
    task: &Task<'_>,
    (tier, page, next, is_alike): (usize, &CodedPage, usize, bool),
    asked: &[Asked<'_>],
    (state, sums, weights): (&mut [Attention], &mut [f32], &mut [f32]),
    scratch: &mut CodeScratch,
) {
    let count = task.slots_of(page.number);
    let keys = coded_page(task.keys, tier, page.number);
    let (any, masked) = sees(asked, page, count, keys.is_some());
    if !any {
        return;
    }
    score(task.keys, tier, (page.number, next), (asked.len(), count), scratch);
    let CodeScratch { logits, wide, part, .. } = scratch;
    for (logits, asked) in logits.chunks_exact_mut(count).zip(asked) {
        page.empty.iter().for_each(|run| logits[run.clone()].fill(0.0));
        if let Some(soft_cap) = task.rule.soft_cap {
            cap(logits, soft_cap);
        }
        page.hidden.iter().for_each(|run| logits[run.clone()].fill(f32::NEG_INFINITY));
        if masked {
            let from = page.number * PAGE_TOKENS;
            add_mask(logits, asked.mask_of(from, from + count), asked.slope, wide);
        }
    }
    let level = task.values.format.level;
    let factors = soften(level, logits, state);
    rescale(&factors[..state.len()], task.values.format.dim, sums);
    weights.iter_mut().zip(&factors).for_each(|(weight, factor)| *weight *= factor);
    if !is_alike {
        let slots: Vec<usize> = (page.number * PAGE_TOKENS..).take(count).collect();
        apart::sum(task.values, &slots, logits, sums);
    } else if let Some((lines, pages)) = coded_page(task.values, tier, page.number) {
        for logits in logits.chunks_exact_mut(count) {
            page.empty.iter().for_each(|run| logits[run.clone()].fill(0.0));
        }
        for (weight, logits) in weights.iter_mut().zip(logits.chunks_exact(count)) {
            *weight += logits.iter().sum::<f32>();
        }
        let next = task.values.stream.pages.page(tier, task.values.head, next).unwrap_or_default();
        let room = pages.slots();
        if room < count {
            part.clear();
            logits.chunks_exact(count).for_each(|logits| part.extend_from_slice(&logits[..room]));
        }
        let weights = if room < count { part } else { logits };
        pages.accumulate(lines, page.number * PAGE_TOKENS, weights, next, sums);
    }
}

/// Leaves the logits of a page (`[n, slots]`, `values` in all) for the prepared queries in the scratch
/// memory. They are zeros if the page has no code.
pub(super) fn score(
    keys: Track<'_>,
    tier: usize,
    (page, next): (usize, usize),
    (queries, count): (usize, usize),
    scratch: &mut CodeScratch,
) {
    let CodeScratch { logits, offsets, coded, part, .. } = scratch;
    logits.resize(queries * count, 0.0);
    let Some((lines, pages)) = coded_page(keys, tier, page) else { return logits.fill(0.0) };
    let next = keys.stream.pages.page(tier, keys.head, next).unwrap_or_default();
    let room = pages.slots();
    if room < count {
        part.resize(queries * room, 0.0);
        pages.scores(lines, 0, coded, next, part);
        for (logits, part) in logits.chunks_exact_mut(count).zip(part.chunks_exact(room)) {
            logits[..room].copy_from_slice(part);
            logits[room..].fill(0.0);
        }
    } else {
        pages.scores(lines, 0, coded, next, logits);
    }
    for (logits, offset) in logits.chunks_exact_mut(count).zip(&*offsets) {
        logits.iter_mut().for_each(|logit| *logit += offset);
    }
}

/// The codes of a tier in a page, and their arrangement; none where it has no code.
fn coded_page<'a>(track: Track<'a>, tier: usize, page: usize) -> Option<(&'a [Line], &'a PageFormat)> {
    let pages = &track.stream.pages;
    Some((pages.page(tier, track.head, page)?, track.format.pages_of(tier, pages.room(tier, page))?))
}

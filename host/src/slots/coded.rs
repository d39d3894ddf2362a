//! Codes and empty slots of some pages as parts of attention, for up to eight queries. Exact rows are skipped, because
//! [`super::exact`] attends to them, and so are other tiers.

use super::page_numbers::PageNumbers;
use super::rule::{QueryMask, add_mask, alike, changes_any, shows_any};
use super::task::{StreamSide, Task};
use super::{apart, bits};
use crate::attend::{HeadQueries, PageSum, Sums, score_page, sum_pages};
use crate::cache::life::{PAGE_TOKENS, add_weighted, cap};
use arrayvec::ArrayVec;
use std::ops::Range;
use tqkv_simd::page::{AttentionParts, Line, MAX_HEADS, MAX_PARTS, WeightedPart, attend, rescale};

/// The slots that are attended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    /// Codes of a tier.
    Coded(usize),
    /// Slots without a row, which count as zeros.
    Empty,
}

/// The slots of one kind in some pages, and the queries that attend to them.
struct PageSlots<'a> {
    task: &'a Task<'a>,
    kind: SlotKind,
    /// One past the last slot.
    end: usize,
    /// By turn.
    queries: &'a [HeadQueries],
    asked: &'a [QueryMask<'a>],
    plain: &'a mut [f32],
    rotated: &'a mut [f32],
}

/// Attends to the slots of one kind in some pages with the queries `of` of a task, at most eight, which are prepared for
/// each turn.
pub(super) fn attend_pages(
    task: &Task<'_>,
    (kind, pages): (SlotKind, Range<usize>),
    (of, queries): (Range<usize>, &[HeadQueries]),
    seen: &mut Sums,
) {
    let (dim, level) = (task.values.format.dim, task.values.format.level);
    let Sums { state, plain, rotated, .. } = seen;
    let sums = of.start * dim..of.end * dim;
    let mut slots = PageSlots {
        task,
        kind,
        end: (pages.end * PAGE_TOKENS).min(task.rule.slots),
        queries,
        asked: &task.asked[of.clone()],
        plain: &mut plain[sums.clone()],
        rotated: &mut rotated[sums],
    };
    let (start, end) = (slots.first(pages.start * PAGE_TOKENS), slots.end);
    if start < end {
        attend(level, &mut slots, start, end, &mut state[of]);
    }
}

/// Logits (`[n, slots]`) of the first slots of a page of a tier, by queries for each turn; `next` is memory to prefetch.
pub(super) fn score(
    keys: StreamSide<'_>,
    place: (usize, usize),
    queries: &[HeadQueries],
    next: &[Line],
    logits: &mut [f32],
) {
    match keys.stream.pages.turns.one(place.1) {
        Some(turn) => score_alike(keys, place, &queries[turn], next, logits),
        None => score_turns(keys, place, queries, logits),
    }
}

/// Logits of a page whose codes have several turns: those of each turn in its slots.
#[cold]
fn score_turns(
    keys: StreamSide<'_>,
    (tier, page): (usize, usize),
    queries: &[HeadQueries],
    logits: &mut [f32],
) {
    let (count, pages) = (logits.len() / queries[0].heads(), &keys.stream.pages);
    let (codes, mut room) = (pages.mask(tier, page), [0.0; MAX_HEADS * PAGE_TOKENS]);
    let room = &mut room[..logits.len()];
    for (turn, queries) in queries.iter().enumerate() {
        let own = pages.turns.runs(page, count).filter(|(_, of)| *of == turn);
        let own = own.fold(0, |own, (run, _)| own | bits::first(run.end) & !bits::first(run.start)) & codes;
        if own == 0 {
            continue;
        }
        score_alike(keys, (tier, page), queries, &[], room);
        for (logits, room) in logits.chunks_exact_mut(count).zip(room.chunks_exact(count)) {
            bits::runs(own).for_each(|run| logits[run.clone()].copy_from_slice(&room[run]));
        }
    }
}

/// Logits of a page whose codes have one turn, by the queries of that turn.
fn score_alike(
    keys: StreamSide<'_>,
    (tier, page): (usize, usize),
    queries: &HeadQueries,
    next: &[Line],
    logits: &mut [f32],
) {
    let Some(view) = keys.page(tier, page) else { return };
    let bases = &keys.stream.pages.bases;
    let basis = bases.one(page);
    score_page(view, 0, (queries.coded(tier), queries.offsets(basis)), next, logits);
    if basis.is_none() {
        add_offsets(bases, page, queries, logits);
    }
}

/// Adds the offsets of a page whose codes have several bases.
#[cold]
fn add_offsets(bases: &PageNumbers, page: usize, queries: &HeadQueries, logits: &mut [f32]) {
    let count = logits.len() / queries.heads();
    for (slots, basis) in bases.runs(page, count) {
        let offsets = queries.offsets(Some(basis));
        for (logits, offset) in logits.chunks_exact_mut(count).zip(offsets) {
            logits[slots.clone()].iter_mut().for_each(|logit| *logit += offset);
        }
    }
}

impl SlotKind {
    /// The slots of this kind in a page.
    fn mask(self, side: StreamSide<'_>, page: usize) -> u128 {
        let (exact, pages) = (&side.stream.exact, &side.stream.pages);
        match self {
            Self::Coded(tier) => pages.mask(tier, page),
            Self::Empty => !(exact.mask(page) | pages.all(page)),
        }
    }

    /// Number of slots that a page has room for.
    fn room(self, side: StreamSide<'_>, page: usize) -> usize {
        match self {
            Self::Coded(tier) => side.page(tier, page).map_or(0, |page| page.format.slots()),
            Self::Empty => PAGE_TOKENS,
        }
    }
}

impl PageSlots<'_> {
    /// True if the values of a page are of the kind of their keys.
    fn is_alike(&self, page: usize) -> bool {
        let seen = bits::first(self.end - page * PAGE_TOKENS);
        let mask = |side| self.kind.mask(side, page) & seen;
        mask(self.task.keys) & !mask(self.task.values) == 0
    }

    /// True if some query sees a slot of this kind in a page.
    fn is_seen(&self, page: usize) -> bool {
        let from = page * PAGE_TOKENS;
        let mask = self.kind.mask(self.task.keys, page) & bits::first(self.end - from);
        let shows = |run: Range<usize>, asked: &QueryMask<'_>| {
            let mask = asked.mask_of(from + run.start, from + run.end);
            mask.len() < run.len() || shows_any(mask)
        };
        alike(self.asked).any(|asked| bits::runs(mask).any(|run| shows(run, &asked[0])))
    }

    /// Adds the values of parts that have the kind of their keys.
    fn add(&mut self, tier: usize, parts: &[WeightedPart<'_>]) {
        let Task { keys, values, .. } = *self.task;
        let mut pages = ArrayVec::<PageSum<'_>, MAX_PARTS>::new();
        // As many pages of keys as there are of values are read next.
        let next = parts.last().map_or(0, |part| part.to.div_ceil(PAGE_TOKENS));
        for (next, &WeightedPart { from, weights, .. }) in (next..).zip(parts) {
            if let Some(page) = values.page(tier, from / PAGE_TOKENS) {
                pages.push(PageSum { page, index: from, weights, next: keys.lines(tier, next) });
            }
        }
        sum_pages(pages.iter().copied(), self.rotated);
        let mean = values.mean_of_values();
        parts.iter().for_each(|part| add_weighted(self.plain, part.weights, mean));
    }
}

impl AttentionParts for PageSlots<'_> {
    fn first(&self, from: usize) -> usize {
        let pages = from.div_ceil(PAGE_TOKENS)..self.end.div_ceil(PAGE_TOKENS);
        pages.into_iter().find(|page| self.is_seen(*page)).map_or(usize::MAX, |page| page * PAGE_TOKENS)
    }

    /// Slots that a page has no room for are of no kind.
    fn part_end(&self, from: usize) -> usize {
        let page = from / PAGE_TOKENS;
        let mut room = self.kind.room(self.task.keys, page);
        if self.is_alike(page) {
            room = room.min(self.kind.room(self.task.values, page));
        }
        from + room.min(self.end - from)
    }

    fn scores(&self, from: usize, to: usize, logits: &mut [f32]) {
        let (count, page, keys) = (to - from, from / PAGE_TOKENS, self.task.keys);
        match self.kind {
            SlotKind::Coded(tier) => {
                let next = self.task.values.lines(tier, page);
                score(keys, (tier, page), self.queries, next, logits);
            }
            SlotKind::Empty => logits.fill(0.0),
        }
        if let Some(soft_cap) = self.task.rule.soft_cap {
            cap(logits, soft_cap);
        }
        let hidden = !self.kind.mask(keys, page) & bits::first(count);
        for logits in logits.chunks_exact_mut(count) {
            bits::runs(hidden).for_each(|run| logits[run].fill(f32::NEG_INFINITY));
        }
        let mut logits = logits.chunks_exact_mut(count);
        for asked in alike(self.asked) {
            let mask = asked[0].mask_of(from, to);
            if changes_any(mask) {
                asked.iter().zip(&mut logits).for_each(|(asked, logits)| add_mask(logits, mask, asked.slope));
            } else {
                logits.by_ref().take(asked.len()).for_each(drop);
            }
        }
    }

    fn rescale(&mut self, factors: &[f32]) {
        let dim = self.task.values.format.dim;
        rescale(factors, dim, self.plain);
        rescale(factors, dim, self.rotated);
    }

    fn joins(&self, before: usize, from: usize) -> bool {
        let SlotKind::Coded(tier) = self.kind else { return false };
        let is_alike = |slot: usize| self.is_alike(slot / PAGE_TOKENS);
        is_alike(before)
            && is_alike(from)
            && self.task.values.format.pages(tier).is_some_and(|pages| pages.joins(self.asked.len()))
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        // Parts that join are alike.
        let is_alike = parts.first().is_some_and(|part| self.is_alike(part.from / PAGE_TOKENS));
        match self.kind {
            SlotKind::Coded(tier) if is_alike => self.add(tier, parts),
            SlotKind::Empty if is_alike => {}
            _ => {
                for &WeightedPart { from, to, weights } in parts {
                    apart::sum(self.task.values, from..to, weights, [self.plain, self.rotated]);
                }
            }
        }
    }
}

//! One KV head: its tokens, and attention of its query heads over them.

use super::life::{self, PAGE_TOKENS, ROLLBACK};
use super::scratch::HeadScratch;
use super::side_of_head::{Cut, SideOfHead};
use super::token_lists::{BRIDGED, Chosen, RUN, hide, seek};
use super::vectors::{Vectors, dot};
use crate::attend::{HeadQueries, Sums};
use crate::error::CacheError;
use crate::{memory, threads};
use arrayvec::ArrayVec;
use std::cell::{Cell, RefCell};
use std::ops::Range as Spans;
use tqkv_simd::page::{Attention, AttentionParts, Line, MAX_HEADS, MAX_PARTS, WeightedPart, attend, rescale};

/// Number of tokens in a span, which one thread attends to. Spans begin at fixed positions and are merged in
/// order, so the result does not depend on the number of threads.
const SPAN: usize = 16 * PAGE_TOKENS;

/// A range of positions: start, end.
type Range = (usize, usize);

/// Attention settings of a layer.
#[derive(Clone, Debug)]
pub(super) struct AttentionRule {
    pub(super) window: Option<usize>,
    /// Number of encoded tokens that single queries attend to. `None` for all.
    pub(super) select: Option<usize>,
    /// Scale of the logits.
    pub(super) scale: f32,
    pub(super) soft_cap: Option<f32>,
}

#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Keys, or latent vectors, which are both keys and values.
    pub(super) keys: SideOfHead,
    /// Values, or the positional parts of latent keys.
    pub(super) other: SideOfHead,
    pub(super) is_latent: bool,
    pub(super) rule: AttentionRule,
    /// Learned sinks of the group's query heads. Empty if there are none.
    pub(super) sink_logits: Vec<f32>,
}

impl Head {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The side whose vectors are summed.
    pub(super) fn values(&self) -> &SideOfHead {
        if self.is_latent { &self.keys } else { &self.other }
    }

    /// The positional parts of latent keys.
    pub(super) fn position(&self) -> Option<&SideOfHead> {
        self.is_latent.then_some(&self.other)
    }

    /// Takes the memory of a ring, or what is missing of it.
    pub(super) fn hold(&mut self) -> Result<(), CacheError> {
        self.keys.hold()?;
        self.other.hold()
    }

    /// Takes the memory for all work on the head of a ring, with `group` query heads.
    pub(super) fn hold_scratch(&self, scratch: &mut HeadScratch, group: usize) -> Result<(), CacheError> {
        let heads = group.min(MAX_HEADS);
        self.keys.hold_queries(heads, &mut scratch.queries);
        let spans = self.rule.window.map_or(1, |window| window.div_ceil(SPAN) + 1);
        scratch.spans.make_room((spans, true), heads, self.values().codec().dim())?;
        for codec in [self.keys.codec(), self.other.codec()] {
            scratch.make_room(PAGE_TOKENS * codec.dim(), PAGE_TOKENS * codec.block_bytes());
        }
        Ok(())
    }

    /// Bytes that [`Head::hold`] takes.
    pub(super) fn missing_bytes(&self) -> usize {
        self.keys.missing_bytes().saturating_add(self.other.missing_bytes())
    }

    pub(super) fn reset(&mut self) {
        self.keys.clear();
        self.other.clear();
    }

    /// Refuses a rollback to a length whose visible tokens were evicted.
    pub(super) fn check_truncate(&self, len: usize) -> Result<(), CacheError> {
        let sinks = self.values().sink_capacity();
        let first = self.first_seen(len.saturating_sub(1)).max(sinks);
        if len < self.len() && len > sinks && first < self.values().first_live() {
            return Err(CacheError::Evicted { len, first_live: self.values().first_live() });
        }
        Ok(())
    }

    /// True if no page that the newest position sees was evicted.
    pub(super) fn holds_what_it_sees(&self) -> bool {
        let first = self.first_seen(self.len().saturating_sub(1)).max(self.values().sink_capacity());
        [&self.keys, &self.other].iter().all(|side| side.first_live() <= first)
    }

    /// Reads the pages that a cut at position `len` needs. Changes nothing.
    pub(super) fn plan_cut(&self, len: usize) -> Result<[Cut; 2], CacheError> {
        Ok([self.keys.plan_cut(len)?, self.other.plan_cut(len)?])
    }

    /// Drops tokens. The plan must be of the present contents.
    pub(super) fn truncate(&mut self, [keys, other]: [Cut; 2]) {
        self.keys.truncate(keys);
        self.other.truncate(other);
    }

    /// True if pages of a side leave the warm tier.
    pub(super) fn has_cold_tiers(&self) -> bool {
        self.keys.pages().has_cold_tiers() || self.other.pages().has_cold_tiers()
    }

    /// Upper bound of the bytes of a copy that shares pages and rows.
    pub(super) fn list_bytes(&self) -> usize {
        self.keys.list_bytes() + self.other.list_bytes()
    }

    /// Appends tokens and encodes those that leave the hot window. May fail after some tokens were appended;
    /// the caller truncates them.
    pub(super) fn push(
        &mut self,
        keys: Vectors<'_>,
        values: Vectors<'_>,
        scratch: &mut HeadScratch,
    ) -> Result<(), CacheError> {
        self.keys.push(keys, scratch).map_err(|error| error.within(format_args!("keys of")))?;
        self.other.push(values, scratch).map_err(|error| error.within(format_args!("values of")))
    }

    /// [`Head::cool`] in the middle of an operation. Pages that the file has no room for stay in memory. The
    /// next operation reports the error before it changes anything.
    pub(super) fn cool_what_fits(&mut self, len: usize) {
        let _ = self.cool(len);
    }

    /// Moves pages to colder tiers that are due at a length of `len` tokens.
    pub(super) fn cool(&mut self, len: usize) -> Result<(), CacheError> {
        let keys = self.keys.cool(len);
        // A full file on one side does not hold up the other.
        keys.and(self.other.cool(len))
    }

    /// Frees the pages that the sliding window has left behind.
    pub(super) fn evict(&mut self) {
        let first = self.first_seen(self.len()).saturating_sub(ROLLBACK);
        self.keys.evict_before(first);
        self.other.evict_before(first);
    }

    /// First position after the sinks that the query at `position` sees.
    pub(super) fn first_seen(&self, position: usize) -> usize {
        self.rule.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The ranges of positions that the query at `position` sees: sinks, then the window.
    pub(super) fn seen(&self, position: usize) -> [Range; 2] {
        let end = position + 1;
        let sinks = self.values().sink_capacity().min(end);
        [(0, sinks), (self.first_seen(position).max(sinks), end)]
    }

    /// Attends with queries (`[group, dim]`) at the newest position, which sees the chosen tokens.
    pub(super) fn attend(
        &self,
        q: &[f32],
        chosen: Chosen<'_>,
        out: &mut [f32],
        scratch: &mut HeadScratch,
    ) -> Result<(), CacheError> {
        if !self.is_latent {
            self.keys.see_queries(self.len() - 1, q)?;
        }
        if let (Some(count), Chosen::All) = (self.rule.select, chosen) {
            let mut picked = std::mem::take(&mut scratch.pick);
            let is_part = self.pick(q, count, &mut picked);
            let chosen = if is_part { Chosen::List(&picked.tokens) } else { Chosen::All };
            let result = self.attend_chosen(q, chosen, out, scratch);
            scratch.pick = picked;
            return result;
        }
        self.attend_chosen(q, chosen, out, scratch)
    }

    /// [`Head::attend`] for as many queries at a time as kernels take. There are none for latent vectors, which are
    /// decoded once for all queries.
    fn attend_chosen(
        &self,
        q: &[f32],
        chosen: Chosen<'_>,
        out: &mut [f32],
        scratch: &mut HeadScratch,
    ) -> Result<(), CacheError> {
        if self.is_latent {
            return self.attend_decoded(q, chosen, out);
        }
        let (dim, value_dim) = (self.keys.codec().dim(), self.values().codec().dim());
        let out = out.chunks_mut(MAX_HEADS * value_dim);
        for (i, (q, out)) in q.chunks(MAX_HEADS * dim).zip(out).enumerate() {
            self.attend_group(q, (i * MAX_HEADS, chosen), out, scratch)?;
        }
        Ok(())
    }

    /// [`Head::attend`] for at most [`MAX_HEADS`] queries. The first one is query head `first` of the group.
    fn attend_group(
        &self,
        q: &[f32],
        (first, chosen): (usize, Chosen<'_>),
        out: &mut [f32],
        scratch: &mut HeadScratch,
    ) -> Result<(), CacheError> {
        self.keys.prepare(q, self.rule.scale, &mut scratch.queries);
        let groups = self.groups(chosen);
        let count = if groups.is_empty() { self.spans() } else { groups.len() };
        let HeadScratch { queries, spans, .. } = scratch;
        let (spans_of, heads) = ((count, threads::is_shared()), queries.heads());
        let dim = self.values().codec().dim();
        spans.make_room(spans_of, heads, dim)?;
        let seen = spans.attend(spans_of, (heads, dim), |i, sums| {
            if i == 0 {
                sums.start(self.sinks_from(first));
            }
            self.attend_spans(queries, groups.get(i).cloned().unwrap_or(i..i + 1), chosen, sums);
        });
        if let Some(error) = seen.failed.take() {
            return Err(error);
        }
        seen.finish(dim, |sums| self.values().pages().unrotate(sums), out);
        Ok(())
    }

    /// The learned sinks of query heads from `first` of the group on.
    pub(super) fn sinks_from(&self, first: usize) -> impl Iterator<Item = Option<f32>> {
        self.sink_logits.iter().skip(first).copied().map(Some)
    }

    /// The range after the sinks that the newest position sees, and the number of its first span.
    fn newest(&self) -> (Range, usize) {
        let [_, (start, end)] = self.seen(self.len().saturating_sub(1));
        let end = end.min(self.len());
        ((start, end), start.saturating_sub(self.values().sink_capacity()) / SPAN)
    }

    /// Number of spans in that range, at least 1.
    pub(super) fn spans(&self) -> usize {
        let ((_, end), first) = self.newest();
        let past = end.saturating_sub(self.values().sink_capacity()).div_ceil(SPAN);
        past.saturating_sub(first).max(1)
    }

    /// Neighbouring spans that are attended to as one, because they have no more tokens of a list than a span. A span
    /// with all of its tokens stays alone, as without a list. Empty if there is no list.
    fn groups(&self, chosen: Chosen<'_>) -> Vec<Spans<usize>> {
        let mut groups: Vec<Spans<usize>> = Vec::new();
        if matches!(chosen, Chosen::All) {
            return groups;
        }
        let (sinks, mut held) = (self.values().sink_capacity(), 0);
        let (_, first) = self.newest();
        for span in 0..self.spans() {
            let from = sinks + (first + span) * SPAN;
            let tokens = chosen.within((if span == 0 { 0 } else { from }, from + SPAN)).count(SPAN);
            match groups.last_mut() {
                // The first and the last span of a window are not full.
                Some(last) if held + tokens <= SPAN && self.rule.window.is_none() => {
                    (last.end, held) = (span + 1, held + tokens);
                }
                _ => {
                    groups.push(span..span + 1);
                    held = tokens;
                }
            }
        }
        groups
    }

    /// Attends to the chosen tokens of some spans. The first span includes the sinks.
    fn attend_spans(&self, queries: &HeadQueries, spans: Spans<usize>, chosen: Chosen<'_>, seen: &mut Sums) {
        let Sums { state, plain, rotated, failed } = seen;
        if spans.start == 0 {
            let sinks = self.values().sink_capacity().min(self.len());
            *failed = self.attend_run(queries, ((0, sinks), chosen), state, [plain, rotated]).err();
        }
        let ((start, end), first) = self.newest();
        let at = |span: usize| self.values().sink_capacity() + (first + span) * SPAN;
        let run = (at(spans.start).max(start), at(spans.end).min(end));
        let result = self.attend_run(queries, (run, chosen), state, [plain, rotated]);
        *failed = failed.take().or(result.err());
    }

    /// Attends to the chosen tokens of a range. `state` has one entry per query head. The two sums (`[heads, dim]`)
    /// are of uncompressed rows, and of blocks in the rotated domain.
    pub(super) fn attend_run(
        &self,
        queries: &HeadQueries,
        ((from, to), chosen): (Range, Chosen<'_>),
        state: &mut [Attention],
        [plain, rotated]: [&mut [f32]; 2],
    ) -> Result<(), CacheError> {
        let (chosen, failed) = (chosen.within((from, to)), RefCell::new(None));
        let mut tokens = Tokens { head: self, queries, chosen, at: Cell::new(0), plain, rotated, failed };
        attend(self.keys.level(), &mut tokens, from, to, state);
        tokens.failed.into_inner().map_or(Ok(()), Err)
    }

    /// Applies the soft cap of the layer, if it has one.
    pub(super) fn cap(&self, logits: &mut [f32]) {
        if let Some(cap) = self.rule.soft_cap {
            life::cap(logits, cap);
        }
    }

    /// Logits of one query over all visible positions, oldest first.
    pub(super) fn scores(&self, q: &[f32], scratch: &mut HeadScratch) -> Result<Vec<f32>, CacheError> {
        let (q, position) = q.split_at(self.keys.codec().dim());
        self.keys.prepare(q, self.rule.scale, &mut scratch.queries);
        let seen = self.seen(self.len().saturating_sub(1));
        let mut logits = memory::list(seen.iter().map(|(start, end)| end.saturating_sub(*start)).sum())?;
        for (start, end) in seen {
            let end = end.min(self.len());
            let mut from = start;
            while from < end {
                let to = end.min(self.keys.part_end(from));
                debug_assert!(to > from, "the part of {from} ends at {to}");
                let at = logits.len();
                logits.resize(at + to - from, 0.0);
                self.keys.scores(&scratch.queries, from, self.keys.lines(to), &mut logits[at..])?;
                self.add_position(position, from, to, &mut logits[at..])?;
                from = to;
            }
        }
        self.cap(&mut logits);
        Ok(logits)
    }

    /// Adds the scores of the positional parts of tokens `from..to`, if keys have them.
    fn add_position(&self, q: &[f32], from: usize, to: usize, logits: &mut [f32]) -> Result<(), CacheError> {
        let Some(side) = self.position() else { return Ok(()) };
        let mut rows = vec![0.0; (to - from) * q.len()];
        side.read(from, to, &mut rows)?;
        for (logit, row) in logits.iter_mut().zip(rows.chunks_exact(q.len())) {
            *logit += dot(q, row) * self.rule.scale;
        }
        Ok(())
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.keys.allocated_bytes() + self.other.allocated_bytes()
    }
}

/// The two sides as the source of an attention pass.
struct Tokens<'a> {
    head: &'a Head,
    queries: &'a HeadQueries,
    chosen: Chosen<'a>,
    /// Index in the list of the first token of the part that comes next.
    at: Cell<usize>,
    plain: &'a mut [f32],
    rotated: &'a mut [f32],
    /// The error of a page that could not be read.
    failed: RefCell<Option<CacheError>>,
}

impl Tokens<'_> {
    /// Keeps the first error.
    fn note(&self, result: Result<(), CacheError>) {
        if let Err(error) = result {
            self.failed.borrow_mut().get_or_insert(error);
        }
    }

    /// The token from `to` on that is read next.
    fn after(&self, to: usize) -> usize {
        let Chosen::List(list) = self.chosen else { return to };
        let next = list.get(seek(list, self.at.get(), to));
        next.map_or(to, |&token| self.head.keys.run_start(token as usize).max(to))
    }
}

impl AttentionParts for Tokens<'_> {
    /// The start of a run with a chosen token, or of its page if that is near, because a page is prefetched from there.
    fn first(&self, from: usize) -> usize {
        let Chosen::List(list) = self.chosen else { return from };
        self.at.set(seek(list, self.at.get(), from));
        list.get(self.at.get()).map_or(usize::MAX, |&token| {
            let run = self.head.keys.run_start(token as usize);
            let page = self.head.keys.page_start(run);
            if run <= page + BRIDGED { page.max(from) } else { run.max(from) }
        })
    }

    /// A part of a list goes on over gaps of at most [`BRIDGED`] tokens.
    fn part_end(&self, from: usize) -> usize {
        let end = self.head.keys.part_end(from).min(self.head.values().part_end(from));
        let Chosen::List(list) = self.chosen else { return end };
        let (mut to, mut at) = (self.head.keys.run_start(from) + RUN, self.at.get());
        while to < end {
            at = seek(list, at, to);
            let start = list.get(at).map_or(end, |&token| self.head.keys.run_start(token as usize));
            if start >= end || start > to + BRIDGED {
                break;
            }
            debug_assert!(start + RUN > to, "a run that begins at {start} does not reach beyond {to}");
            to = start + RUN;
        }
        to.min(end)
    }

    fn scores(&self, from: usize, to: usize, logits: &mut [f32]) {
        let Chosen::List(list) = self.chosen else {
            self.head.keys.ask_for(to);
            self.head.values().ask_for(to);
            self.note(self.head.keys.scores(self.queries, from, self.head.values().lines(from), logits));
            return self.head.cap(logits);
        };
        let (at, end) = (self.at.get(), seek(list, self.at.get(), to));
        let after = list.get(end).map_or(to, |&token| token as usize);
        self.head.keys.ask_for(after);
        self.head.values().ask_for(after);
        self.note(self.head.keys.scores(self.queries, from, self.head.values().lines(from), logits));
        self.head.cap(logits);
        hide(&list[at..end], from, to - from, logits);
    }

    fn rescale(&mut self, factors: &[f32]) {
        let dim = self.head.values().codec().dim();
        rescale(factors, dim, self.plain);
        rescale(factors, dim, self.rotated);
    }

    fn joins(&self, before: usize, from: usize) -> bool {
        self.head.values().joins((before, from), self.queries.heads())
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        // As many parts of keys as there are of values are read next.
        let mut at = parts[parts.len() - 1].to;
        let mut next = ArrayVec::<&[Line], MAX_PARTS>::new();
        for _ in parts {
            let from = self.after(at);
            next.push(self.head.keys.lines(from));
            at = self.head.keys.part_end(from).max(from);
        }
        let sums = [&mut *self.plain, &mut *self.rotated];
        let added = self.head.values().accumulate(parts, &next, sums);
        self.note(added);
    }
}

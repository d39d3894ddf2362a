//! Attention over blocks: the tokens of a sequence as parts of the loop in `tqkv-simd`, and the tasks of a step.

use super::pages::check;
use super::{Paged, Pages, Side};
use crate::attend::{HeadQueries, PageSum, Spans, Sums, score_page, sum_pages};
use crate::cache::life::cap;
use crate::cache::vectors::{Floats, dot};
use crate::error::CacheError;
use crate::{memory, threads};
use arrayvec::ArrayVec;
use rayon::prelude::*;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::codec;
use tqkv_simd::page::{AttentionParts, Line, MAX_HEADS, MAX_PARTS, WeightedPart, attend, rescale, soften};

/// Tokens of a span. Spans may be attended to by several threads and are joined in order, so that the number of threads
/// changes no bit.
const SPAN: usize = 2048;

/// Most rows of one sequence that are attended to together.
const MOST_ROWS: usize = 64;

/// Fewest tokens and KV heads of a step for which threads are worth their wake.
const SHARED: usize = 4096;

/// The sequences of a step, one for each row of queries. Several rows may be of one sequence, as in a prompt or with drafted
/// tokens: they have the same blocks and lengths of their own. If they follow each other, the codes are read once for up to
/// eight query heads of them.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The blocks of each row, `[rows, entries]`. What is behind the last token of a row may be any number.
    pub table: &'a [i32],
    /// Tokens of each row, its own included.
    pub lengths: &'a [i32],
    /// The first token that each row sees; empty if all see from the first one on.
    pub starts: &'a [i32],
}

impl Step<'_> {
    /// Entries of the table for each row.
    pub(super) fn entries(&self) -> Result<usize, CacheError> {
        let rows = self.lengths.len();
        check("entries of the table", self.table.len() % rows.max(1), 0)?;
        check("entries of the table", self.table.len() * usize::from(rows == 0), 0)?;
        Ok(self.table.len() / rows.max(1))
    }

    /// Tokens of a row, cut to what its blocks of `tokens` tokens hold.
    pub(super) fn length(&self, row: usize, tokens: usize) -> usize {
        let most = self.table.len() / self.lengths.len() * tokens;
        usize::try_from(self.lengths[row]).unwrap_or(0).min(most)
    }

    /// The tokens that a row sees.
    fn seen(&self, row: usize, tokens: usize, window: Option<usize>) -> Range<usize> {
        let end = self.length(row, tokens);
        let start = self.starts.get(row).map_or(0, |start| usize::try_from(*start).unwrap_or(0));
        start.max(end.saturating_sub(window.unwrap_or(end))).min(end)..end
    }
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rule<'a> {
    /// Factor of the logits; 1/sqrt(head_dim) if none.
    pub scale: Option<f32>,
    /// Logits l become cap * tanh(l / cap).
    pub soft_cap: Option<f32>,
    /// Newest tokens that a row sees.
    pub window: Option<usize>,
    /// Learned sinks: a logit for each query head, which takes weight and has no value. Empty for none.
    pub sinks: &'a [f32],
    /// Tokens that are attended to as they are. The engine leaves them out of the codes that the step shows.
    pub exact: Option<ExactTokens<'a>>,
}

/// Tokens of an engine that it keeps as they were computed.
#[derive(Clone, Copy, Debug)]
pub struct ExactTokens<'a> {
    /// Their keys, `[num_kv_heads, places, head_dim]`.
    pub keys: Floats<'a>,
    /// Their values, of the same shape.
    pub values: Floats<'a>,
    /// The places that each row sees, `[rows, columns]`.
    pub places: &'a [i64],
    /// Number of places that may hold a token. One of `places` that is not below it stands for none.
    pub held: usize,
}

impl ExactTokens<'_> {
    /// Checks the lengths for so many rows of a layout.
    fn check(&self, rows: usize, heads: usize, dim: usize) -> Result<(), CacheError> {
        let given = self.keys.len() / (heads * dim);
        check("exact keys", self.keys.len(), given * heads * dim)?;
        check("exact values", self.values.len(), self.keys.len())?;
        check("exact places", self.places.len() % rows.max(1), 0)?;
        match self.held <= given {
            true => Ok(()),
            false => {
                let held = self.held;
                Err(CacheError::BadSpec(format!(
                    "{held} exact places are not valid: expected at most {given}"
                )))
            }
        }
    }
}

/// The rows of a sequence and a KV head.
struct Task<'a, M> {
    paged: &'a Paged,
    pages: &'a Pages<M>,
    rule: &'a Rule<'a>,
    table: &'a [i32],
    kv_head: usize,
    /// What each row sees.
    seen: &'a [Range<usize>],
    /// The exact places of each row; empty if it has none.
    places: &'a [i64],
}

/// Working memory of a task, kept from call to call.
#[derive(Default)]
struct Scratch {
    queries: Vec<HeadQueries>,
    given: Vec<f32>,
    spans: Spans,
}

/// Rows of exact tokens as f32, and their logits.
#[derive(Default)]
struct ExactRoom {
    rows: Vec<f32>,
    logits: Vec<f32>,
}

thread_local! {
    /// A thread that waits for others may take up a task meanwhile, so the memory is taken out for each task.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static EXACT: RefCell<ExactRoom> = RefCell::default();
}

impl Paged {
    /// Attends with the queries of each row, `[rows, num_heads, head_dim]`, to its tokens; `out` has their shape. A row
    /// without tokens gets zeros. `lse`, `[rows, num_heads]`, gets the logarithms of the sums of exponentials, learned sinks
    /// included, with which results over different tokens are joined.
    ///
    /// # Errors
    /// [`CacheError`] for a wrong length or a soft cap that is not positive, before anything is written.
    pub fn attend<'a, M: AsRef<[Line]> + Sync>(
        &self,
        queries: impl Into<Floats<'a>>,
        pages: &Pages<M>,
        step: &Step<'_>,
        rule: &Rule<'_>,
        out: &mut [f32],
        lse: Option<&mut [f32]>,
    ) -> Result<(), CacheError> {
        let (queries, rows) = (queries.into(), step.lengths.len());
        let (heads, dim, kv_heads) = (self.layout.num_heads, self.layout.head_dim, self.layout.num_kv_heads);
        pages.check(self)?;
        let entries = step.entries()?;
        check("queries", queries.len(), rows * heads * dim)?;
        check("results", out.len(), rows * heads * dim)?;
        if !step.starts.is_empty() {
            check("starts", step.starts.len(), rows)?;
        }
        if !rule.sinks.is_empty() {
            check("sinks", rule.sinks.len(), heads)?;
        }
        if let Some(exact) = &rule.exact {
            exact.check(rows, kv_heads, dim)?;
        }
        if let Some(cap) = rule.soft_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return Err(CacheError::BadSpec(format!(
                "soft cap {cap} is not valid: expected a positive number"
            )));
        }
        let mut room = memory::filled(if lse.is_none() { rows * heads } else { 0 }, 0.0)?;
        let lse = lse.unwrap_or(&mut room);
        check("lse", lse.len(), rows * heads)?;
        let queries = match queries {
            Floats::F32(values) => Cow::Borrowed(values),
            other => {
                let mut wide = memory::filled(other.len(), 0.0)?;
                other.widen(self.level(), &mut wide);
                Cow::Owned(wide)
            }
        };
        let tokens = self.layout.block_tokens;
        let seen: Vec<_> = (0..rows).map(|row| step.seen(row, tokens, rule.window)).collect();
        let mut tasks = Vec::new();
        let (mut outs, mut lses, mut first) = (&mut *out, &mut *lse, 0);
        while first < rows {
            let table = &step.table[first * entries..(first + 1) * entries];
            let more = step.table[(first + 1) * entries..]
                .chunks(entries.max(1))
                .take_while(|other| *other == table);
            let end = first + 1 + if entries == 0 { 0 } else { more.take(MOST_ROWS - 1).count() };
            let (of_run, rest) = outs.split_at_mut((end - first) * heads * dim);
            let (lse_of_run, rest_of_lse) = lses.split_at_mut((end - first) * heads);
            let chunks = of_run.chunks_mut((end - first) * heads / kv_heads * dim);
            let lse_chunks = lse_of_run.chunks_mut((end - first) * heads / kv_heads);
            for (kv_head, results) in chunks.zip(lse_chunks).enumerate() {
                let seen = &seen[first..end];
                let places = rule.exact.map_or(&[][..], |exact| {
                    let columns = exact.places.len() / rows;
                    &exact.places[first * columns..end * columns]
                });
                let task = Task { paged: self, pages, rule, table, kv_head, seen, places };
                tasks.push((task, &queries[first * heads * dim..end * heads * dim], results));
            }
            (outs, lses, first) = (rest, rest_of_lse, end);
        }
        let places = rule.exact.map_or(0, |exact| exact.places.len());
        let work = (seen.iter().map(Range::len).sum::<usize>() + places) * kv_heads;
        if threads::several() && work >= SHARED {
            let at_once = tasks.len() < 2 * rayon::current_num_threads();
            tasks.par_iter_mut().for_each(|(task, queries, (out, lse))| task.run(queries, at_once, out, lse));
        } else {
            tasks.iter_mut().for_each(|(task, queries, (out, lse))| task.run(queries, false, out, lse));
        }
        let runs: Vec<usize> = tasks.iter().step_by(kv_heads).map(|(task, ..)| task.seen.len()).collect();
        drop(tasks);
        let mut first = 0;
        for run in runs {
            let rows = first * heads..(first + run) * heads;
            by_row(&mut out[rows.start * dim..rows.end * dim], run, kv_heads);
            by_row(&mut lse[rows], run, kv_heads);
            first += run;
        }
        Ok(())
    }
}

/// Brings results of a run of rows from `[kv_heads, rows, ..]` to `[rows, kv_heads, ..]`.
fn by_row(results: &mut [f32], rows: usize, kv_heads: usize) {
    if rows > 1 && kv_heads > 1 {
        let (given, width) = (results.to_vec(), results.len() / rows / kv_heads);
        for (i, part) in given.chunks_exact(width).enumerate() {
            let at = (i % rows * kv_heads + i / rows) * width;
            results[at..at + width].copy_from_slice(part);
        }
    }
}

impl<M: AsRef<[Line]> + Sync> Task<'_, M> {
    /// Attends with the queries of all heads of some rows. `out` is `[rows, group, head_dim]`, `lse` is `[rows, group]`.
    fn run(&self, queries: &[f32], at_once: bool, out: &mut [f32], lse: &mut [f32]) {
        let (layout, level) = (&self.paged.layout, self.paged.level());
        let (dim, group) = (layout.head_dim, layout.group());
        let n = self.seen.len() * group;
        let mut scratch = SCRATCH.take();
        let Scratch { queries: memory, given, spans } = &mut scratch;
        given.clear();
        for row in queries.chunks_exact(layout.num_heads * dim) {
            given.extend_from_slice(&row[self.kv_head * group * dim..(self.kv_head + 1) * group * dim]);
        }
        let groups = n.div_ceil(MAX_HEADS);
        if memory.len() < groups {
            memory.resize_with(groups, HeadQueries::default);
        }
        let scale = self.rule.scale.unwrap_or(1.0 / (dim as f32).sqrt());
        for (memory, q) in memory.iter_mut().zip(given.chunks(MAX_HEADS * dim)) {
            memory.set((q, scale), dim, []);
            memory.code(std::iter::once(Some(self.paged.format(Side::Keys))), None::<fn(&mut [f32])>);
        }
        let seen = self.seen.iter().filter(|seen| !seen.is_empty());
        let start = seen.clone().map(|seen| seen.start).min().unwrap_or(0);
        let end = seen.map(|seen| seen.end).max().unwrap_or(0);
        let first = start / SPAN;
        let count = end.div_ceil(SPAN).saturating_sub(first);
        let given = &*given;
        let all = count + usize::from(!self.places.is_empty());
        let result = spans.attend((all, at_once), (n, dim), |span, sums| {
            if span == 0 {
                let sinks =
                    (0..n).map(|query| self.rule.sinks.get(self.kv_head * group + query % group).copied());
                sums.start(sinks);
            }
            if span == count && all > count {
                return EXACT.with_borrow_mut(|room| self.exact(given, scale, room, sums));
            }
            let tokens = ((first + span) * SPAN).max(start)..((first + span + 1) * SPAN).min(end);
            for (queries, from) in memory[..groups].iter().zip((0..n).step_by(MAX_HEADS)) {
                self.span(tokens.clone(), (from, queries), sums);
            }
        });
        for (lse, state) in lse.iter_mut().zip(&result.state) {
            *lse = state.max + state.sum.ln();
        }
        result.finish(dim, |sums| codec::unrotate(level, self.paged.format(Side::Values).codec(), sums), out);
        SCRATCH.set(scratch);
    }

    /// Attends with queries (`[rows, group, head_dim]`) to the exact tokens of their rows.
    fn exact(&self, queries: &[f32], scale: f32, room: &mut ExactRoom, sums: &mut Sums) {
        let Some(exact) = self.rule.exact else { return };
        let (dim, group, level) = (self.paged.layout.head_dim, self.paged.layout.group(), self.paged.level());
        let columns = self.places.len() / self.seen.len();
        let first = self.kv_head * exact.keys.len() / self.paged.layout.num_kv_heads;
        let rows =
            self.places.chunks_exact(columns.max(1)).zip(queries.chunks_exact(group * dim)).enumerate();
        for (row, (places, queries)) in rows {
            let places = places
                .iter()
                .filter_map(|place| usize::try_from(*place).ok())
                .filter(|place| *place < exact.held);
            let count = places.clone().count();
            if count == 0 {
                continue;
            }
            let ExactRoom { rows, logits } = room;
            rows.resize(2 * count * dim, 0.0);
            logits.resize(group * count, 0.0);
            let (keys, values) = rows.split_at_mut(count * dim);
            for (place, (key, value)) in
                places.zip(keys.chunks_exact_mut(dim).zip(values.chunks_exact_mut(dim)))
            {
                let at = first + place * dim;
                exact.keys.part(at, at + dim).widen(level, key);
                exact.values.part(at, at + dim).widen(level, value);
            }
            for (query, logits) in queries.chunks_exact(dim).zip(logits.chunks_exact_mut(count)) {
                for (logit, key) in logits.iter_mut().zip(keys.chunks_exact(dim)) {
                    *logit = scale * dot(query, key);
                }
            }
            if let Some(soft_cap) = self.rule.soft_cap {
                cap(logits, soft_cap);
            }
            let of = row * group..(row + 1) * group;
            let plain = &mut sums.plain[of.start * dim..of.end * dim];
            let heads = sums.state[of].chunks_mut(MAX_HEADS).zip(plain.chunks_mut(MAX_HEADS * dim));
            for (logits, (state, plain)) in logits.chunks_mut(MAX_HEADS * count).zip(heads) {
                soften(level, logits, state);
                for (weights, sum) in logits.chunks_exact(count).zip(plain.chunks_exact_mut(dim)) {
                    for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
                        sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * x);
                    }
                }
            }
        }
    }

    /// Attends with the queries from `from` on, at most eight, to tokens of a span.
    fn span(&self, tokens: Range<usize>, (from, queries): (usize, &HeadQueries), sums: &mut Sums) {
        let (dim, group) = (self.paged.layout.head_dim, self.paged.layout.group());
        let of = from..from + queries.heads();
        let seen = of.clone().map(|query| self.seen[query / group].clone()).collect();
        let Sums { state, rotated, .. } = sums;
        let mut parts =
            BlockTokens { task: self, queries, seen, rotated: &mut rotated[of.start * dim..of.end * dim] };
        attend(self.paged.level(), &mut parts, tokens.start, tokens.end, &mut state[of]);
    }
}

/// The tokens of a sequence in blocks, and the queries that attend to them.
struct BlockTokens<'a, M> {
    task: &'a Task<'a, M>,
    queries: &'a HeadQueries,
    /// What each query sees.
    seen: ArrayVec<Range<usize>, MAX_HEADS>,
    rotated: &'a mut [f32],
}

impl<M: AsRef<[Line]>> BlockTokens<'_, M> {
    /// The codes of one side of the block that has a token.
    fn page(&self, side: Side, token: usize) -> Option<crate::attend::PageView<'_>> {
        let Task { paged, pages, table, kv_head, .. } = *self.task;
        let block = usize::try_from(*table.get(token / paged.layout.block_tokens)?).ok()?;
        pages.view(paged, side, block, kv_head)
    }

    /// Lines to prefetch.
    fn next(&self, side: Side, token: usize) -> &[Line] {
        self.page(side, token).map_or(&[], |page| page.lines)
    }
}

impl<M: AsRef<[Line]>> AttentionParts for BlockTokens<'_, M> {
    fn part_end(&self, from: usize) -> usize {
        let tokens = self.task.paged.layout.block_tokens;
        (from / tokens + 1) * tokens
    }

    fn scores(&self, from: usize, to: usize, logits: &mut [f32]) {
        let Some(page) = self.page(Side::Keys, from) else { return logits.fill(f32::NEG_INFINITY) };
        let (slot, next) = (from % page.format.slots(), self.next(Side::Values, from));
        score_page(page, slot, (self.queries.coded(0), &[]), next, logits);
        if let Some(soft_cap) = self.task.rule.soft_cap {
            cap(logits, soft_cap);
        }
        for (logits, seen) in logits.chunks_exact_mut(to - from).zip(&self.seen) {
            let hidden = [from..seen.start.clamp(from, to), seen.end.clamp(from, to)..to];
            hidden
                .into_iter()
                .for_each(|hidden| logits[hidden.start - from..hidden.end - from].fill(f32::NEG_INFINITY));
        }
    }

    fn rescale(&mut self, factors: &[f32]) {
        rescale(factors, self.task.paged.layout.head_dim, self.rotated);
    }

    fn joins(&self, _before: usize, _from: usize) -> bool {
        self.task.paged.format(Side::Values).joins(self.seen.len())
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        let rotated = std::mem::take(&mut self.rotated);
        let mut pages = ArrayVec::<PageSum<'_>, MAX_PARTS>::new();
        // As many blocks of keys as there are of values are read next.
        let mut next = parts.last().map_or(0, |part| part.to);
        for &WeightedPart { from, to, weights } in parts {
            if let Some(page) = self.page(Side::Values, from) {
                pages.push(PageSum { page, index: from, weights, next: self.next(Side::Keys, next) });
            }
            next += to - from;
        }
        sum_pages(pages.iter().copied(), rotated);
        drop(pages);
        self.rotated = rotated;
    }
}

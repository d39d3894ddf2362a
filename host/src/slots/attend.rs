//! Attention of the queries of one KV head over the slots of one stream.
//!
//! Slots are divided into spans: exact rows, and pages of the codes of one tier, and with those of the first tier the
//! empty slots. Any thread may attend to a span; the results are joined in order. The division depends only on the
//! slots, so the number of threads changes no bit of a result.

use super::coded::{SlotKind, attend_pages};
use super::exact::{RowScratch, attend_rows};
use super::rule::{QueryMask, QueryRule};
use super::task::{StreamSide, Task};
use crate::attend::{HeadQueries, Spans, Sums};
use crate::cache::life::PAGE_TOKENS;
use crate::threads;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::page::MAX_HEADS;

/// Most exact rows of a span.
const SPAN_ROWS: usize = 1024;

/// Most pages of a span.
const SPAN_PAGES: usize = SPAN_ROWS / PAGE_TOKENS;

/// Most queries of a task whose spans threads share. More queries have as many tasks, and each span takes memory for
/// all queries of its task.
const SHARED_QUERIES: usize = 4 * MAX_HEADS;

/// Working memory of a task, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct TaskScratch {
    /// At most eight queries each, once for each turn of the keys.
    queries: Vec<HeadQueries>,
    pub(super) spans: Spans,
}

thread_local! {
    /// A thread that waits for others may take up a task meanwhile, so the memory is taken out for each task.
    static TASK: RefCell<TaskScratch> = RefCell::default();
    static ROWS: RefCell<RowScratch> = RefCell::default();
}

/// Lends the working memory of a task.
pub(super) fn with_scratch<R>(work: impl FnOnce(&mut TaskScratch) -> R) -> R {
    let mut scratch = TASK.take();
    let result = work(&mut scratch);
    TASK.set(scratch);
    result
}

/// True if threads share the spans of a task with this many queries.
pub(super) fn shares_spans(queries: usize) -> bool {
    queries <= SHARED_QUERIES && threads::is_shared()
}

/// Attends with any number of queries (`[n, head_dim]`, one of `asked` each); `out` is `[n, value_dim]`.
///
/// In a thread of a rayon pool, the pool's threads share the spans.
pub fn attend(
    rule: &QueryRule,
    (keys, values): (StreamSide<'_>, StreamSide<'_>),
    asked: &[QueryMask<'_>],
    queries: &[f32],
    out: &mut [f32],
) {
    let task = Task { rule, keys, values, asked, queries };
    if asked.is_empty() {
        return;
    }
    with_scratch(|TaskScratch { queries, spans }| {
        let groups = task.prepare(queries);
        let dim = values.format.dim;
        let all = (task.spans(), shares_spans(asked.len()));
        let seen = spans.attend(all, (asked.len(), dim), |span, sums| {
            if span == 0 {
                sums.start(asked.iter().map(|asked| asked.sink));
            }
            task.attend(span, groups, sums);
        });
        let has_codes = values.stream.pages.tiers() > 0;
        let unrotate = |sums: &mut [f32]| {
            if has_codes {
                values.format.unrotate(sums);
            }
        };
        seen.finish(dim, unrotate, out);
    });
}

impl Task<'_> {
    /// Prepares the queries, eight at a time, for each turn of the keys. More queries are scored against exact rows as
    /// they are.
    fn prepare<'a>(&self, memory: &'a mut Vec<HeadQueries>) -> &'a [HeadQueries] {
        let (groups, turns) = (self.asked.len().div_ceil(MAX_HEADS), self.turns());
        if memory.len() < groups * turns {
            memory.resize_with(groups * turns, HeadQueries::default);
        }
        if groups == 1 || self.keys.stream.pages.tiers() > 0 {
            let dim = self.keys.format.dim;
            for (queries, memory) in self.queries.chunks(MAX_HEADS * dim).zip(memory.chunks_mut(turns)) {
                self.keys.prepare_all(queries, self.rule.scale, memory);
            }
        }
        &memory[..groups * turns]
    }

    /// Number of turns of the keys.
    fn turns(&self) -> usize {
        self.keys.stream.pages.turns.count()
    }

    /// Number of spans of pages of a tier.
    fn page_spans(&self) -> usize {
        self.rule.slots.div_ceil(SPAN_PAGES * PAGE_TOKENS)
    }

    /// Number of spans: those of each tier, and those of exact rows.
    fn spans(&self) -> usize {
        let tiers = self.keys.format.tiers().max(1);
        tiers * self.page_spans() + self.keys.stream.exact.len().div_ceil(SPAN_ROWS)
    }

    fn attend(&self, span: usize, groups: &[HeadQueries], seen: &mut Sums) {
        let of_tier = self.page_spans();
        let (tier, first) = (span / of_tier.max(1), span % of_tier.max(1) * SPAN_PAGES);
        if of_tier > 0 && tier < self.keys.format.tiers().max(1) {
            let pages = first..(first + SPAN_PAGES).min(self.rule.slots.div_ceil(PAGE_TOKENS));
            return self.attend_pages(tier, pages, groups, seen);
        }
        let first = (span - self.keys.format.tiers().max(1) * of_tier) * SPAN_ROWS;
        let rows = first..self.keys.stream.exact.len().min(first + SPAN_ROWS);
        ROWS.with_borrow_mut(|scratch| attend_rows(self, rows, &groups[0], seen, scratch));
    }

    /// Attends to the codes of a tier, and with those of the first to the empty slots.
    fn attend_pages(&self, tier: usize, pages: Range<usize>, groups: &[HeadQueries], seen: &mut Sums) {
        let n = self.asked.len();
        for (group, queries) in groups.chunks(self.turns()).enumerate() {
            let of = group * MAX_HEADS..n.min((group + 1) * MAX_HEADS);
            let kinds = [Some(SlotKind::Coded(tier)), (tier == 0).then_some(SlotKind::Empty)];
            for kind in kinds.into_iter().flatten() {
                attend_pages(self, (kind, pages.clone()), (of.clone(), queries), seen);
            }
        }
    }
}

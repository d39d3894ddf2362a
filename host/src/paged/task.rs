//! Attention of some rows of a sequence and a KV head: codes in spans, then exact tokens, in one softmax.

use super::Side;
use super::step::Rule;
use super::tokens::{BlockTokens, Sequence};
use crate::attend::{HeadQueries, Spans, Sums};
use crate::cache::life::cap;
use crate::cache::vectors::dot;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::codec;
use tqkv_simd::page::{Line, MAX_HEADS, attend, soften};

/// Tokens of a span. Spans may be attended to by several threads and are joined in order, so that the number of threads
/// changes no bit.
const SPAN: usize = 2048;

/// The rows of a sequence and a KV head.
pub(super) struct Task<'a, M> {
    pub(super) sequence: Sequence<'a, M>,
    pub(super) rule: &'a Rule<'a>,
    /// What each row sees.
    pub(super) seen: &'a [Range<usize>],
    /// The exact places of each row; empty if it has none.
    pub(super) places: &'a [i64],
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

impl<M: AsRef<[Line]> + Sync> Task<'_, M> {
    /// Attends with the queries of all heads of some rows. `out` is `[rows, group, head_dim]`, `lse` is `[rows, group]`.
    pub(super) fn run(&self, queries: &[f32], at_once: bool, out: &mut [f32], lse: &mut [f32]) {
        let Sequence { paged, kv_head, .. } = self.sequence;
        let (dim, group) = (paged.layout.head_dim, paged.layout.group());
        let of_head = kv_head * group..(kv_head + 1) * group;
        let n = self.seen.len() * group;
        let mut scratch = SCRATCH.take();
        let Scratch { queries: memory, given, spans } = &mut scratch;
        given.clear();
        for row in queries.chunks_exact(paged.layout.num_heads * dim) {
            given.extend_from_slice(&row[of_head.start * dim..of_head.end * dim]);
        }
        let groups = n.div_ceil(MAX_HEADS);
        if memory.len() < groups {
            memory.resize_with(groups, HeadQueries::default);
        }
        let scale = self.rule.scale.unwrap_or(1.0 / (dim as f32).sqrt());
        for (memory, q) in memory.iter_mut().zip(given.chunks(MAX_HEADS * dim)) {
            memory.set((q, scale), dim, []);
            memory.code(std::iter::once(Some(paged.format(Side::Keys))), None::<fn(&mut [f32])>);
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
                let of = |query: usize| self.rule.sinks.get(of_head.start + query % group).copied();
                sums.start((0..n).map(of));
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
        let values = paged.format(Side::Values).codec();
        result.finish(dim, |sums| codec::unrotate(paged.level(), values, sums), out);
        SCRATCH.set(scratch);
    }

    /// Attends with queries (`[rows, group, head_dim]`) to the exact tokens of their rows.
    fn exact(&self, queries: &[f32], scale: f32, room: &mut ExactRoom, sums: &mut Sums) {
        let Some(exact) = self.rule.exact else { return };
        let Sequence { paged, kv_head, .. } = self.sequence;
        let (dim, group, level) = (paged.layout.head_dim, paged.layout.group(), paged.level());
        let columns = self.places.len() / self.seen.len();
        let first = kv_head * exact.keys.len() / paged.layout.num_kv_heads;
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
        let (dim, group) = (self.sequence.paged.layout.head_dim, self.sequence.paged.layout.group());
        let of = from..from + queries.heads();
        let seen = of.clone().map(|query| self.seen[query / group].clone()).collect();
        let Sums { state, rotated, .. } = sums;
        let mut parts = BlockTokens {
            sequence: &self.sequence,
            queries,
            seen,
            rotated: &mut rotated[of.start * dim..of.end * dim],
        };
        attend(self.sequence.paged.level(), &mut parts, tokens.start, tokens.end, &mut state[of]);
    }
}

//! Attention of many queries over one layer, divided into tasks that threads share.

mod latent;

use super::attend::attend;
use super::rule::{QueryMask, QueryRule};
use super::store::{self, SlotStore};
use super::task::StreamSide;
use crate::threads;
use arrayvec::ArrayVec;
use half::f16;
use rayon::prelude::*;
use std::cell::RefCell;

/// Most queries of a task, so that its working memory stays in the second-level cache.
const MOST_QUERIES: usize = 192;

/// Most tokens of an operation whose queries teach maps.
const SHOWN: usize = 64;

/// Most values of results that are kept from call to call.
const KEPT: usize = 1 << 18;

thread_local! {
    /// Queries of a task, back to back, and results of tasks. A thread that waits for others may take up a task
    /// meanwhile, so the memory is taken out for each use.
    static GIVEN: RefCell<Vec<f32>> = RefCell::default();
    static RESULTS: RefCell<Vec<f32>> = RefCell::default();
}

/// Values with a stride in elements for each token, head and stream.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    /// The values. The vector of a token, head and stream lies back to back.
    pub values: &'a [T],
    /// Strides of tokens, heads and streams.
    pub steps: [usize; 3],
}

impl<T> Strided<'_, T> {
    fn place(&self, [token, head, stream]: [usize; 3]) -> usize {
        token * self.steps[0] + head * self.steps[1] + stream * self.steps[2]
    }
}

/// A mask for each query: numbers that are added to logits, -inf to hide a slot.
#[derive(Clone, Copy, Debug)]
pub struct Masks<'a> {
    /// One row of numbers per query.
    pub rows: Strided<'a, f16>,
    /// Number of heads and of streams that have rows of their own; the others take them in turns.
    pub counts: [usize; 2],
}

/// Queries of one layer and what they ask for.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    /// The settings that all queries share.
    pub rule: QueryRule,
    /// First stream of the keys, and of the values.
    pub first_streams: [usize; 2],
    /// Number of streams.
    pub streams: usize,
    /// Number of tokens in each stream.
    pub tokens: usize,
    /// Number of query heads, a multiple of the KV heads.
    pub query_heads: usize,
    /// The queries.
    pub queries: Strided<'a, f32>,
    /// None if every query sees every slot.
    pub masks: Option<Masks<'a>>,
    /// Learned sinks by query head; empty for none.
    pub sinks: &'a [f32],
    /// Factor of the mask by query head; empty for 1.
    pub slopes: &'a [f32],
}

/// Queries of one KV head, which are attended to together.
#[derive(Clone, Copy, Debug)]
struct HeadTask {
    stream: usize,
    head: usize,
    query_heads: (usize, usize),
    tokens: (usize, usize),
}

impl HeadTask {
    /// The queries in order, as pairs of token and query head.
    fn queries(&self) -> impl Iterator<Item = (usize, usize)> {
        let (first, last) = self.query_heads;
        (self.tokens.0..self.tokens.1).flat_map(move |token| (first..last).map(move |head| (token, head)))
    }
}

/// The queries of an operation, divided into tasks.
#[derive(Clone, Copy, Debug)]
struct Tasks {
    /// KV heads, and query heads of each.
    heads: usize,
    group: usize,
    tokens: usize,
    /// Most query heads of a task, and most tokens.
    most: [usize; 2],
    /// Into how many tasks the query heads of a KV head, and the tokens, are divided.
    pieces: [usize; 2],
    count: usize,
}

impl Tasks {
    fn task(&self, task: usize) -> HeadTask {
        let [of_heads, of_tokens] = self.pieces;
        let (rest, token) = (task / of_tokens, task % of_tokens * self.most[1]);
        let (rest, first) = (rest / of_heads, rest % of_heads * self.most[0]);
        let (stream, head) = (rest / self.heads, rest % self.heads);
        let last = self.group.min(first + self.most[0]);
        let query_heads = (head * self.group + first, head * self.group + last);
        HeadTask { stream, head, query_heads, tokens: (token, self.tokens.min(token + self.most[1])) }
    }

    /// Calls `work` for each task with memory for its results, of `dim` values per query, and puts these in their places.
    /// `steps` are the strides of `out` for tokens, heads and streams.
    fn each(
        &self,
        dim: usize,
        (out, steps): (&mut [f32], [usize; 3]),
        work: impl Fn(&HeadTask, &mut [f32]) -> Option<()> + Sync,
    ) -> Option<()> {
        let (most, mut results) = (self.most[0] * self.most[1] * dim, RESULTS.take());
        let mut put = |task: &HeadTask, results: &[f32]| {
            for ((token, head), row) in task.queries().zip(results.chunks_exact(dim)) {
                let at = token * steps[0] + head * steps[1] + task.stream * steps[2];
                out.get_mut(at..at + dim)?.copy_from_slice(row);
            }
            Some(())
        };
        let each = |task: usize, results: &mut [f32]| {
            let task = self.task(task);
            let results = &mut results[..task.queries().count() * dim];
            work(&task, results).map(|()| task)
        };
        let at_once = if threads::is_shared() { self.count } else { self.count.min(1) };
        results.resize(results.len().max(at_once * most), 0.0);
        if at_once > 1 {
            let parts = results.par_chunks_mut(most).take(self.count).enumerate();
            parts.try_for_each(|(task, results)| each(task, results).map(|_| ()))?;
            for (task, results) in results.chunks(most).take(self.count).enumerate() {
                put(&self.task(task), results)?;
            }
        } else {
            for task in 0..self.count {
                let task = each(task, &mut results)?;
                put(&task, &results)?;
            }
        }
        if results.capacity() <= KEPT {
            RESULTS.set(results);
        }
        Some(())
    }
}

impl<'a> Operation<'a> {
    /// Attends to a layer, and shows the queries to keys that learn a map. Then it encodes the rows that are
    /// older than the newest writes. `steps` are the strides of `out` for tokens, heads and streams. None if
    /// an operand is shorter than the operation says, or rows are not divided into heads yet.
    ///
    /// In a thread of a rayon pool, the pool's threads share the work. Their number changes no bit.
    pub fn run(
        &self,
        (keys, values): (&mut SlotStore, &mut SlotStore),
        out: &mut [f32],
        steps: [usize; 3],
    ) -> Option<()> {
        let heads = keys.width() / keys.format()?.dim();
        keys.settle();
        values.settle();
        let tasks = self.tasks(heads);
        self.attend(&tasks, (keys, values), (out, steps))?;
        self.show(keys, &tasks)?;
        store::cool(keys, values);
        Some(())
    }

    /// The tasks of the operation with this number of KV heads.
    fn tasks(&self, heads: usize) -> Tasks {
        let group = self.query_heads / heads.max(1);
        let most = [group.clamp(1, MOST_QUERIES), (MOST_QUERIES / group.max(1)).max(1).min(self.tokens)];
        let pieces = [group.div_ceil(most[0]), self.tokens.div_ceil(most[1].max(1))];
        let count = self.streams * heads * pieces[0] * pieces[1];
        Tasks { heads, group, tokens: self.tokens, most, pieces, count }
    }

    fn attend<'b>(
        &self,
        tasks: &Tasks,
        (keys, values): (&'b SlotStore, &'b SlotStore),
        out: (&mut [f32], [usize; 3]),
    ) -> Option<()> {
        let side = |store: &'b SlotStore, first: usize, task: &HeadTask| {
            Some(StreamSide {
                stream: store.stream(first + task.stream)?,
                format: store.format()?,
                head: task.head,
            })
        };
        let [of_keys, of_values] = self.first_streams;
        tasks.each(values.format()?.dim(), out, |task, results| {
            let sides = (side(keys, of_keys, task)?, side(values, of_values, task)?);
            self.with_queries(task, sides.0.format.dim(), |given, asked| {
                attend(&self.rule, sides, asked, given, results);
            })
        })
    }

    /// Calls `work` with the queries of a task (`[n, dim]`), which it may change, and their settings.
    fn with_queries<R>(
        &self,
        task: &HeadTask,
        dim: usize,
        work: impl FnOnce(&mut [f32], &[QueryMask<'a>]) -> R,
    ) -> Option<R> {
        let (mut given, mut asked) = (GIVEN.take(), ArrayVec::<QueryMask<'a>, MOST_QUERIES>::new());
        given.clear();
        for (token, head) in task.queries() {
            let at = self.queries.place([token, head, task.stream]);
            given.extend_from_slice(self.queries.values.get(at..at + dim)?);
            asked.push(QueryMask {
                mask: self.mask(token, head, task.stream)?,
                slope: self.slopes.get(head).copied().unwrap_or(1.0),
                sink: self.sinks.get(head).copied(),
            });
        }
        let result = work(&mut given, &asked);
        GIVEN.set(given);
        Some(result)
    }

    /// The mask of a query; empty if the operation has no mask. None if the mask lacks that query: without
    /// a mask it would see the slots of other sequences.
    fn mask(&self, token: usize, head: usize, stream: usize) -> Option<&'a [f16]> {
        let Some(masks) = self.masks else { return Some(&[]) };
        let at = masks.rows.place([token, head % masks.counts[0], stream % masks.counts[1]]);
        masks.rows.values.get(at..at + self.rule.slots)
    }

    /// Shows the queries of some tokens to streams of keys that learn maps from them.
    fn show(&self, keys: &mut SlotStore, tasks: &Tasks) -> Option<()> {
        let dim = keys.format()?.dim();
        for task in (0..tasks.count).map(|task| tasks.task(task)) {
            let stream = self.first_streams[0] + task.stream;
            if !keys.is_learning(stream) {
                continue;
            }
            let (first, end) = task.tokens;
            for token in (first..end).filter(|token| token.is_multiple_of(self.tokens.div_ceil(SHOWN))) {
                self.with_queries(&HeadTask { tokens: (token, token + 1), ..task }, dim, |given, asked| {
                    keys.show((stream, task.head), &self.rule, asked, given);
                })?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_without_its_mask_is_refused() {
        let mask = [f16::ZERO; 8];
        let operation = |masks| Operation {
            rule: QueryRule { scale: 1.0, soft_cap: None, slots: 4 },
            first_streams: [0, 0],
            streams: 1,
            tokens: 3,
            query_heads: 1,
            queries: Strided { values: &[], steps: [0; 3] },
            masks,
            sinks: &[],
            slopes: &[],
        };
        assert_eq!(operation(None).mask(2, 0, 0), Some(&[][..]));
        let rows = Strided { values: &mask[..], steps: [4, 8, 8] };
        let short = operation(Some(Masks { rows, counts: [1, 1] }));
        assert_eq!(short.mask(1, 0, 0), Some(&mask[4..]));
        assert_eq!(short.mask(2, 0, 0), None);
    }
}

//! Reusable memory of operations. After the first tokens, the hot path allocates nothing.

use super::format::CodedQueries;
use super::means::{Means, RING_MEANS};
use super::page::Pages;
use super::vectors::dot;
use crate::error::CacheError;
use crate::memory;
#[cfg(all(loom, test))]
use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard};
use tqkv_simd::page::{Attention, MAX_HEADS};

/// Query heads that share a KV head, at most [`MAX_HEADS`], in the forms that parts of a track need.
#[derive(Debug, Default)]
pub(super) struct HeadQueries {
    heads: usize,
    /// The queries of the model times the scale of the logits: `[heads, dim]`.
    plain: Vec<f32>,
    /// The same queries for mapped keys. Unused without a map.
    mapped: Vec<f32>,
    /// For each mean of the keys, the product <plain, mean> of each head.
    offsets: Vec<f32>,
    /// The queries in the form of each tier.
    coded: Vec<CodedQueries>,
}

impl HeadQueries {
    /// Prepares queries (`[heads, dim]`) for the pages of a track and for its means.
    pub(super) fn set(&mut self, pages: &Pages, means: &Means, q: &[f32], scale: f32) {
        let dim = pages.warm().codec().dim();
        self.heads = q.len() / dim;
        self.plain.clear();
        self.plain.extend(q.iter().map(|x| x * scale));
        self.offsets.clear();
        for mean in means.list() {
            self.offsets.extend(self.plain.chunks_exact(dim).map(|q| dot(q, &mean.values)));
        }
        let mut queries = &self.plain;
        if let Some(map) = pages.map() {
            self.mapped.clone_from(&self.plain);
            map.apply_to_queries(&mut self.mapped);
            queries = &self.mapped;
        }
        self.coded.resize_with(pages.tiers().len(), CodedQueries::default);
        for (tier, coded) in self.coded.iter_mut().enumerate() {
            if pages.is_used(tier) {
                pages.tiers().format(tier).set_queries(queries, coded);
            }
        }
    }

    /// Takes the memory for the queries of `heads` query heads, any tier, and as many means as a ring may
    /// have.
    pub(super) fn hold(&mut self, pages: &Pages, means: &Means, heads: usize) {
        let queries = vec![0.0; heads * pages.warm().codec().dim()];
        self.set(pages, means, &queries, 1.0);
        self.offsets.reserve(RING_MEANS * heads);
        for (tier, coded) in self.coded.iter_mut().enumerate() {
            pages.tiers().format(tier).set_queries(&queries, coded);
        }
    }

    pub(super) fn heads(&self) -> usize {
        self.heads
    }

    pub(super) fn plain(&self) -> &[f32] {
        &self.plain
    }

    /// Offsets for the scores of keys with this mean, one per head.
    pub(super) fn offsets(&self, mean: usize) -> &[f32] {
        &self.offsets[mean * self.heads..(mean + 1) * self.heads]
    }

    /// The queries for pages of a tier.
    pub(super) fn coded(&self, tier: usize) -> &CodedQueries {
        &self.coded[tier]
    }
}

/// Partial results of the query heads of a group over one span.
#[derive(Debug)]
pub(super) struct SpanSums {
    pub(super) state: [Attention; MAX_HEADS],
    /// Weighted sum of uncompressed values, `[heads, dim]`.
    pub(super) plain: Vec<f32>,
    /// Weighted sum of blocks, in their domain.
    pub(super) rotated: Vec<f32>,
    /// The error of a page that could not be read.
    pub(super) failed: Option<CacheError>,
}

impl SpanSums {
    const fn new() -> Self {
        Self { state: [Attention::EMPTY; MAX_HEADS], plain: Vec::new(), rotated: Vec::new(), failed: None }
    }

    /// Resets the state, with sums of `values` values.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn clear(&mut self, values: usize) -> Result<(), CacheError> {
        self.state = [Attention::EMPTY; MAX_HEADS];
        for sums in [&mut self.plain, &mut self.rotated] {
            sums.clear();
            memory::reserve(sums, values)?;
            sums.resize(values, 0.0);
        }
        self.failed = None;
        Ok(())
    }
}

/// Memory for picking the tokens of a query.
#[derive(Debug, Default)]
pub(super) struct PickScratch {
    pub(super) scaled: Vec<f32>,
    pub(super) coded: CodedQueries,
    pub(super) room: Vec<f32>,
    /// The same of the positional parts of latent vectors.
    pub(super) coded_positions: CodedQueries,
    pub(super) position_room: Vec<f32>,
    /// Products of queries and means of pages, `[heads, means]`.
    pub(super) offsets: Vec<f32>,
    /// Best logits of the runs, `[heads, runs]`.
    pub(super) best: Vec<f32>,
    /// What each run counts.
    pub(super) worth: Vec<f32>,
    pub(super) runs: Vec<u32>,
    /// The picked tokens.
    pub(super) tokens: Vec<u32>,
}

/// Memory for the work of one thread on one head.
#[derive(Debug, Default)]
pub(super) struct HeadScratch {
    pub(super) queries: HeadQueries,
    pub(super) seen: Vec<SpanSums>,
    pub(super) pick: PickScratch,
    /// Memory of [`HeadScratch::rows`]. It only grows: values that come back would be cleared again.
    memory: Vec<f32>,
    /// Number of values that were asked for last.
    rows: usize,
    blocks: Vec<u8>,
}

impl HeadScratch {
    /// The queries, and partial results for `spans` spans.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn spans(&mut self, spans: usize) -> Result<(&HeadQueries, &mut [SpanSums]), CacheError> {
        let made = self.seen.len();
        if made < spans {
            memory::reserve(&mut self.seen, spans - made)?;
            self.seen.resize_with(spans, SpanSums::new);
        }
        Ok((&self.queries, &mut self.seen[..spans]))
    }

    /// Takes the memory for this many values of rows and bytes of blocks.
    pub(super) fn make_room(&mut self, values: usize, bytes: usize) {
        self.rows(values);
        self.blocks.reserve(bytes);
    }

    /// A buffer of this many values, whatever they are.
    pub(super) fn rows(&mut self, values: usize) -> &mut [f32] {
        if self.memory.len() < values {
            self.memory.resize(values, 0.0);
        }
        self.rows = values;
        &mut self.memory[..values]
    }

    /// The values of that buffer, and a buffer for blocks.
    pub(super) fn rows_and_blocks(&mut self) -> (&[f32], &mut Vec<u8>) {
        (&self.memory[..self.rows], &mut self.blocks)
    }
}

/// Scratch memory of a cache, one for each thread that works on it at once.
#[derive(Debug, Default)]
pub(super) struct ScratchPool(Mutex<Vec<HeadScratch>>);

impl ScratchPool {
    /// Lends a scratch to `work`.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut HeadScratch) -> R) -> R {
        let mut scratch = self.lock().pop().unwrap_or_default();
        let result = work(&mut scratch);
        self.lock().push(scratch);
        result
    }

    /// Makes a scratch for each of `threads` threads, ready for `work`.
    pub(super) fn hold(
        &self,
        threads: usize,
        work: impl Fn(&mut HeadScratch) -> Result<(), CacheError>,
    ) -> Result<(), CacheError> {
        let mut pool = self.lock();
        let more = threads.saturating_sub(pool.len());
        memory::reserve(&mut pool, more)?;
        pool.resize_with(threads, HeadScratch::default);
        pool.iter_mut().try_for_each(work)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HeadScratch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy of a cache has its own scratch.
impl Clone for ScratchPool {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// Writes to the lent scratch, lets other threads run, and checks that it is unchanged.
    fn use_twice(pool: &ScratchPool, mark: f32) {
        for _ in 0..2 {
            pool.with(|scratch| {
                scratch.rows(3).fill(mark);
                thread::yield_now();
                assert_eq!(scratch.rows(3), [mark; 3]);
            });
        }
    }

    #[test]
    fn loom_no_scratch_is_lent_to_two() {
        loom::model(|| {
            let pool = Arc::new(ScratchPool::default());
            let other = pool.clone();
            let thread = thread::spawn(move || use_twice(&other, 1.0));
            use_twice(&pool, 2.0);
            thread.join().unwrap();
            let kept = pool.lock().len();
            assert!((1..=2).contains(&kept), "{kept} for two threads");
        });
    }
}

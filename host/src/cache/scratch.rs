//! Reusable memory of operations. After the first tokens, the hot path allocates nothing.

use super::format::CodedQueries;
use crate::attend::{HeadQueries, Spans};
use crate::error::CacheError;
use crate::memory;
#[cfg(all(loom, test))]
use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard};

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
    pub(super) spans: Spans,
    pub(super) pick: PickScratch,
    /// Memory of [`HeadScratch::rows`]. It only grows: values that come back would be cleared again.
    memory: Vec<f32>,
    /// Number of values that were asked for last.
    rows: usize,
    blocks: Vec<u8>,
}

impl HeadScratch {
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

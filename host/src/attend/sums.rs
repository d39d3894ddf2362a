//! What queries have seen of some tokens, in spans that threads share.

use crate::error::CacheError;
use crate::memory;
use rayon::prelude::*;
use tqkv_simd::page::{Attention, merge};

/// The softmax state of each query, and weighted sums of values (`[queries, dim]`).
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) state: Vec<Attention>,
    /// Sums of vectors as they are: exact rows, and means of codes.
    pub(crate) plain: Vec<f32>,
    /// Sums of blocks, in their domain.
    pub(crate) rotated: Vec<f32>,
    /// The error of a page that could not be read.
    pub(crate) failed: Option<CacheError>,
}

impl Sums {
    /// Takes the memory for the sums of `queries` queries, of `dim` values each.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(crate) fn make_room(&mut self, queries: usize, dim: usize) -> Result<(), CacheError> {
        self.state.clear();
        memory::reserve(&mut self.state, queries)?;
        for sums in [&mut self.plain, &mut self.rotated] {
            sums.clear();
            memory::reserve(sums, queries * dim)?;
        }
        Ok(())
    }

    /// The state before any token.
    pub(crate) fn clear(&mut self, queries: usize, dim: usize) {
        self.state.clear();
        self.state.resize(queries, Attention::EMPTY);
        for sums in [&mut self.plain, &mut self.rotated] {
            sums.clear();
            sums.resize(queries * dim, 0.0);
        }
        self.failed = None;
    }

    /// Begins with learned sinks: logits that take weight but have no value.
    pub(crate) fn start(&mut self, sinks: impl Iterator<Item = Option<f32>>) {
        for (state, sink) in self.state.iter_mut().zip(sinks) {
            if let Some(max) = sink {
                *state = Attention { max, sum: 1.0 };
            }
        }
    }

    /// Joins what the same queries saw of a later span.
    fn join(&mut self, later: &mut Self) {
        let dim = self.plain.len() / self.state.len().max(1);
        for (query, (state, other)) in self.state.iter_mut().zip(&later.state).enumerate() {
            let [keep, add] = merge(state, other);
            let at = query * dim..(query + 1) * dim;
            for (sums, others) in [(&mut self.plain, &later.plain), (&mut self.rotated, &later.rotated)] {
                for (sum, other) in sums[at.clone()].iter_mut().zip(&others[at.clone()]) {
                    *sum = *sum * keep + other * add;
                }
            }
        }
        self.failed = self.failed.take().or(later.failed.take());
    }

    /// Adds the sums of both domains and normalises them: `out` is `[queries, dim]`. `unrotate` brings sums back from the
    /// domain of the blocks. Without tokens the result is 0, and a NaN stays visible.
    pub(crate) fn finish(&mut self, dim: usize, unrotate: impl FnOnce(&mut [f32]), out: &mut [f32]) {
        unrotate(&mut self.rotated);
        let sums = self.plain.chunks_exact(dim).zip(self.rotated.chunks_exact(dim));
        for ((state, out), (plain, rotated)) in self.state.iter().zip(out.chunks_exact_mut(dim)).zip(sums) {
            let normaliser = if state.sum == 0.0 { 0.0 } else { 1.0 / state.sum };
            for ((o, p), r) in out.iter_mut().zip(plain).zip(rotated) {
                *o = (p + r) * normaliser;
            }
        }
    }
}

/// Memory of the spans of an operation, kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// The first one takes up the others.
    all: Vec<Sums>,
}

impl Spans {
    /// Takes the memory for spans that threads attend to at once, or for one after the other.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(crate) fn make_room(
        &mut self,
        (spans, at_once): (usize, bool),
        queries: usize,
        dim: usize,
    ) -> Result<(), CacheError> {
        let held = if at_once { spans } else { spans.min(2) };
        let made = self.all.len();
        if made < held {
            memory::reserve(&mut self.all, held - made)?;
            self.all.resize_with(held, Sums::default);
        }
        self.all[..held].iter_mut().try_for_each(|sums| sums.make_room(queries, dim))
    }

    /// Attends to spans with `each`, in threads if `at_once`, and joins them in order, so that the number of threads
    /// changes no bit. `each` gets the number of the span and sums that are cleared.
    pub(crate) fn attend(
        &mut self,
        (spans, at_once): (usize, bool),
        (queries, dim): (usize, usize),
        each: impl Fn(usize, &mut Sums) + Sync,
    ) -> &mut Sums {
        let spans = spans.max(1);
        let held = if at_once { spans } else { spans.min(2) };
        if self.all.len() < held {
            self.all.resize_with(held, Sums::default);
        }
        let each = |(span, sums): (usize, &mut Sums)| {
            sums.clear(queries, dim);
            each(span, sums);
        };
        if at_once && spans > 1 {
            self.all[..spans].par_iter_mut().enumerate().for_each(each);
        }
        let (first, others) = self.all.split_at_mut(1);
        let first = &mut first[0];
        if at_once && spans > 1 {
            others[..spans - 1].iter_mut().for_each(|later| first.join(later));
        } else {
            each((0, first));
            for span in 1..spans {
                each((span, &mut others[0]));
                first.join(&mut others[0]);
            }
        }
        first
    }
}

//! One KV head: where its tokens live, and attention of its query heads over them.

use super::format::{PAGE_TOKENS, Side};
use super::page::ColdStore;
use super::spec::{AUTO_SHARE, CacheSpec, Centring, MEAN_TOKENS};
use super::track::{Queries, Sums, Track, dot};
use crate::error::CacheError;
use rayon::prelude::*;
use tqkv_core::AnyCodec;
use tqkv_simd::Level;
use tqkv_simd::page::{Attention, MAX_HEADS, Parts, attend, merge, rescale};

/// The mean that is taken off the keys before they are encoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mean {
    /// Keys are stored as they are.
    Off,
    /// Waiting for [`MEAN_TOKENS`] keys.
    Learning,
    /// Fixed until the cache is reset.
    Frozen(Vec<f32>),
}

/// Tokens of a span, which one thread attends to. Spans begin at the same positions whatever the number
/// of threads, and are merged in order, so the result does not depend on it.
const SPAN: usize = 16 * PAGE_TOKENS;

/// A run of positions.
type Range = (usize, usize);

/// What the query heads of a group have seen of a span.
struct Seen {
    state: [Attention; MAX_HEADS],
    sums: Sums,
}

#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) keys: Track,
    pub(super) values: Track,
    pub(super) mean: Mean,
    pub(super) hot: usize,
    window: Option<usize>,
    cold_after: Option<usize>,
    centring: Centring,
}

impl Head {
    pub(super) fn new(
        spec: &CacheSpec,
        level: Level,
        codecs: (AnyCodec, AnyCodec),
        cold: Option<(ColdStore, ColdStore)>,
    ) -> Self {
        let (cold_keys, cold_values) = cold.unzip();
        let mut head = Self {
            keys: Track::new(spec, level, Side::Keys, codecs.0, cold_keys),
            values: Track::new(spec, level, Side::Values, codecs.1, cold_values),
            mean: Mean::Off,
            hot: spec.hot,
            window: spec.sliding_window,
            cold_after: spec.cold.as_ref().map(|(after, _)| *after),
            centring: spec.centring,
        };
        head.reset();
        head
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn reset(&mut self) {
        self.keys.clear();
        self.values.clear();
        // Uncompressed keys gain nothing from a mean.
        let plain = self.keys.codec().id() == tqkv_core::CodecId::F16;
        self.mean = if plain || self.centring == Centring::Off { Mean::Off } else { Mean::Learning };
    }

    /// Drops the tokens from position `len` on.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        if len >= self.len() {
            return Ok(());
        }
        let sinks = self.values.sink_capacity();
        let first = self.first_seen(len.saturating_sub(1)).max(sinks);
        if len > sinks && first < self.values.first_live() {
            return Err(CacheError::Evicted { len, first_live: self.values.first_live() });
        }
        self.keys.truncate(len)?;
        self.values.truncate(len)
    }

    /// Appends tokens, `[n, dim]` each, and encodes what leaves the hot window.
    pub(super) fn push(&mut self, keys: &[f32], values: &[f32]) -> Result<(), CacheError> {
        self.keys.push(keys);
        self.values.push(values);
        self.values.encode_all_but(self.hot, None)?;
        if self.mean == Mean::Learning && self.keys.recent().len() >= self.hot + MEAN_TOKENS {
            let (mean, share) = self.keys.mean_of_oldest(MEAN_TOKENS);
            let centre = self.centring == Centring::On || share >= AUTO_SHARE;
            self.mean = if centre { Mean::Frozen(mean) } else { Mean::Off };
        }
        match &self.mean {
            Mean::Learning => Ok(()),
            Mean::Off => self.keys.encode_all_but(self.hot, None),
            Mean::Frozen(mean) => self.keys.encode_all_but(self.hot, Some(mean)),
        }
    }

    /// Lets old tokens go: evicted behind the sliding window, else to the cold tier.
    pub(super) fn age(&mut self) -> Result<(), CacheError> {
        let len = self.len();
        // One page more than the window, so that a rollback by less than a page finds its tokens.
        let first = self.first_seen(len).saturating_sub(PAGE_TOKENS);
        for track in [&mut self.keys, &mut self.values] {
            track.evict_before(first);
            if let Some(after) = self.cold_after {
                track.cool_before(len.saturating_sub(after))?;
            }
        }
        Ok(())
    }

    /// First position after the sinks that the query at `position` sees.
    pub(super) fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The runs of positions that the query at `position` sees: sinks, then the window.
    pub(super) fn seen(&self, position: usize) -> [(usize, usize); 2] {
        let end = position + 1;
        let sinks = self.values.sink_capacity().min(end);
        [(0, sinks), (self.first_seen(position).max(sinks), end)]
    }

    /// The mean, where keys are centred.
    pub(super) fn centre(&self) -> Option<&[f32]> {
        match &self.mean {
            Mean::Frozen(mean) => Some(mean),
            Mean::Off | Mean::Learning => None,
        }
    }

    /// Attends with queries (`[group, dim]`) at the newest position.
    pub(super) fn attend(&self, q: &[f32], out: &mut [f32]) {
        let at_once = MAX_HEADS * self.keys.codec().dim();
        for (q, out) in q.chunks(at_once).zip(out.chunks_mut(at_once)) {
            self.attend_group(q, out);
        }
    }

    /// [`Head::attend`] with at most [`MAX_HEADS`] queries.
    fn attend_group(&self, q: &[f32], out: &mut [f32]) {
        let (plain, offsets) = self.scaled(q);
        let queries = self.keys.queries(plain, offsets);
        let heads = queries.offsets.len();
        let mut seen = match self.spans() {
            1 => self.attend_span(&queries, 0),
            many => {
                let spans: Vec<Seen> =
                    (0..many).into_par_iter().map(|i| self.attend_span(&queries, i)).collect();
                let joined = spans.into_iter().reduce(|mut all, span| {
                    all.join(&span, heads);
                    all
                });
                let Some(joined) = joined else { return };
                joined
            }
        };
        self.finish(&seen.state[..heads], &seen.sums.plain, &mut seen.sums.rotated, out);
    }

    /// What the newest position sees beside the sinks, and the number of the first span that holds some of it.
    fn newest(&self) -> (Range, usize) {
        let [_, (start, end)] = self.seen(self.len().saturating_sub(1));
        let end = end.min(self.len());
        ((start, end), start.saturating_sub(self.values.sink_capacity()) / SPAN)
    }

    /// Into how many spans that is cut, at fixed positions: 1 where there is nothing.
    fn spans(&self) -> usize {
        let ((_, end), first) = self.newest();
        let past = end.saturating_sub(self.values.sink_capacity()).div_ceil(SPAN);
        past.saturating_sub(first).max(1)
    }

    /// Span `i`; the first one takes the few sinks along.
    fn attend_span(&self, queries: &Queries, i: usize) -> Seen {
        let zeros = vec![0.0; queries.plain.len()];
        let mut state = [Attention::EMPTY; MAX_HEADS];
        let heads = &mut state[..queries.offsets.len()];
        let sums = Sums { plain: zeros.clone(), rotated: zeros };
        let mut tokens = Tokens { keys: &self.keys, values: &self.values, queries, sums };
        if i == 0 {
            let sinks = self.values.sink_capacity().min(self.len());
            attend(self.keys.level(), &mut tokens, 0, sinks, heads);
        }
        let ((start, end), first) = self.newest();
        let from = self.values.sink_capacity() + (first + i) * SPAN;
        attend(self.keys.level(), &mut tokens, from.max(start), (from + SPAN).min(end), heads);
        Seen { state, sums: tokens.sums }
    }

    /// Queries (`[n, dim]`) times 1/sqrt(dim), and <q, mu> of each.
    fn scaled(&self, q: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let dim = self.keys.codec().dim();
        let scale = 1.0 / (dim as f32).sqrt();
        let plain: Vec<f32> = q.iter().map(|x| x * scale).collect();
        let offset = |q: &[f32]| self.centre().map_or(0.0, |mean| dot(q, mean));
        let offsets = plain.chunks_exact(dim).map(offset).collect();
        (plain, offsets)
    }

    /// Any number of queries: scaled, in the domain of the warm key blocks, and <q, mu>.
    pub(super) fn prepare(&self, q: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (plain, offsets) = self.scaled(q);
        let mut rotated = vec![0.0; q.len()];
        tqkv_simd::codec::rotate_queries(self.keys.level(), self.keys.codec(), &plain, &mut rotated);
        (plain, rotated, offsets)
    }

    /// Joins the two domains and normalises, for any number of heads.
    pub(super) fn finish(&self, state: &[Attention], plain: &[f32], rotated: &mut [f32], out: &mut [f32]) {
        tqkv_simd::codec::unrotate(self.keys.level(), self.values.codec(), rotated);
        let dim = self.values.codec().dim();
        let sums = plain.chunks_exact(dim).zip(rotated.chunks_exact(dim));
        for ((state, out), (plain, rotated)) in state.iter().zip(out.chunks_exact_mut(dim)).zip(sums) {
            // Nothing seen gives zeros; what is no number stays one that shows.
            let normaliser = if state.sum == 0.0 { 0.0 } else { 1.0 / state.sum };
            for ((o, p), r) in out.iter_mut().zip(plain).zip(rotated) {
                *o = (p + r) * normaliser;
            }
        }
    }

    /// Logits of all held positions for one query, oldest first.
    pub(super) fn scores(&self, q: &[f32]) -> Vec<f32> {
        let (plain, offsets) = self.scaled(q);
        let queries = self.keys.queries(plain, offsets);
        let mut logits = Vec::new();
        for (start, end) in self.seen(self.len().saturating_sub(1)) {
            let end = end.min(self.len());
            let mut from = start;
            while from < end {
                let to = end.min(self.keys.part_end(from));
                let at = logits.len();
                logits.resize(at + to - from, 0.0);
                self.keys.scores(&queries, from, self.keys.lines(to), &mut logits[at..]);
                from = to;
            }
        }
        logits
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let mean = self.centre().map_or(0, size_of_val);
        self.keys.allocated_bytes() + self.values.allocated_bytes() + mean
    }
}

impl Seen {
    /// Takes up what a later span has seen.
    fn join(&mut self, later: &Self, heads: usize) {
        let dim = self.sums.plain.len() / heads;
        let states = self.state.iter_mut().zip(&later.state);
        for (head, (state, other)) in states.take(heads).enumerate() {
            let [keep, add] = merge(state, other);
            let at = head * dim..(head + 1) * dim;
            for (sums, others) in
                [(&mut self.sums.plain, &later.sums.plain), (&mut self.sums.rotated, &later.sums.rotated)]
            {
                for (sum, other) in sums[at.clone()].iter_mut().zip(&others[at.clone()]) {
                    *sum = *sum * keep + other * add;
                }
            }
        }
    }
}

/// The two tracks as what is attended to.
struct Tokens<'a> {
    keys: &'a Track,
    values: &'a Track,
    queries: &'a Queries,
    sums: Sums,
}

impl Parts for Tokens<'_> {
    fn part_end(&self, from: usize) -> usize {
        self.keys.part_end(from).min(self.values.part_end(from))
    }

    fn scores(&self, from: usize, _: usize, logits: &mut [f32]) {
        self.keys.scores(self.queries, from, self.values.lines(from), logits);
    }

    fn rescale(&mut self, factors: &[f32]) {
        let dim = self.keys.codec().dim();
        rescale(factors, dim, &mut self.sums.plain);
        rescale(factors, dim, &mut self.sums.rotated);
    }

    fn accumulate(&mut self, from: usize, to: usize, weights: &[f32]) {
        self.values.accumulate(weights, from, self.keys.lines(to), &mut self.sums);
    }
}

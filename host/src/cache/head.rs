//! One KV head: where its tokens live, and attention of its query heads over them.

use super::level;
use super::page::{ColdStore, PAGE_TOKENS};
use super::prefill;
use super::softmax::OnlineSoftmax;
use super::spec::{AUTO_SHARE, CacheSpec, Centring, MEAN_TOKENS};
use super::track::{Accumulator, Query, Track, dot};
use crate::error::CacheError;
use tqkv_core::AnyCodec;

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

/// Chunks of at least this many queries are worth decoding keys and values once for all.
const PREFILL_FROM: usize = 8;

/// Tokens scored between two updates of the softmax.
const TILE: usize = 128;

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
        codecs: (AnyCodec, AnyCodec),
        cold: Option<(ColdStore, ColdStore)>,
    ) -> Self {
        let (cold_keys, cold_values) = cold.unzip();
        let mut head = Self {
            keys: Track::new(codecs.0, cold_keys, spec.sinks),
            values: Track::new(codecs.1, cold_values, spec.sinks),
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

    /// Appends one token.
    pub(super) fn push(&mut self, key: &[f32], value: &[f32]) -> Result<(), CacheError> {
        self.keys.push(key);
        self.values.push(value);
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

    /// Appends `n` tokens and attends with each one's `group` queries. `q` and `out` are
    /// `[n, group, dim]`, `k` and `v` `[n, dim]`.
    pub(super) fn attend_chunk(
        &mut self,
        group: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let dim = self.keys.codec().dim();
        if k.len() / dim >= PREFILL_FROM {
            prefill::attend(self, group, q, k, v, out)?;
        } else {
            let queries = q.chunks_exact(group * dim).zip(out.chunks_exact_mut(group * dim));
            for ((key, value), (q, out)) in k.chunks_exact(dim).zip(v.chunks_exact(dim)).zip(queries) {
                self.push(key, value)?;
                self.attend(q, out);
            }
        }
        self.age()
    }

    /// Attends with queries (`[group, dim]`) at the newest position.
    pub(super) fn attend(&self, q: &[f32], out: &mut [f32]) {
        let dim = self.keys.codec().dim();
        for (q, out) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
            self.attend_one(q, out);
        }
    }

    fn attend_one(&self, q: &[f32], out: &mut [f32]) {
        let dim = q.len();
        let (plain, rotated, offset) = self.prepare(q);
        let query = Query { plain: &plain, rotated: &rotated, offset };
        let (mut plain_sum, mut rotated_sum) = (vec![0.0; dim], vec![0.0; dim]);
        let (mut softmax, mut logits) = (OnlineSoftmax::EMPTY, [0.0; TILE]);
        for (start, end) in self.seen(self.len().saturating_sub(1)) {
            for from in (start..end.min(self.len())).step_by(TILE) {
                let tile = &mut logits[..TILE.min(end - from)];
                self.keys.scores(&query, from, tile);
                let rescale = softmax.tile(tile);
                for sum in plain_sum.iter_mut().chain(&mut rotated_sum) {
                    *sum *= rescale;
                }
                let mut sums = Accumulator { plain: &mut plain_sum, rotated: &mut rotated_sum };
                self.values.accumulate(tile, from, &mut sums);
            }
        }
        self.finish(&softmax, &plain_sum, &mut rotated_sum, out);
    }

    /// The query times 1/sqrt(dim), the same in the domain of the key blocks, and <query, mu>.
    pub(super) fn prepare(&self, q: &[f32]) -> (Vec<f32>, Vec<f32>, f32) {
        let scale = 1.0 / (q.len() as f32).sqrt();
        let plain: Vec<f32> = q.iter().map(|x| x * scale).collect();
        let mut rotated = vec![0.0; q.len()];
        tqkv_simd::codec::rotate_queries(level(), self.keys.codec(), &plain, &mut rotated);
        let offset = self.centre().map_or(0.0, |mean| dot(&plain, mean));
        (plain, rotated, offset)
    }

    /// Joins the two domains and normalises.
    pub(super) fn finish(
        &self,
        softmax: &OnlineSoftmax,
        plain: &[f32],
        rotated: &mut [f32],
        out: &mut [f32],
    ) {
        tqkv_simd::codec::unrotate(level(), self.values.codec(), rotated);
        let normaliser = softmax.normaliser();
        for ((o, p), r) in out.iter_mut().zip(plain).zip(rotated.iter()) {
            *o = (p + r) * normaliser;
        }
    }

    /// Logits of all held positions for one query, oldest first.
    pub(super) fn scores(&self, q: &[f32]) -> Vec<f32> {
        let (plain, rotated, offset) = self.prepare(q);
        let query = Query { plain: &plain, rotated: &rotated, offset };
        let mut logits = Vec::new();
        for (start, end) in self.seen(self.len().saturating_sub(1)) {
            let end = end.min(self.len());
            let at = logits.len();
            logits.resize(at + end.saturating_sub(start), 0.0);
            self.keys.scores(&query, start, &mut logits[at..]);
        }
        logits
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let mean = self.centre().map_or(0, size_of_val);
        self.keys.allocated_bytes() + self.values.allocated_bytes() + mean
    }
}

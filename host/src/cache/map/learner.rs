//! Learns a map from the first [`LEARN_TOKENS`] keys behind the sinks, and sampled queries.
//!
//! The sampled positions are fixed by the numbers of sinks and of hot tokens. At each of them, one query of
//! each head counts, whichever call brought it. So the map does not depend on how tokens were cut into
//! appends. Where several queries attend at one position, one of them counts whatever their order
//! ([`rank`]). So the map does not depend either on which of several threads came first. Sums are f64 in a
//! fixed order, and the softmax is equal to the bit on every level.
//!
//! A program that appends the first page and never attends gives no queries. Its keys are then coded
//! without a map.

use super::moments::{Moments, Setting, Sums};
use super::order::Order;
use super::pairs::Pairs;
use super::ranges::Maps;
use super::weights::Rule;
use crate::cache::budget::Budget;
use crate::cache::life::{LEARN_TOKENS, LEAST_QUERIES, LEAST_SEEN};
use crate::cache::rows::Rows;
use crate::cache::vectors::Floats;
use crate::error::CacheError;
use crate::rope::Rope;
use half::f16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tqkv_simd::Level;

/// Most positions whose queries are sampled. The first of them has [`LEAST_SEEN`] keys before it.
const SAMPLES: usize = 64;

/// Queries that wait until there are enough keys.
#[derive(Clone, Debug)]
struct Seen {
    /// Bit i is set if the queries of sample i are here.
    samples: u64,
    /// `[group * dim]` per sample, in their order.
    rows: Rows,
}

#[derive(Debug)]
pub(in crate::cache) struct Learner {
    rule: Rule,
    dim: usize,
    sinks: usize,
    hot: usize,
    /// The setting of matrices. `None` for factors per pair.
    setting: Option<Setting>,
    /// Moments of a file. Nothing is learnt then, and no key waits.
    given: Option<Arc<[f32]>>,
    /// True for a code whose widths differ by quarter.
    in_quarters: bool,
    seen: Mutex<Seen>,
}

impl Clone for Learner {
    fn clone(&self) -> Self {
        let (seen, setting) = (Mutex::new(self.seen().clone()), self.setting.clone());
        Self { seen, setting, given: self.given.clone(), ..*self }
    }
}

impl Learner {
    pub(in crate::cache) fn new(
        rule: Rule,
        dim: usize,
        (sinks, hot): (usize, usize),
        in_quarters: bool,
        budget: &Budget,
    ) -> Self {
        // Sums over these rows are this file's own, so any level has the same bits.
        let rows = Rows::new(rule.group * dim, Level::Portable, budget);
        let seen = Mutex::new(Seen { samples: 0, rows });
        Self { rule, dim, sinks, hot, setting: None, given: None, in_quarters, seen }
    }

    /// Learns matrices in place of factors.
    pub(in crate::cache) fn with_rope(mut self, rope: Option<&Rope>) -> Self {
        self.setting = rope.map(|rope| Setting::new(rope, self.dim, self.sinks, self.in_quarters));
        self
    }

    /// Takes moments of a file. None at all if there are no values.
    pub(in crate::cache) fn with_moments(mut self, values: Option<&Arc<[f32]>>) -> Self {
        self.given = values.cloned();
        self
    }

    /// The moments of a file, if the map is not learnt.
    pub(in crate::cache) fn given(&self) -> Option<&Arc<[f32]>> {
        self.given.as_ref()
    }

    /// Number of keys that wait for the map.
    pub(in crate::cache) fn tokens(&self) -> usize {
        if self.given.is_some() { 0 } else { LEARN_TOKENS }
    }

    /// The setting of matrices. `None` for factors per pair.
    pub(in crate::cache) fn setting(&self) -> Option<&Setting> {
        self.setting.as_ref()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of positions from the first sampled one on whose queries come before the map is made.
    fn span(&self) -> usize {
        LEARN_TOKENS + self.hot.min(SAMPLES) - LEAST_SEEN - 1
    }

    /// Distance of sampled positions, so that there are at most [`SAMPLES`].
    fn stride(&self) -> usize {
        self.span().div_ceil(SAMPLES)
    }

    /// Number of sampled positions below `position`.
    fn samples_before(&self, position: usize) -> usize {
        if self.given.is_some() {
            return 0;
        }
        position.saturating_sub(self.sinks + LEAST_SEEN).min(self.span()).div_ceil(self.stride())
    }

    /// One past the last position whose queries may be sampled; 0 if none are.
    pub(in crate::cache) fn end(&self) -> usize {
        if self.given.is_some() { 0 } else { self.sinks + LEAST_SEEN + self.span() + 1 }
    }

    fn position(&self, sample: usize) -> usize {
        self.sinks + LEAST_SEEN + sample * self.stride()
    }

    /// Bytes of the queries that `tokens` tokens bring.
    pub(in crate::cache) fn bytes(&self, tokens: usize) -> usize {
        self.samples_before(tokens) * self.width() * size_of::<u16>()
    }

    /// Makes room for the queries that `tokens` tokens bring.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(in crate::cache) fn make_room(&mut self, tokens: usize) -> Result<(), CacheError> {
        let samples = self.samples_before(tokens);
        self.seen().rows.make_room(samples)
    }

    /// Takes the queries (`[group, dim]`) at a position, if they are sampled. If there are several at the
    /// newest position, those of the least [`rank`] stay, so that calls may come in any order.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(in crate::cache) fn see(&self, position: usize, q: &[f32]) -> Result<(), CacheError> {
        let sample = self.samples_before(position);
        if self.samples_before(position + 1) == sample {
            return Ok(());
        }
        let mut seen = self.seen();
        match seen.samples >> sample {
            0 => {
                seen.rows.push([Floats::from(q)].into_iter())?;
                seen.samples |= 1 << sample;
            }
            1 => {
                let (last, mut given) = (seen.rows.len() - 1, vec![0; q.len()]);
                Floats::from(q).narrow(Level::Portable, &mut given);
                if rank(&given) < rank(seen.rows.runs(last, 1)[0]) {
                    seen.rows.truncate(last);
                    seen.rows.push([Floats::from(q)].into_iter())?;
                }
            }
            // Positions only grow, as a rollback drops its queries.
            _ => {}
        }
        Ok(())
    }

    /// Drops the queries at positions from `len` on.
    pub(in crate::cache) fn truncate(&mut self, len: usize) {
        let kept = self.samples_before(len);
        let mut seen = self.seen();
        if kept < SAMPLES {
            seen.samples &= (1 << kept) - 1;
        }
        let rows = seen.samples.count_ones() as usize;
        if rows < seen.rows.len() {
            seen.rows.truncate(rows);
        }
    }

    /// Drops all queries, and their memory.
    pub(in crate::cache) fn clear(&mut self) {
        let mut seen = self.seen();
        seen.samples = 0;
        seen.rows = seen.rows.emptied();
    }

    pub(in crate::cache) fn allocated_bytes(&self) -> usize {
        self.seen().rows.allocated_bytes()
    }

    /// The queries so far, for a snapshot: a bit per sample, and rows as bits of f16.
    pub(in crate::cache) fn state(&self) -> (u64, Vec<u16>) {
        let seen = self.seen();
        (seen.samples, seen.rows.runs(0, seen.rows.len()).concat())
    }

    /// Takes the queries of a snapshot of `tokens` tokens. Returns false if no cache has them.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(in crate::cache) fn restore(
        &mut self,
        samples: u64,
        rows: &[f16],
        tokens: usize,
    ) -> Result<bool, CacheError> {
        let most = self.samples_before(tokens);
        let fits = most == SAMPLES || samples >> most == 0;
        if !fits || rows.len() != samples.count_ones() as usize * self.width() {
            return Ok(false);
        }
        let width = self.width();
        let mut seen = self.seen();
        seen.rows.push(rows.chunks_exact(width).map(Floats::from))?;
        seen.samples = samples;
        Ok(true)
    }

    /// Values per sampled position.
    pub(in crate::cache) fn width(&self) -> usize {
        self.rule.group * self.dim
    }

    /// Makes the maps from keys `[n, dim]`, the sinks and at least [`LEARN_TOKENS`] more, and the mean that
    /// is subtracted from them. Moments of a file need no keys. `None` if too few queries were seen, or if
    /// they do not decide a map.
    pub(in crate::cache) fn learn(&self, keys: &[f32], mean: Option<&[f32]>) -> Option<Maps> {
        if let (Some(given), Some(setting)) = (&self.given, &self.setting) {
            return Moments::learnt(setting.clone(), mean.is_some(), given.clone())
                .and_then(Maps::of_moments);
        }
        let seen = self.seen();
        if seen.rows.len() < LEAST_QUERIES {
            return None;
        }
        let mut queries = Vec::new();
        let mut row = vec![0.0; self.width()];
        let samples = (0..SAMPLES).filter(|sample| seen.samples >> sample & 1 == 1);
        for (i, sample) in samples.enumerate() {
            seen.rows.read(i, &mut row);
            queries.push((self.position(sample), row.clone()));
        }
        let weights = self.rule.weights((keys, self.dim), self.sinks, LEARN_TOKENS, self.each(&queries))?;
        match &self.setting {
            None => self.learn_pairs(keys, mean, &weights, &queries).map(Maps::of_pairs),
            Some(setting) => {
                let mut sums = Sums::new(setting);
                self.each(&queries).for_each(|(position, query)| sums.add_query(query, position));
                let keys = keys.chunks_exact(self.dim).enumerate().skip(self.sinks);
                keys.zip(&weights).for_each(|((position, key), weight)| sums.add_key(key, position, *weight));
                Maps::of_moments(sums.moments(mean.is_some()))
            }
        }
    }

    /// The sampled queries of all heads, with their positions.
    fn each<'a>(&self, queries: &'a [(usize, Vec<f32>)]) -> impl Iterator<Item = (usize, &'a [f32])> {
        let dim = self.dim;
        queries.iter().flat_map(move |(at, row)| row.chunks_exact(dim).map(move |query| (*at, query)))
    }

    /// Factors per pair, from weighted keys and all queries.
    fn learn_pairs(
        &self,
        keys: &[f32],
        mean: Option<&[f32]>,
        weights: &[f64],
        queries: &[(usize, Vec<f32>)],
    ) -> Option<Pairs> {
        let (mut key_energy, mut query_energy) = (vec![0.0; self.dim], vec![0.0; self.dim]);
        self.each(queries).for_each(|(_, query)| add_energy(&mut query_energy, query, None, 1.0));
        for (key, &weight) in keys.chunks_exact(self.dim).skip(self.sinks).zip(weights) {
            add_energy(&mut key_energy, key, mean, weight);
        }
        Pairs::of_energies(&query_energy, &key_energy, self.in_quarters)
    }

    /// Upper bound of the bytes that pages up to number `last` add to the maps.
    pub(in crate::cache) fn growth(&self, maps: &Maps, last: usize) -> usize {
        match self.setting {
            Some(_) => maps.growth(self.dim, last),
            None if maps.len() == 0 => Pairs::bytes(self.dim) + Order::bytes(self.dim),
            None => 0,
        }
    }

    /// Number of keys behind the sinks that [`Learner::learn`] reads.
    pub(in crate::cache) fn keys(&self) -> usize {
        if self.given.is_some() { 0 } else { LEARN_TOKENS + self.hot.min(SAMPLES) }
    }
}

/// The rank of queries, as bits of f16, among those at one position. It is a hash (FNV-1a). The bits alone
/// would prefer small values of the first coordinate, and maps are made of energies.
fn rank(bits: &[u16]) -> (u64, &[u16]) {
    let add = |hash: u64, &bits: &u16| (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3);
    (bits.iter().fold(0xcbf2_9ce4_8422_2325, add), bits)
}

/// Adds the squares of a row less a mean, times a weight.
fn add_energy(energy: &mut [f64], row: &[f32], mean: Option<&[f32]>, weight: f64) {
    for (i, (energy, &x)) in energy.iter_mut().zip(row).enumerate() {
        let x = f64::from(x) - mean.map_or(0.0, |mean| f64::from(mean[i]));
        *energy += weight * x * x;
    }
}

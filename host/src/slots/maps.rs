//! Factors that keys are multiplied by before they are encoded, and that queries are divided by, one map per
//! KV head (`map=pairs`). They have no position, which rows of the host do not tell.
//!
//! A stream learns them once, when its first rows leave the exact ones. Keys weigh by the attention that they
//! got from queries until then. Without the setting, keys whose energy few pairs hold get factors from themselves.
//! A map stays until the stream is cleared, as means do.

use super::format::SlotFormat;
use super::rule::{QueryMask, QueryRule, add_mask};
use crate::cache::life::{LEAST_QUERIES, LEAST_SEEN, cap};
use crate::cache::map::{PairFactors, add_energy, limit_weights};
use crate::cache::spec::KeyMap;
use std::sync::Arc;
use tqkv_simd::Level;
use tqkv_simd::page::{Attention, soften};

/// Most keys that a map is learnt from.
pub(super) const MOST_TOKENS: usize = 512;

/// The coordinates that RoPE turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeLayout {
    /// Values per head that are turned, from the first on.
    pub dims: usize,
    /// True if the two values of a pair are `dims / 2` apart; false if they are neighbours.
    pub halves: bool,
}

impl Default for RopeLayout {
    /// Value i and value i + dim / 2, as in most models.
    fn default() -> Self {
        Self { dims: 0, halves: true }
    }
}

impl RopeLayout {
    /// The first coordinates of all pairs and then the second ones. Values that are not turned follow the others in
    /// either half. None where the two of a pair are half a head apart.
    pub(super) fn places(self, dim: usize) -> Option<Vec<u16>> {
        let dims = if self.dims <= dim && self.dims.is_multiple_of(2) { self.dims } else { dim };
        let half = dims / 2;
        let first = |pair: usize| if self.halves { pair } else { 2 * pair };
        let step = if self.halves { half } else { 1 };
        let rest = (dim - dims) / 2;
        let firsts = (0..half).map(first).chain(dims..dims + rest);
        let seconds = (0..half).map(|pair| first(pair) + step).chain(dims + rest..dim);
        let places: Option<Vec<u16>> = firsts.chain(seconds).map(|at| u16::try_from(at).ok()).collect();
        places.filter(|places| !places.is_sorted())
    }
}

/// Sums over the queries of one head until its map is made.
#[derive(Clone, Debug, Default)]
pub(super) struct QuerySums {
    queries: usize,
    /// Energy of the queries by coordinate.
    energy: Vec<f64>,
    /// Sum of p (1 - p) over the queries, for the attention p that a slot got.
    weights: Vec<f64>,
}

impl QuerySums {
    /// Takes one query, and its logits of exact rows, whose slots are in the same order. Rows that the query
    /// does not see have none, so `asked` hides them here.
    pub(super) fn take(
        &mut self,
        (rule, asked): (&QueryRule, &QueryMask<'_>),
        query: &[f32],
        (slots, logits): (&[usize], &mut [f32]),
    ) {
        if let Some(soft_cap) = rule.soft_cap {
            cap(logits, soft_cap);
        }
        let mask =
            slots.iter().map(|&slot| asked.mask.get(slot).copied().unwrap_or_default()).collect::<Vec<_>>();
        add_mask(logits, &mask, asked.slope);
        let past = slots.iter().zip(&mut *logits).filter(|(slot, _)| **slot >= rule.slots);
        past.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        if logits.iter().filter(|logit| **logit > f32::NEG_INFINITY).count() < LEAST_SEEN {
            return;
        }
        let mut state = [Attention::EMPTY];
        if let Some(max) = asked.sink {
            state = [Attention { max, sum: 1.0 }];
        }
        soften(Level::Portable, logits, &mut state);
        let sum = f64::from(state[0].sum);
        let energy = query.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        if !(sum.is_finite() && energy.is_finite()) {
            return;
        }
        self.queries += 1;
        self.energy.resize(query.len(), 0.0);
        self.energy.iter_mut().zip(query).for_each(|(energy, x)| *energy += f64::from(*x).powi(2));
        let end = slots.iter().max().map_or(0, |last| last + 1).max(self.weights.len());
        self.weights.resize(end, 0.0);
        for (&slot, p) in slots.iter().zip(logits) {
            let p = f64::from(*p) / sum;
            self.weights[slot] += p * (1.0 - p);
        }
    }

    /// Makes the map from keys (`[n, dim]`) less their mean, which lie in these slots. None if all keys or all
    /// queries are zero: then no code of the keys changes a logit.
    fn learn(
        &self,
        slots: &[usize],
        keys: &[f32],
        turn: Option<&[u16]>,
        in_quarters: bool,
    ) -> Option<PairFactors> {
        let dim = self.energy.len();
        let mut weights: Vec<f64> =
            slots.iter().map(|&slot| self.weights.get(slot).copied().unwrap_or(0.0)).collect();
        // Where each query looked at one key alone, no weight tells keys apart. A code of quarters needs a map.
        if limit_weights(&mut weights).is_none() {
            weights.fill(1.0);
        }
        let mut of_keys = vec![0.0; dim];
        for (key, weight) in keys.chunks_exact(dim).zip(&weights) {
            add_energy(&mut of_keys, key, &[], *weight);
        }
        PairFactors::of_energies(&self.energy, &of_keys, turn, in_quarters)
    }
}

/// The maps of a stream's keys.
#[derive(Clone, Debug)]
pub(super) enum StreamMaps {
    /// Values have none.
    Off,
    /// The keys of the first mean decide, and do not wait for queries.
    OfKeys,
    /// Sums over the queries of each head. Keys wait for them.
    Learning(Vec<QuerySums>),
    /// By head; none where the queries did not decide one.
    Known(Vec<Option<Arc<PairFactors>>>),
}

impl StreamMaps {
    /// Maps to be made for this many heads.
    pub(super) fn new(setting: KeyMap, format: &SlotFormat, heads: usize) -> Self {
        match setting {
            KeyMap::Auto if !format.is_of_quarters() && format.is_rotated() => Self::OfKeys,
            KeyMap::Auto if !format.is_of_quarters() => Self::Off,
            KeyMap::Pairs if !format.is_rotated() => Self::Off,
            KeyMap::Auto | KeyMap::Pairs => Self::Learning(vec![QuerySums::default(); heads]),
            KeyMap::Off => Self::Off,
        }
    }

    /// The maps of heads; those of a stream where no head has one are off.
    pub(super) fn known(maps: Vec<Option<Arc<PairFactors>>>) -> Self {
        if maps.iter().all(Option::is_none) { Self::Off } else { Self::Known(maps) }
    }

    /// The map of head `head`.
    pub(super) fn of(&self, head: usize) -> Option<&PairFactors> {
        match self {
            Self::Known(maps) => maps.get(head)?.as_deref(),
            _ => None,
        }
    }

    /// Brings mapped keys (`[n, dim]`) of a head back.
    pub(super) fn undo(&self, head: usize, keys: &mut [f32]) {
        if let Some(map) = self.of(head) {
            map.undo(keys);
        }
    }

    /// Makes no map from keys alone.
    pub(super) fn drop_of_keys(&mut self) {
        if matches!(self, Self::OfKeys) {
            *self = Self::Off;
        }
    }

    /// True if keys cannot be encoded yet because too few queries came.
    pub(super) fn wait(&self) -> bool {
        match self {
            Self::Learning(heads) => heads.iter().any(|seen| seen.queries < LEAST_QUERIES),
            _ => false,
        }
    }

    /// Learns the maps from the keys of each head (`[slots, dim]`) less their mean.
    pub(super) fn learn(
        &mut self,
        slots: &[usize],
        turn: RopeLayout,
        format: &SlotFormat,
        keys: impl Fn(usize) -> Vec<f32>,
    ) {
        if let Self::Learning(heads) = self {
            let (places, in_quarters) = (turn.places(format.dim), format.is_of_quarters());
            let learnt = |(head, seen): (usize, &QuerySums)| {
                seen.learn(slots, &keys(head), places.as_deref(), in_quarters).map(Arc::new)
            };
            *self = Self::Known(heads.iter().enumerate().map(learnt).collect());
        }
    }

    /// True if both map keys alike.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Off, Self::Off) | (Self::OfKeys, Self::OfKeys) => true,
            (Self::Known(own), Self::Known(others)) => {
                own.len() == others.len()
                    && own.iter().zip(others).all(|maps| match maps {
                        (Some(own), Some(other)) => Arc::ptr_eq(own, other) || own == other,
                        (own, other) => own.is_none() && other.is_none(),
                    })
            }
            _ => false,
        }
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Off | Self::OfKeys => 0,
            Self::Learning(heads) => {
                heads.iter().map(|seen| 8 * (seen.energy.len() + seen.weights.len())).sum()
            }
            Self::Known(maps) => maps.iter().flatten().map(|map| map.allocated_bytes()).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise keys of quarters would be coded without one.
    #[test]
    fn queries_that_look_at_one_key_alone_decide_a_map() {
        const DIM: usize = 64;
        let (slots, energy): (Vec<_>, Vec<_>) = ((0..8).collect(), (1..=DIM).map(|x| x as f64).collect());
        let keys: Vec<f32> = (0..8 * DIM).map(|i| (i % 7) as f32 - 3.0).collect();
        let seen = QuerySums { queries: LEAST_QUERIES, energy, weights: vec![0.0; 8] };
        let map = seen.learn(&slots, &keys, None, true).expect("a map");
        assert!(map.weights().is_some());
        assert!(seen.learn(&slots, &vec![0.0; keys.len()], None, true).is_none(), "keys of zeros");
    }

    #[test]
    fn places_put_the_two_values_of_a_pair_half_a_head_apart() {
        let places = |dims, halves| RopeLayout { dims, halves }.places(8);
        assert_eq!(places(8, true), None);
        assert_eq!(places(8, false), Some(vec![0, 2, 4, 6, 1, 3, 5, 7]));
        assert_eq!(places(4, true), Some(vec![0, 1, 4, 5, 2, 3, 6, 7]));
        assert_eq!(places(4, false), Some(vec![0, 2, 4, 5, 1, 3, 6, 7]));
        // Numbers that no head has are ignored.
        assert_eq!(places(10, true), None);
        assert_eq!(places(3, false), places(8, false));
    }
}

//! The factors of a head, and their use. Which keys and queries they are learnt from is in
//! [`super::learner`], the order of the coordinates in [`super::order`].
//!
//! Where few pairs hold most of the keys' energy, factors of the keys alone are worth having ([`PairFactors::of_keys`]).
//! So it is with keys that have a large bias in a pair that RoPE turns, which no mean takes out.

use super::order::{Order, coordinate};
use crate::cache::life::subtract;
use half::f16;
use tqkv_core::MAX_HEAD_DIM;
use tqkv_core::unstable::trellis::QUARTERS;

/// Least factor; the largest is 1. A key never grows, and a query grows at most 64 times.
const LEAST: f32 = 1.0 / 64.0;
/// Share of the mean energy that is added to each pair.
const RIDGE: f64 = 0.01;
/// Least [`gain`] of factors of keys alone. Queries may look at just the large pairs, so it must be large. Heads
/// of SmolLM2-135M have at most 1.9 and would lose. Two of Gemma 3 270M have 2.6 and 3.0, and errors of their
/// logits fall to a fifth.
const LEAST_GAIN: f64 = 2.5;

/// Factors of the coordinates of keys, with f16 precision, and their order where it is not that of the keys.
#[derive(Debug, PartialEq)]
pub(crate) struct PairFactors {
    factors: Box<[f32]>,
    inverse: Box<[f32]>,
    order: Option<Order>,
}

impl PairFactors {
    /// The map of the energies of queries and of weighted keys, by coordinate. `turn` has the first coordinates of all
    /// pairs and then the second ones; without it, coordinates i and i + n / 2 of n are a pair. `None` if the energies do
    /// not decide a map.
    pub(crate) fn of_energies(
        queries: &[f64],
        keys: &[f64],
        turn: Option<&[u16]>,
        in_quarters: bool,
    ) -> Option<Self> {
        let (of_queries, of_keys) = (of_pairs(queries, turn), of_pairs(keys, turn));
        let mut factors: Vec<f64> =
            of_queries.iter().zip(&of_keys).map(|(q, k)| (q / k).sqrt().sqrt()).collect();
        let mut order = turn.map(Order::of_turn);
        if in_quarters {
            let products: Vec<f64> = of_queries.iter().zip(&of_keys).map(|(q, k)| q * k).collect();
            let (made, sizes) = Order::new(&products, turn)?;
            factors.iter_mut().zip(&sizes).for_each(|(factor, size)| *factor /= size);
            order = Some(made);
        }
        Self::new(&factors.repeat(2), turn, order)
    }

    /// The map of the energies of keys alone, by coordinate. Every query may come, so the factor of a pair is
    /// (1 / K)^(1/4), as for queries of even energy. `None` unless few pairs hold the energy.
    pub(crate) fn of_keys(keys: &[f64], turn: Option<&[u16]>) -> Option<Self> {
        let pairs = of_pairs(keys, turn);
        if gain(&pairs) < LEAST_GAIN {
            return None;
        }
        let factors: Vec<f64> = pairs.iter().map(|k| k.sqrt().sqrt().recip()).collect();
        Self::new(&factors.repeat(2), turn, turn.map(Order::of_turn))
    }

    /// Makes a map of factors in any unit, in the order of `turn`. `None` if one is not a positive number.
    fn new(factors: &[f64], turn: Option<&[u16]>, order: Option<Order>) -> Option<Self> {
        let largest = factors.iter().copied().fold(0.0, f64::max);
        if !factors.iter().all(|x| x.is_finite() && *x > 0.0) {
            return None;
        }
        let mut rounded = vec![0.0; factors.len()];
        for (i, x) in factors.iter().enumerate() {
            rounded[coordinate(turn, i)] = f16::from_f64(x / largest).to_f32().max(LEAST);
        }
        Some(Self::rounded(rounded.into(), order))
    }

    fn rounded(factors: Box<[f32]>, order: Option<Order>) -> Self {
        let inverse = factors.iter().map(|x| 1.0 / x).collect();
        Self { factors, inverse, order }
    }

    /// The map of a snapshot. `None` if no cache makes it.
    pub(crate) fn from_bits(bits: &[u16], order: Option<Order>) -> Option<Self> {
        let factors: Box<[f32]> = bits.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect();
        factors.iter().all(|x| (LEAST..=1.0).contains(x)).then(|| Self::rounded(factors, order))
    }

    /// The factors as bits of f16, which have their exact values.
    pub(crate) fn bits(&self) -> impl Iterator<Item = u16> {
        self.factors.iter().map(|x| f16::from_f32(*x).to_bits())
    }

    /// The order of the coordinates, where it is not that of the keys.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// The weights of the errors of the quarters, for a code of quarters.
    pub(crate) fn weights(&self) -> Option<[f32; QUARTERS]> {
        self.order.as_ref().and_then(Order::weights)
    }

    /// Multiplies keys (`[n, dim]`) by the factors, and puts their coordinates in order.
    pub(crate) fn apply(&self, keys: &mut [f32]) {
        multiply(keys, &self.factors);
        self.arrange(keys, Order::apply);
    }

    /// Divides queries by the factors, and puts their coordinates in order.
    pub(crate) fn apply_to_queries(&self, queries: &mut [f32]) {
        multiply(queries, &self.inverse);
        self.arrange(queries, Order::apply);
    }

    /// Brings mapped keys back to their own coordinates.
    pub(crate) fn undo(&self, keys: &mut [f32]) {
        self.arrange(keys, Order::undo);
        multiply(keys, &self.inverse);
    }

    fn arrange(&self, rows: &mut [f32], each: fn(&Order, &[f32], &mut [f32])) {
        let Some(order) = &self.order else { return };
        let mut copy = [0.0; MAX_HEAD_DIM];
        let dim = self.factors.len();
        for row in rows.chunks_exact_mut(dim) {
            copy[..dim].copy_from_slice(row);
            each(order, &copy[..dim], row);
        }
    }

    /// Bytes of the map.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let order = self.order.as_ref().map_or(0, Order::allocated_bytes);
        Self::bytes(self.factors.len()) + order
    }

    /// Bytes of a map without an order, the counts of its users included.
    pub(in crate::cache) const fn bytes(dim: usize) -> usize {
        size_of::<Self>() + 2 * size_of::<usize>() + 2 * dim * size_of::<f32>()
    }
}

/// Energies of the pairs, with the ridge.
fn of_pairs(energy: &[f64], turn: Option<&[u16]>) -> Vec<f64> {
    let half = energy.len() / 2;
    let both = |pair| energy[coordinate(turn, pair)] + energy[coordinate(turn, pair + half)];
    let mut pairs: Vec<f64> = (0..half).map(both).collect();
    let ridge = RIDGE * pairs.iter().fold(0.0, |sum, pair| sum + pair) / pairs.len() as f64;
    pairs.iter_mut().for_each(|pair| *pair += ridge);
    pairs
}

/// The squared error of logits without a map over that with factors (1 / K)^(1/4), for queries of even energy.
/// It is 1 where all pairs have one energy, and their number where one pair has all.
fn gain(pairs: &[f64]) -> f64 {
    let (sum, roots) = pairs.iter().fold((0.0, 0.0), |(sum, roots), k| (sum + k, roots + k.sqrt()));
    pairs.len() as f64 * sum / (roots * roots)
}

/// Energies of keys (`[n, dim]`) less a mean (empty for none) by coordinate, where each key has the same weight. A
/// few keys that are much longer than others decide nothing.
pub(crate) fn shares(keys: &[f32], dim: usize, mean: &[f32]) -> Vec<f64> {
    let mut shares = vec![0.0; dim];
    for key in keys.chunks_exact(dim) {
        let mut energy = vec![0.0; dim];
        add_energy(&mut energy, key, mean, 1.0);
        let sum = energy.iter().fold(0.0, |sum, x| sum + x);
        if sum > 0.0 {
            shares.iter_mut().zip(&energy).for_each(|(share, x)| *share += x / sum);
        }
    }
    shares
}

/// Adds the squares of a row less a mean (empty for none), times a weight.
pub(crate) fn add_energy(energy: &mut [f64], row: &[f32], mean: &[f32], weight: f64) {
    for (i, (energy, &x)) in energy.iter_mut().zip(row).enumerate() {
        let x = f64::from(x) - mean.get(i).map_or(0.0, |mean| f64::from(*mean));
        *energy += weight * x * x;
    }
}

/// Makes vectors (`[n, dim]`) ready for encoding: less their mean (empty for none), and through their map.
pub(crate) fn prepare(vectors: &mut [f32], mean: &[f32], map: Option<&PairFactors>) {
    subtract(vectors, mean);
    if let Some(map) = map {
        map.apply(vectors);
    }
}

fn multiply(rows: &mut [f32], factors: &[f32]) {
    for row in rows.chunks_exact_mut(factors.len()) {
        row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_and_its_inverse_keep_products() {
        let map = PairFactors::new(&[1.0, 3.0, 0.02, 0.001], None, None).unwrap();
        assert_eq!(map.factors[1], 1.0);
        assert_eq!(map.factors[3], LEAST);
        let (mut key, mut query) = ([1.5, -2.0, 4.0, 0.5], [0.25, 1.0, -3.0, 8.0]);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let before = product(&key, &query);
        map.apply(&mut key);
        map.apply_to_queries(&mut query);
        assert!((product(&key, &query) - before).abs() < 1e-5);
        map.undo(&mut key);
        assert!((key[0] - 1.5).abs() < 1e-6);
    }

    #[test]
    fn only_maps_that_a_cache_makes_are_read() {
        let map = PairFactors::new(&[1.0, 0.7, 0.3, 0.1], None, None).unwrap();
        let bits: Vec<u16> = map.bits().collect();
        assert_eq!(PairFactors::from_bits(&bits, None).unwrap().factors, map.factors);
        for bad in [0.0, -0.5, 1.5, f32::NAN, f32::INFINITY, LEAST / 2.0] {
            let bits = [bits[0], bits[1], f16::from_f32(bad).to_bits(), bits[3]];
            assert!(PairFactors::from_bits(&bits, None).is_none(), "{bad}");
        }
        assert!(PairFactors::new(&[1.0, f64::NAN], None, None).is_none());
        assert!(PairFactors::new(&[0.0, 0.0], None, None).is_none());
    }
}

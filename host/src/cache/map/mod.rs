//! A map of the keys of one KV head: a factor per RoPE pair, by which keys are multiplied before encoding and
//! queries are divided.
//!
//! Logits of exact keys stay as they are. The error of a coded key is spread evenly over its coordinates, so
//! the factors move it from pairs that queries amplify to pairs that they do not. The best factor of a pair
//! is the fourth root of (energy of queries / energy of keys). Here keys weigh by the attention that they
//! get, because a block's error grows with its own length.
//!
//! Both coordinates of a pair have one factor, and the rotation of RoPE keeps their energy. A map therefore
//! holds at every position. It is learnt once, from the first page ([`learner`]).
//!
//! Values gain nothing from a map, and latent vectors are values, so both have none. Means are in
//! [`super::means`]; pages keep the map beside their blocks ([`super::page`]).

mod learner;

pub(super) use learner::{LEARN_TOKENS, Learner, Rule};

use half::f16;
use std::sync::Arc;

/// Least factor; the largest is 1. A key never grows, and a query grows at most 64 times.
const LEAST: f32 = 1.0 / 64.0;

/// Factors of the coordinates of keys, with f16 precision.
#[derive(Debug)]
pub(super) struct Map {
    factors: Box<[f32]>,
    inverse: Box<[f32]>,
}

impl Map {
    /// Makes a map of factors in any unit. `None` if one is not a positive number.
    fn new(factors: &[f64]) -> Option<Self> {
        let largest = factors.iter().copied().fold(0.0, f64::max);
        if !factors.iter().all(|x| x.is_finite() && *x > 0.0) {
            return None;
        }
        let bits = factors.iter().map(|x| f16::from_f64(x / largest).to_f32().max(LEAST));
        Some(Self::rounded(bits.collect()))
    }

    fn rounded(factors: Box<[f32]>) -> Self {
        let inverse = factors.iter().map(|x| 1.0 / x).collect();
        Self { factors, inverse }
    }

    /// The map of a snapshot. `None` if no cache makes it.
    pub(super) fn from_bits(bits: &[u16]) -> Option<Self> {
        let factors: Box<[f32]> = bits.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect();
        factors.iter().all(|x| (LEAST..=1.0).contains(x)).then(|| Self::rounded(factors))
    }

    /// The factors as bits of f16, which have their exact values.
    pub(super) fn bits(&self) -> impl Iterator<Item = u16> {
        self.factors.iter().map(|x| f16::from_f32(*x).to_bits())
    }

    /// Multiplies keys (`[n, dim]`) by the factors.
    pub(super) fn apply(&self, keys: &mut [f32]) {
        multiply(keys, &self.factors);
    }

    /// Divides queries, or mapped keys, by the factors.
    pub(super) fn undo(&self, rows: &mut [f32]) {
        multiply(rows, &self.inverse);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        Self::bytes(self.factors.len())
    }

    /// Bytes of a map, the counts of its users included.
    pub(super) const fn bytes(dim: usize) -> usize {
        size_of::<Self>() + 2 * size_of::<usize>() + 2 * dim * size_of::<f32>()
    }
}

/// A map that copies share.
pub(super) type Shared = Arc<Map>;

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
        let map = Map::new(&[1.0, 3.0, 0.02, 0.001]).unwrap();
        assert_eq!(map.factors[1], 1.0);
        assert_eq!(map.factors[3], LEAST);
        let (mut key, mut query) = ([1.5, -2.0, 4.0, 0.5], [0.25, 1.0, -3.0, 8.0]);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let before = product(&key, &query);
        map.apply(&mut key);
        map.undo(&mut query);
        assert!((product(&key, &query) - before).abs() < 1e-5);
        map.undo(&mut key);
        assert!((key[0] - 1.5).abs() < 1e-6);
    }

    #[test]
    fn only_maps_that_a_cache_makes_are_read() {
        let map = Map::new(&[1.0, 0.7, 0.3, 0.1]).unwrap();
        let bits: Vec<u16> = map.bits().collect();
        assert_eq!(Map::from_bits(&bits).unwrap().factors, map.factors);
        for bad in [0.0, -0.5, 1.5, f32::NAN, f32::INFINITY, LEAST / 2.0] {
            let bits = [bits[0], bits[1], f16::from_f32(bad).to_bits(), bits[3]];
            assert!(Map::from_bits(&bits).is_none(), "{bad}");
        }
        assert!(Map::new(&[1.0, f64::NAN]).is_none());
        assert!(Map::new(&[0.0, 0.0]).is_none());
    }
}

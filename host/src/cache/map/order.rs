//! The order of coordinates in mapped keys, and the weights of the errors of the quarters.
//!
//! For a code of quarters, pairs with the largest product of the energies of queries and keys come first, because their
//! errors move logits most. Both halves of a pair are neighbours. Factors then give every quarter the same energy of
//! keys, so the levels of the code fit all of them. The weights are the costs of errors in the quarters.
//!
//! The error of a code of one width is even over coordinates ([`super::pairs`]), so its keys stay in their own order,
//! or in that of their pairs where RoPE does not turn coordinates that are half a head apart.

use tqkv_core::unstable::trellis::QUARTERS;

/// The coordinate at each place of a mapped key, and the weights of the quarters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    coordinates: Box<[u16]>,
    /// Weights of squared errors; the largest is 1. None for a code of one width.
    weights: Option<[f32; QUARTERS]>,
}

/// The coordinate that is value `i` of the pairs, the first values of all pairs before the second ones.
pub(super) fn coordinate(turn: Option<&[u16]>, i: usize) -> usize {
    turn.map_or(i, |turn| turn[i].into())
}

impl Order {
    /// The order of pairs for a code of one width.
    pub(super) fn of_turn(turn: &[u16]) -> Self {
        Self { coordinates: turn.into(), weights: None }
    }

    /// Orders pairs by the products of the energies of queries and keys. Returns the order, and for each pair
    /// the root mean square of the mapped keys of its quarter.
    ///
    /// `None` if a product is not a positive number, or if the number of pairs is no multiple of four.
    pub(super) fn new(products: &[f64], turn: Option<&[u16]>) -> Option<(Self, Vec<f64>)> {
        let is_whole = products.len().is_multiple_of(QUARTERS) && !products.is_empty();
        if !is_whole || !products.iter().all(|x| x.is_finite() && *x > 0.0) {
            return None;
        }
        let mut pairs: Vec<u16> = (0..u16::try_from(products.len()).ok()?).collect();
        // The sort is stable: of equal pairs, the first comes first.
        pairs.sort_by(|&a, &b| products[usize::from(b)].total_cmp(&products[usize::from(a)]));
        let (mut energies, mut sizes) = ([0.0; QUARTERS], vec![0.0; products.len()]);
        for (energy, quarter) in energies.iter_mut().zip(pairs.chunks_exact(products.len() / QUARTERS)) {
            let sum = quarter.iter().fold(0.0, |sum, &pair| sum + products[usize::from(pair)].sqrt());
            *energy = sum / quarter.len() as f64;
            quarter.iter().for_each(|&pair| sizes[usize::from(pair)] = energy.sqrt());
        }
        let largest = energies.iter().copied().fold(0.0, f64::max);
        let weights = energies.map(|energy| (energy / largest).powi(2) as f32);
        Some((Self::from_parts(&pairs, turn, weights)?, sizes))
    }

    /// The order of a snapshot. `None` if no cache makes it.
    pub(in crate::cache) fn from_parts(
        pairs: &[u16],
        turn: Option<&[u16]>,
        weights: [f32; QUARTERS],
    ) -> Option<Self> {
        let mut seen = vec![false; pairs.len()];
        for &pair in pairs {
            *seen.get_mut(usize::from(pair))? = true;
        }
        let fits = weights.iter().all(|weight| *weight > 0.0 && *weight <= 1.0);
        let both =
            |pair: &u16| [0, pairs.len()].map(|half| coordinate(turn, usize::from(*pair) + half) as u16);
        let coordinates = || pairs.iter().flat_map(both).collect();
        (fits && seen.iter().all(|seen| *seen))
            .then(|| Self { coordinates: coordinates(), weights: Some(weights) })
    }

    /// The pairs by their place, of coordinates that are half a head apart: pair p is coordinates p and p + dim / 2.
    pub(in crate::cache) fn pairs(&self) -> Vec<u16> {
        self.coordinates.iter().step_by(2).copied().collect()
    }

    /// The coordinates by their place.
    pub(crate) fn coordinates(&self) -> &[u16] {
        &self.coordinates
    }

    /// The order of a saved state. `None` if the coordinates are not each there once, or a weight is none that a map has.
    pub(crate) fn from_coordinates(coordinates: &[u16], weights: Option<[f32; QUARTERS]>) -> Option<Self> {
        let mut seen = vec![false; coordinates.len()];
        for &at in coordinates {
            *seen.get_mut(usize::from(at))? = true;
        }
        let fits = weights.iter().flatten().all(|weight| *weight > 0.0 && *weight <= 1.0);
        (fits && seen.iter().all(|seen| *seen)).then(|| Self { coordinates: coordinates.into(), weights })
    }

    pub(crate) fn weights(&self) -> Option<[f32; QUARTERS]> {
        self.weights
    }

    /// Writes a row in order.
    pub(super) fn apply(&self, row: &[f32], ordered: &mut [f32]) {
        ordered.iter_mut().zip(&self.coordinates).for_each(|(x, &at)| *x = row[usize::from(at)]);
    }

    /// Writes a row in the order of its own coordinates.
    pub(super) fn undo(&self, ordered: &[f32], row: &mut [f32]) {
        ordered.iter().zip(&self.coordinates).for_each(|(x, &at)| row[usize::from(at)] = *x);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        Self::bytes(self.coordinates.len())
    }

    /// Bytes of an order of `dim` coordinates, without the struct.
    pub(in crate::cache) const fn bytes(dim: usize) -> usize {
        dim * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_ordered_by_their_products_and_quarters_have_their_mean() {
        let (order, sizes) = Order::new(&[1.0, 81.0, 1.0, 16.0], None).unwrap();
        assert_eq!(order.pairs(), [1, 3, 0, 2]);
        assert_eq!(sizes, [1.0, 3.0, 1.0, 2.0]);
        let ninth = (1.0f64 / 9.0).powi(2) as f32;
        assert_eq!(order.weights(), Some([1.0, (4.0f64 / 9.0).powi(2) as f32, ninth, ninth]));
        let row = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let (mut ordered, mut back) = ([0.0; 8], [0.0; 8]);
        order.apply(&row, &mut ordered);
        assert_eq!(ordered, [1.0, 5.0, 3.0, 7.0, 0.0, 4.0, 2.0, 6.0]);
        order.undo(&ordered, &mut back);
        assert_eq!(back, row);
        // Neighbours that RoPE turns together stay neighbours.
        let turn = [0, 2, 4, 6, 1, 3, 5, 7];
        let (order, _) = Order::new(&[1.0, 81.0, 1.0, 16.0], Some(&turn)).unwrap();
        order.apply(&row, &mut ordered);
        assert_eq!(ordered, [2.0, 3.0, 6.0, 7.0, 0.0, 1.0, 4.0, 5.0]);
        order.undo(&ordered, &mut back);
        assert_eq!(back, row);
    }

    #[test]
    fn only_orders_that_a_cache_makes_are_read() {
        let good = [1.0, 0.5, 0.25, 0.125];
        assert!(Order::from_parts(&[3, 0, 1, 2], None, good).is_some());
        for bad in [[3, 0, 1, 1], [4, 0, 1, 2]] {
            assert!(Order::from_parts(&bad, None, good).is_none(), "{bad:?}");
        }
        for bad in [0.0, -1.0, 1.5, f32::NAN, f32::INFINITY] {
            assert!(Order::from_parts(&[3, 0, 1, 2], None, [1.0, bad, 0.5, 0.5]).is_none(), "{bad}");
        }
        for bad in [&[1.0, 2.0, 3.0][..], &[], &[1.0, 0.0, 1.0, 1.0], &[1.0, f64::NAN, 1.0, 1.0]] {
            assert!(Order::new(bad, None).is_none(), "{bad:?}");
        }
    }
}

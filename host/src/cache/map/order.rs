//! The order of coordinates for codes of quarters, and the weights of the errors of the quarters.
//!
//! Pairs with the largest product of the energies of queries and keys come first, because their errors move
//! logits most. Both halves of a pair are neighbours. Factors then give every quarter the same energy of
//! keys, so the levels of the code fit all of them. The weights are the costs of errors in the quarters.
//!
//! A code of one width has no order: its error is even over coordinates ([`super::pairs`]).

use tqkv_core::unstable::trellis::QUARTERS;

/// Places of the pairs, and the weights of the quarters.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cache) struct Order {
    /// Pairs by their place: pair p is coordinates p and p + dim / 2.
    pairs: Box<[u16]>,
    /// Weights of squared errors; the largest is 1.
    weights: [f32; QUARTERS],
}

impl Order {
    /// Orders pairs by the products of the energies of queries and keys. Returns the order, and for each pair
    /// the root mean square of the mapped keys of its quarter.
    ///
    /// `None` if a product is not a positive number, or if the pairs are no whole quarters.
    pub(super) fn new(products: &[f64]) -> Option<(Self, Vec<f64>)> {
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
        Some((Self::from_parts(&pairs, weights)?, sizes))
    }

    /// The order of a snapshot. `None` if no cache makes it.
    pub(in crate::cache) fn from_parts(pairs: &[u16], weights: [f32; QUARTERS]) -> Option<Self> {
        let mut seen = vec![false; pairs.len()];
        for &pair in pairs {
            *seen.get_mut(usize::from(pair))? = true;
        }
        let fits = weights.iter().all(|weight| *weight > 0.0 && *weight <= 1.0);
        (fits && seen.iter().all(|seen| *seen)).then(|| Self { pairs: pairs.into(), weights })
    }

    pub(in crate::cache) fn pairs(&self) -> &[u16] {
        &self.pairs
    }

    pub(in crate::cache) fn weights(&self) -> [f32; QUARTERS] {
        self.weights
    }

    /// Writes a row in order.
    pub(super) fn apply(&self, row: &[f32], ordered: &mut [f32]) {
        let half = self.pairs.len();
        for (two, &pair) in ordered.as_chunks_mut::<2>().0.iter_mut().zip(&self.pairs) {
            let pair = usize::from(pair);
            *two = [row[pair], row[pair + half]];
        }
    }

    /// Writes a row in the order of its own coordinates.
    pub(super) fn undo(&self, ordered: &[f32], row: &mut [f32]) {
        let half = self.pairs.len();
        for (two, &pair) in ordered.as_chunks::<2>().0.iter().zip(&self.pairs) {
            let pair = usize::from(pair);
            [row[pair], row[pair + half]] = *two;
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        Self::bytes(2 * self.pairs.len())
    }

    /// Bytes of an order of `dim` coordinates, without the struct.
    pub(in crate::cache) const fn bytes(dim: usize) -> usize {
        dim / 2 * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_ordered_by_their_products_and_quarters_have_their_mean() {
        let (order, sizes) = Order::new(&[1.0, 81.0, 1.0, 16.0]).unwrap();
        assert_eq!(order.pairs(), [1, 3, 0, 2]);
        assert_eq!(sizes, [1.0, 3.0, 1.0, 2.0]);
        let ninth = (1.0f64 / 9.0).powi(2) as f32;
        assert_eq!(order.weights(), [1.0, (4.0f64 / 9.0).powi(2) as f32, ninth, ninth]);
        let row = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let (mut ordered, mut back) = ([0.0; 8], [0.0; 8]);
        order.apply(&row, &mut ordered);
        assert_eq!(ordered, [1.0, 5.0, 3.0, 7.0, 0.0, 4.0, 2.0, 6.0]);
        order.undo(&ordered, &mut back);
        assert_eq!(back, row);
    }

    #[test]
    fn only_orders_that_a_cache_makes_are_read() {
        let good = [1.0, 0.5, 0.25, 0.125];
        assert!(Order::from_parts(&[3, 0, 1, 2], good).is_some());
        for bad in [[3, 0, 1, 1], [4, 0, 1, 2]] {
            assert!(Order::from_parts(&bad, good).is_none(), "{bad:?}");
        }
        for bad in [0.0, -1.0, 1.5, f32::NAN, f32::INFINITY] {
            assert!(Order::from_parts(&[3, 0, 1, 2], [1.0, bad, 0.5, 0.5]).is_none(), "{bad}");
        }
        for bad in [&[1.0, 2.0, 3.0][..], &[], &[1.0, 0.0, 1.0, 1.0], &[1.0, f64::NAN, 1.0, 1.0]] {
            assert!(Order::new(bad).is_none(), "{bad:?}");
        }
    }
}

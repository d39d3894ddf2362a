//! Moments of the keys and queries of one KV head before RoPE, and their means over a range of positions.
//!
//! RoPE turns the pairs of a vector at different speeds. A covariance of keys therefore belongs to a range of
//! positions. Before RoPE there is one for all positions, and its mean over a range has a closed form. Each
//! product of two pairs is multiplied by two means of turns: by the sum of their angles, and by the
//! difference.
//!
//! Sums are f64 in a fixed order, and angles are those of `libm`, so the bits are equal on every machine.

use crate::cache::kept_moments::{Exact, KeptMoments, triangle};
use crate::rope::Rope;
use std::ops::Range;
use std::sync::Arc;

/// The facts that maps depend on besides moments.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Setting {
    /// Coordinates that turn together, and the others two by two.
    pairs: Arc<[Pair]>,
    /// Number of coordinates.
    pub(in crate::cache) dim: usize,
    /// Position of the first encoded token.
    pub(in crate::cache) first: usize,
    /// True for a code whose widths differ by quarter.
    pub(in crate::cache) in_quarters: bool,
}

/// Two coordinates, and the radians per position by which RoPE turns them.
#[derive(Clone, Copy, Debug)]
struct Pair {
    places: [usize; 2],
    speed: f64,
    is_turned: bool,
}

impl Setting {
    /// The rotated coordinates of `rope` must lie within `dim`.
    pub(in crate::cache) fn new(rope: &Rope, dim: usize, first: usize, in_quarters: bool) -> Self {
        let turned = rope.inv_freq.iter().enumerate().map(|(i, &speed)| {
            let (a, b) = rope.pair(i);
            Pair { places: [a, b], speed, is_turned: true }
        });
        let rotated = rope.first..rope.first + 2 * rope.inv_freq.len();
        let rest: Vec<usize> = (0..dim).filter(|i| !rotated.contains(i)).collect();
        let rest = rest.as_chunks().0.iter().map(|&places| Pair { places, speed: 0.0, is_turned: false });
        Self { pairs: turned.chain(rest).collect(), dim, first, in_quarters }
    }

    /// A vector at a position, before RoPE.
    fn undone(&self, row: &[f32], position: usize) -> Vec<f64> {
        let mut undone: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        for pair in self.pairs.iter().filter(|pair| pair.is_turned) {
            let ([a, b], (sin, cos)) = (pair.places, libm::sincos(position as f64 * pair.speed));
            let (x, y) = (undone[a], undone[b]);
            (undone[a], undone[b]) = (x * cos + y * sin, y * cos - x * sin);
        }
        undone
    }
}

/// Sums of a head's keys and queries.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    setting: Setting,
    /// Sums of keys, and of keys times their weight.
    keys: [Vec<f64>; 2],
    /// Products of keys times their weight, and of queries: the lower triangle, row by row.
    products: [Vec<f64>; 2],
    counts: [f64; 2],
}

impl Sums {
    pub(super) fn new(setting: &Setting) -> Self {
        let (dim, products) = (setting.dim, triangle(setting.dim));
        Self {
            setting: setting.clone(),
            keys: [vec![0.0; dim], vec![0.0; dim]],
            products: [vec![0.0; products], vec![0.0; products]],
            counts: [0.0; 2],
        }
    }

    pub(super) fn add_key(&mut self, key: &[f32], position: usize, weight: f64) {
        let key = self.setting.undone(key, position);
        for (sums, weight) in self.keys.iter_mut().zip([1.0, weight]) {
            sums.iter_mut().zip(&key).for_each(|(sum, x)| *sum += weight * x);
        }
        add_products(&mut self.products[0], &key, weight);
        self.counts[0] += 1.0;
    }

    pub(super) fn add_query(&mut self, query: &[f32], position: usize) {
        let query = self.setting.undone(query, position);
        add_products(&mut self.products[1], &query, 1.0);
        self.counts[1] += 1.0;
    }

    /// The moments. `is_centred` says that keys are encoded less their mean. `None` as [`Sums::kept`].
    pub(super) fn moments(self, is_centred: bool) -> Option<Moments> {
        Moments::learnt(self.setting.clone(), is_centred, Arc::new(self.kept()))
    }

    /// The moments as a cache keeps them. None of them if no key or no query was added.
    pub(super) fn kept(&self) -> KeptMoments {
        if self.counts.contains(&0.0) { KeptMoments::none() } else { KeptMoments::new(&self.exact()) }
    }

    /// The covariances of keys and queries at positions `range`, without rounding.
    #[cfg(test)]
    pub(super) fn covariances(&self, is_centred: bool, range: Range<usize>) -> Covariances {
        self.setting.covariances(&self.exact(), is_centred, range.clone(), range)
    }

    fn exact(&self) -> Exact {
        let [keys, queries] = self.counts;
        let divided = |sums: &[f64], count: f64| sums.iter().map(|x| x / count).collect();
        Exact {
            mean: divided(&self.keys[0], keys),
            weighted: divided(&self.keys[1], keys),
            products: [divided(&self.products[0], keys), divided(&self.products[1], queries)],
        }
    }
}

fn add_products(products: &mut [f64], row: &[f64], weight: f64) {
    let mut at = 0;
    for (i, x) in row.iter().enumerate() {
        let x = weight * x;
        products[at..=at + i].iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
        at += i + 1;
    }
}

/// Moments of the first keys and queries, or of those of a text, from which every map of the head is made.
#[derive(Debug)]
pub(in crate::cache) struct Moments {
    setting: Setting,
    is_centred: bool,
    kept: Arc<KeptMoments>,
}

/// Covariances of the keys and the queries of a range, `[dim, dim]`.
pub(super) struct Covariances {
    pub(super) keys: Vec<f64>,
    pub(super) queries: Vec<f64>,
}

impl Moments {
    /// The moments of a snapshot or a file. `None` if they have another number of coordinates, or none.
    pub(in crate::cache) fn learnt(
        setting: Setting,
        is_centred: bool,
        kept: Arc<KeptMoments>,
    ) -> Option<Self> {
        (kept.dim() == setting.dim).then_some(Self { setting, is_centred, kept })
    }

    pub(in crate::cache) fn kept(&self) -> &KeptMoments {
        &self.kept
    }

    pub(super) fn setting(&self) -> &Setting {
        &self.setting
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        Self::bytes(self.setting.dim)
    }

    /// Bytes of the moments of a head, the counts of their users included.
    pub(super) const fn bytes(dim: usize) -> usize {
        size_of::<Self>() + 2 * size_of::<usize>() + size_of::<KeptMoments>() + KeptMoments::bytes(dim)
    }

    /// The covariances of keys less their mean at positions `keys`, and of queries at positions `queries`.
    pub(super) fn covariances(&self, keys: Range<usize>, queries: Range<usize>) -> Covariances {
        self.setting.covariances(&self.kept.exact(), self.is_centred, keys, queries)
    }

    /// Moves a share of a covariance to the mean energies of the pairs, and adds a share of the mean energy
    /// to all coordinates. RoPE changes neither.
    pub(super) fn shrink(&self, covariance: &mut [f64], share: f64, ridge: f64) {
        let dim = self.setting.dim;
        let mut energies: Vec<f64> = (0..dim).map(|i| covariance[i * (dim + 1)]).collect();
        let ridge = ridge * energies.iter().fold(0.0, |sum, x| sum + x) / dim as f64;
        for pair in self.setting.pairs.iter().filter(|pair| pair.is_turned) {
            let [a, b] = pair.places;
            let mean = (energies[a] + energies[b]) / 2.0;
            (energies[a], energies[b]) = (mean, mean);
        }
        covariance.iter_mut().for_each(|x| *x *= 1.0 - share);
        for (i, energy) in energies.iter().enumerate() {
            covariance[i * (dim + 1)] += share * energy + ridge;
        }
    }
}

impl Setting {
    /// The covariances of keys, less their mean if they are centred, and of queries, at these positions.
    fn covariances(
        &self,
        exact: &Exact,
        is_centred: bool,
        keys: Range<usize>,
        queries: Range<usize>,
    ) -> Covariances {
        let [of_keys, of_queries] = &exact.products;
        let mut covariance = self.mean_products(of_keys, &keys);
        if is_centred {
            let (mean, weighted) = (self.mean_of(&exact.mean, &keys), self.mean_of(&exact.weighted, &keys));
            for (i, row) in covariance.chunks_exact_mut(self.dim).enumerate() {
                for (j, x) in row.iter_mut().enumerate() {
                    *x += mean[i] * mean[j] - weighted[i] * mean[j] - mean[i] * weighted[j];
                }
            }
        }
        Covariances { keys: covariance, queries: self.mean_products(of_queries, &queries) }
    }

    /// Mean of a vector that is turned to every position of a range.
    fn mean_of(&self, row: &[f64], range: &Range<usize>) -> Vec<f64> {
        let mut mean = row.to_vec();
        for pair in &*self.pairs {
            let ([a, b], (cos, sin)) = (pair.places, mean_turn(pair.speed, range));
            let (x, y) = (mean[a], mean[b]);
            (mean[a], mean[b]) = (x * cos - y * sin, y * cos + x * sin);
        }
        mean
    }

    /// Mean of the products of vectors that are turned to every position of a range: `[dim, dim]`.
    fn mean_products(&self, products: &[f64], range: &Range<usize>) -> Vec<f64> {
        let dim = self.dim;
        let product = |i: usize, j: usize| products[triangle(i.max(j)) + i.min(j)];
        let mut mean = vec![0.0; dim * dim];
        for (n, p) in self.pairs.iter().enumerate() {
            for q in &self.pairs[..=n] {
                let ([a, b], [c, d]) = (p.places, q.places);
                let (ac, bd, bc, ad) = (product(a, c), product(b, d), product(b, c), product(a, d));
                // The products of p and the conjugate of q, and of p and q, as complex numbers.
                let (x, y) = turned((ac + bd, bc - ad), mean_turn(p.speed - q.speed, range));
                let (u, v) = turned((ac - bd, bc + ad), mean_turn(p.speed + q.speed, range));
                for (i, j, value) in [(a, c, x + u), (b, d, x - u), (b, c, v + y), (a, d, v - y)] {
                    mean[i * dim + j] = value / 2.0;
                    mean[j * dim + i] = value / 2.0;
                }
            }
        }
        mean
    }
}

fn turned((x, y): (f64, f64), (cos, sin): (f64, f64)) -> (f64, f64) {
    (x * cos - y * sin, y * cos + x * sin)
}

/// Mean of the turns of all positions of a range, at a speed in radians per position: cosine, sine.
fn mean_turn(speed: f64, range: &Range<usize>) -> (f64, f64) {
    let count = range.len() as f64;
    let middle = range.start as f64 + (count - 1.0) / 2.0;
    let (sin, cos) = libm::sincos(speed * middle);
    let divisor = count * libm::sin(speed / 2.0);
    // Below, the turns of all positions are the same.
    let size = if divisor.abs() < 1e-12 { 1.0 } else { libm::sin(count * speed / 2.0) / divisor };
    (size * cos, size * sin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::Pairs;

    /// Rows whose coordinates depend on each other.
    pub(in crate::cache::map) fn rows(count: usize, dim: usize, salt: usize) -> Vec<Vec<f32>> {
        let wave = |i: usize, j: usize| ((i * 37 + j * 11 + salt * 101) as f32 * 0.7).sin() + 0.3;
        let row = |i: usize| {
            let mut row: Vec<f32> = (0..dim).map(|j| wave(i, j) / (1 + j % 5) as f32).collect();
            (1..dim).for_each(|j| row[j] += 0.8 * row[j - 1]);
            row
        };
        (0..count).map(row).collect()
    }

    /// A row at a position, after RoPE.
    fn at(setting: &Setting, row: &[f64], position: usize) -> Vec<f64> {
        let mut row = row.to_vec();
        for pair in &*setting.pairs {
            let ([a, b], angle) = (pair.places, position as f64 * pair.speed);
            let (x, y) = (row[a], row[b]);
            row[a] = x * angle.cos() - y * angle.sin();
            row[b] = y * angle.cos() + x * angle.sin();
        }
        row
    }

    #[test]
    fn covariances_are_the_means_over_every_position_of_the_range() {
        for (rope, dim) in [
            (Rope::new(0, Pairs::Half, vec![1.0, 0.1, 0.01, 0.0]), 8),
            (Rope::new(0, Pairs::Interleaved, vec![0.7, 0.002]), 8),
            (Rope::new(2, Pairs::Half, vec![0.5]), 6),
            (Rope::new(0, Pairs::Half, vec![]), 4),
        ] {
            let setting = Setting::new(&rope, dim, 0, false);
            let (keys, queries) = (rows(20, dim, 1), rows(20, dim, 2));
            let mut sums = Sums::new(&setting);
            let weight = |i: usize| 0.5 + (i % 3) as f64 / 2.0;
            let all = 0..keys.len();
            let mean_weight = all.clone().map(weight).sum::<f64>() / keys.len() as f64;
            for (i, (key, query)) in keys.iter().zip(&queries).enumerate() {
                sums.add_key(key, i + 5, weight(i) / mean_weight);
                sums.add_query(query, i + 9);
            }
            for is_centred in [false, true] {
                let (range, other) = (40..140, 700..711);
                let got = setting.covariances(&sums.exact(), is_centred, range.clone(), other.clone());
                let undone = |rows: &[Vec<f32>], first: usize| -> Vec<Vec<f64>> {
                    rows.iter().enumerate().map(|(i, row)| setting.undone(row, first + i)).collect()
                };
                let (keys, queries) = (undone(&keys, 5), undone(&queries, 9));
                let mut mean = vec![0.0; dim];
                let places = || range.clone().flat_map(|p| all.clone().map(move |i| (p, i)));
                let count = places().count() as f64;
                for (p, i) in places().filter(|_| is_centred) {
                    let key = at(&setting, &keys[i], p);
                    mean.iter_mut().zip(key).for_each(|(m, x)| *m += x / count);
                }
                let mut want = [vec![0.0; dim * dim], vec![0.0; dim * dim]];
                for (p, i) in places() {
                    let key: Vec<f64> =
                        at(&setting, &keys[i], p).iter().zip(&mean).map(|(x, m)| x - m).collect();
                    for (n, x) in want[0].iter_mut().enumerate() {
                        *x += weight(i) / mean_weight * key[n / dim] * key[n % dim] / count;
                    }
                }
                for (p, i) in other.clone().flat_map(|p| all.clone().map(move |i| (p, i))) {
                    let query = at(&setting, &queries[i], p);
                    for (n, x) in want[1].iter_mut().enumerate() {
                        *x += query[n / dim] * query[n % dim] / (other.len() * queries.len()) as f64;
                    }
                }
                for (got, want) in [(&got.keys, &want[0]), (&got.queries, &want[1])] {
                    for (i, (x, y)) in got.iter().zip(want).enumerate() {
                        assert!((x - y).abs() < 1e-5, "{rope:?}, centred {is_centred}, {i}: {x}, not {y}");
                    }
                }
            }
        }
    }

    #[test]
    fn shrinking_keeps_the_energies_of_pairs() {
        let setting = Setting::new(&Rope::new(0, Pairs::Half, vec![1.0]), 4, 0, false);
        let mut sums = Sums::new(&setting);
        sums.add_key(&[1.0; 4], 0, 1.0);
        sums.add_query(&[1.0; 4], 0);
        let moments = sums.moments(false).unwrap();
        let mut matrix: Vec<f64> = (0..16).map(f64::from).collect();
        moments.shrink(&mut matrix, 0.5, 0.1);
        let ridge = 0.1 * 30.0 / 4.0;
        assert_eq!([matrix[0], matrix[5]], [1.25 + ridge, 3.75 + ridge], "turned: half of their mean");
        assert_eq!([matrix[10], matrix[15]], [10.0 + ridge, 15.0 + ridge], "not turned: as they are");
        assert_eq!(matrix[1], 0.5);
    }

    #[test]
    fn moments_are_of_all_coordinates_and_of_keys_and_queries() {
        let setting = Setting::new(&Rope::new(0, Pairs::Half, vec![1.0]), 4, 0, false);
        let mut sums = Sums::new(&setting);
        sums.add_key(&[1.0; 4], 0, 1.0);
        assert!(sums.clone().moments(true).is_none(), "no query");
        sums.add_query(&[1.0; 4], 0);
        let kept = Arc::new(sums.kept());
        let other = Setting::new(&Rope::new(0, Pairs::Half, vec![1.0]), 8, 0, false);
        assert!(Moments::learnt(other, true, kept.clone()).is_none());
        assert!(Moments::learnt(setting, true, kept).is_some());
    }
}

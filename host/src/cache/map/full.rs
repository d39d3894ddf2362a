//! A matrix for the keys of a range of positions, and its inverse for queries.
//!
//! Keys A k and queries A^-T q have one diagonal covariance, the largest coordinate first. Errors that are
//! even over the coordinates of A k then move the logits least (`docs/maps.md`). All sums are in a fixed
//! order, so the bits are equal on every machine.

use super::algebra::{between, factorise, inverse, product, solve, transposed};
use super::matrix::{Matrix, level};
use super::moments::{Covariances, Moments};
use crate::eigen;
use std::ops::Range;
use tqkv_core::unstable::trellis::QUARTERS;

/// Share of a covariance that is moved to its pairs. 128 tokens say little about the rest, and for the
/// thousands of a file it matters little.
const SHARE: f64 = 0.5;
/// Share of the mean energy that is added to each coordinate.
const RIDGE: f64 = 0.01;
/// Norm of the matrix over all entries, so that no key grows. Rounding of the inverse changes it a little.
const NORM: f64 = 0.95;

/// The inverse of the matrix of a range.
#[derive(Debug)]
pub(in crate::cache) struct Full {
    /// Its rows are the columns for queries.
    inverse: Matrix<i8>,
    /// Weights of squared errors by quarter, for a code of quarters.
    weights: Option<[f32; QUARTERS]>,
}

/// The matrix that keys go through. Only the newest range needs it.
#[derive(Debug)]
pub(super) struct Front {
    /// Its rows are the columns for keys.
    matrix: Matrix<i16>,
}

/// Makes the map of keys at positions `keys` and queries at positions `queries`. `None` if the moments do not
/// decide one.
pub(super) fn make(moments: &Moments, keys: Range<usize>, queries: Range<usize>) -> Option<(Full, Front)> {
    let Covariances { mut keys, mut queries } = moments.covariances(keys, queries);
    moments.shrink(&mut keys, SHARE, RIDGE);
    moments.shrink(&mut queries, SHARE, RIDGE);
    let (dim, in_quarters) = (moments.setting().dim, moments.setting().in_quarters);
    let (inverse, weights) = level().plain(
        #[inline(always)]
        || inverse_of(keys, &queries, dim, in_quarters),
    )?;
    if !inverse.iter().all(|x| x.is_finite()) {
        return None;
    }
    let map = Full { inverse: Matrix::new(&inverse, dim), weights };
    let front = Front::new(&map, dim)?;
    Some((map, front))
}

/// The inverse of the matrix for two covariances, and the weights of its quarters.
#[inline(always)]
fn inverse_of(
    mut keys: Vec<f64>,
    queries: &[f64],
    dim: usize,
    in_quarters: bool,
) -> Option<(Vec<f64>, Option<[f32; QUARTERS]>)> {
    factorise(&mut keys, dim)?;
    let (values, vectors) = eigen::symmetric(&between(queries, &keys, dim), dim)?;
    if !values.iter().all(|value| value.is_finite() && *value > 0.0) {
        return None;
    }
    // Sizes of the rows of the matrix.
    let mut sizes: Vec<f64> = values.iter().map(|value| value.sqrt().sqrt()).collect();
    let weights = in_quarters.then(|| even_out(&mut sizes, &values));
    // With the eigenvectors in columns the matrix is (L'^-1 U diag(sizes))', and its inverse L U / sizes.
    let mut rows = transposed(&vectors, dim);
    let mut columns = rows.clone();
    for (row, column) in rows.chunks_exact_mut(dim).zip(columns.chunks_exact_mut(dim)) {
        row.iter_mut().zip(&sizes).for_each(|(x, size)| *x *= size);
        column.iter_mut().zip(&sizes).for_each(|(x, size)| *x /= size);
    }
    solve(&keys, &mut rows, dim);
    let norm = rows.iter().fold(0.0, |sum, x| sum + x * x).sqrt();
    let mut inverse = product(&keys, &columns, dim);
    inverse.iter_mut().for_each(|x| *x *= norm / NORM);
    Some((inverse, weights))
}

/// Gives every quarter of the rows the same energy of keys. Returns the weights of the errors of the
/// quarters.
fn even_out(sizes: &mut [f64], values: &[f64]) -> [f32; QUARTERS] {
    let mut energies = [0.0; QUARTERS];
    let quarter = values.len() / QUARTERS;
    for (energy, values) in energies.iter_mut().zip(values.chunks_exact(quarter)) {
        *energy = values.iter().fold(0.0, |sum, value| sum + value.sqrt()) / quarter as f64;
    }
    for (sizes, energy) in sizes.chunks_exact_mut(quarter).zip(&energies) {
        sizes.iter_mut().for_each(|size| *size /= energy.sqrt());
    }
    energies.map(|energy| (energy / energies[0]).powi(2) as f32)
}

impl Full {
    /// The map of a snapshot. `None` if no cache makes it.
    pub(super) fn from_parts(
        dim: usize,
        (scales, codes): (&[f32], &[i8]),
        weights: Option<[f32; QUARTERS]>,
    ) -> Option<Self> {
        let weighs = weights.iter().flatten().all(|weight| *weight > 0.0 && *weight <= 1.0);
        let map = Self { inverse: Matrix::from_parts(dim, scales, codes)?, weights };
        (weighs && Front::new(&map, dim).is_some()).then_some(map)
    }

    pub(in crate::cache) fn inverse(&self) -> &Matrix<i8> {
        &self.inverse
    }

    pub(in crate::cache) fn weights(&self) -> Option<[f32; QUARTERS]> {
        self.weights
    }

    /// Maps queries, `[n, dim]`.
    pub(super) fn apply_to_queries(&self, queries: &mut [f32]) {
        self.inverse.apply(queries);
    }

    /// Brings mapped keys (`[n, dim]`) back to their own coordinates.
    pub(super) fn undo(&self, keys: &mut [f32]) {
        self.inverse.apply_transposed(keys);
    }

    /// Bytes of a map, the counts of its users included.
    pub(super) const fn bytes(dim: usize) -> usize {
        size_of::<Self>() + 2 * size_of::<usize>() + Matrix::<i8>::bytes(dim)
    }
}

impl Front {
    /// The matrix of an inverse. It depends on the stored bits alone, so a cache whose newest pages were
    /// dropped encodes as before. `None` if there is none, or if keys would grow.
    pub(super) fn new(map: &Full, dim: usize) -> Option<Self> {
        let values = map.inverse.values();
        let matrix = level().plain(
            #[inline(always)]
            || inverse(values, dim),
        )?;
        let norm = matrix.iter().fold(0.0, |sum, x| sum + x * x).sqrt();
        (norm <= 1.0).then(|| Self { matrix: Matrix::new(&transposed(&matrix, dim), dim) })
    }

    /// Maps keys, `[n, dim]`.
    pub(super) fn apply(&self, keys: &mut [f32]) {
        self.matrix.apply(keys);
    }

    /// Bytes of the matrix, the counts of its users included.
    pub(super) const fn bytes(dim: usize) -> usize {
        size_of::<Self>() + 2 * size_of::<usize>() + Matrix::<i16>::bytes(dim)
    }
}

#[cfg(test)]
mod tests {
    use super::super::moments::{Moments, Setting, Sums};
    use super::super::noise::noise;
    use super::*;
    use crate::rope::{Pairs, Rope};

    const DIM: usize = 64;

    /// Sums of keys along one direction across slow pairs, and of queries along another one.
    fn sums(in_quarters: bool) -> Sums {
        let inv_freq = (0..DIM / 2).map(|i| libm::pow(10_000.0, -(i as f64) / 32.0)).collect();
        let setting = Setting::new(&Rope::new(0, Pairs::Half, inv_freq), DIM, 4, in_quarters);
        let mut sums = Sums::new(&setting);
        let row = |i: usize, direction: usize| -> Vec<f32> {
            let along = |j: usize| if j % 32 < 20 { 0.0 } else { noise(i) * noise(direction * DIM + j) };
            (0..DIM).map(|j| along(j) + 0.1 * noise(1_000_000 + i * DIM + j)).collect()
        };
        for i in 0..128 {
            sums.add_key(&row(i, 1000), 0, 1.0);
            sums.add_query(&row(i + 128, 2000), 0);
        }
        sums
    }

    fn moments(in_quarters: bool) -> Moments {
        sums(in_quarters).moments(false).unwrap()
    }

    /// The energy that an error of one share of the keys' energy, even over coordinates, gives logits at
    /// positions `there`.
    fn loss(moments: &Moments, (map, front): &(Full, Front), there: Range<usize>) -> f64 {
        let mut covariances = moments.covariances(there.clone(), there);
        moments.shrink(&mut covariances.keys, 0.0, 0.0);
        let energy = |matrix: &[f64], apply: &dyn Fn(&mut [f32])| -> f64 {
            let (values, vectors) = eigen::symmetric(matrix, DIM).unwrap();
            let mapped = values.iter().zip(vectors.chunks_exact(DIM)).map(|(value, vector)| {
                let mut row: Vec<f32> = vector.iter().map(|x| *x as f32).collect();
                apply(&mut row);
                value.max(0.0) * row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()
            });
            mapped.sum()
        };
        let keys = energy(&covariances.keys, &|row| front.apply(row));
        keys * energy(&covariances.queries, &|row| map.apply_to_queries(row))
    }

    #[test]
    fn a_map_and_its_inverse_keep_products() {
        for in_quarters in [false, true] {
            let (map, front) = make(&moments(in_quarters), 4..516, 4..516).unwrap();
            let row = |salt: usize| (0..DIM).map(|i| ((i * salt) as f32 * 0.61).sin()).collect::<Vec<_>>();
            let (mut keys, mut queries) = ([row(3), row(5)].concat(), [row(7), row(11)].concat());
            let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
            let given = keys.clone();
            let want = product(&keys[DIM..], &queries[..DIM]);
            front.apply(&mut keys);
            let norm = |row: &[f32]| product(row, row);
            assert!(norm(&keys[..DIM]) <= norm(&given[..DIM]), "a key does not grow");
            map.apply_to_queries(&mut queries);
            let got = product(&keys[DIM..], &queries[..DIM]);
            assert!((got - want).abs() < 0.01, "{got}, not {want}");
            map.undo(&mut keys);
            assert!(keys.iter().zip(&given).all(|(x, y)| (x - y).abs() < 0.01));
        }
    }

    /// Errors that are even over mapped keys have hardly more energy in logits than with exact moments and an exact
    /// inverse.
    #[test]
    fn rounding_costs_less_than_a_hundredth() {
        for in_quarters in [false, true] {
            let (moments, there) = (moments(in_quarters), 4..516);
            let mut exact = sums(in_quarters).covariances(false, there.clone());
            moments.shrink(&mut exact.keys, SHARE, RIDGE);
            moments.shrink(&mut exact.queries, SHARE, RIDGE);
            let (own, _) = inverse_of(exact.keys.clone(), &exact.queries, DIM, in_quarters).unwrap();
            let rounded = make(&moments, there.clone(), there).unwrap().0.inverse().values();
            assert!(own.iter().zip(&rounded).any(|(x, y)| x != y));
            // Sums of the energies of rows X under a covariance C: the trace of X C X'.
            let energy = |rows: &[f64], covariance: &[f64]| -> f64 {
                let columns: Vec<_> = covariance.chunks_exact(DIM).collect();
                let of_row = |row: &[f64]| -> f64 {
                    let parts = row
                        .iter()
                        .zip(&columns)
                        .map(|(x, column)| x * row.iter().zip(*column).map(|(y, c)| y * c).sum::<f64>());
                    parts.sum()
                };
                rows.chunks_exact(DIM).map(of_row).sum()
            };
            let [own, rounded] = [own, rounded].map(|back| {
                let matrix = inverse(back.clone(), DIM).unwrap();
                energy(&matrix, &exact.keys) * energy(&transposed(&back, DIM), &exact.queries)
            });
            assert!(rounded < 1.01 * own, "{rounded}, {own} without rounding");
            println!("rounding costs {:.5} of the energy", rounded / own - 1.0);
        }
    }

    #[test]
    fn a_map_serves_its_range_of_positions() {
        let moments = moments(false);
        let (near, far) = (0..512, 4096..4608);
        let here = make(&moments, near.clone(), near.clone()).unwrap();
        let there = make(&moments, far.clone(), far.clone()).unwrap();
        let (own, other) = (loss(&moments, &there, far.clone()), loss(&moments, &here, far));
        assert!(own < 0.5 * other, "{own} with its own map, {other} with that of the first positions");
        let (own, other) = (loss(&moments, &here, near.clone()), loss(&moments, &there, near));
        assert!(own < 0.5 * other, "{own} with its own map, {other} with that of later positions");
    }

    #[test]
    fn the_first_quarter_matters_most() {
        let weights = make(&moments(true), 4..516, 4..516).unwrap().0.weights().unwrap();
        assert_eq!(weights[0], 1.0);
        assert!(weights.windows(2).all(|two| two[1] > 0.0 && two[1] < two[0]), "{weights:?}");
    }

    #[test]
    fn moments_without_energy_decide_no_map() {
        let setting = Setting::new(&Rope::new(0, Pairs::Half, vec![1.0]), 4, 0, false);
        for value in [0.0, 1e19] {
            let mut sums = Sums::new(&setting);
            sums.add_key(&[value; 4], 0, 1.0);
            sums.add_query(&[value; 4], 0);
            let made = make(&sums.moments(true).unwrap(), 0..512, 0..512);
            assert!(made.is_none() || value > 0.0, "{value}");
        }
    }

    #[test]
    fn only_maps_that_a_cache_makes_are_read() {
        let (map, _) = make(&moments(true), 4..516, 4..516).unwrap();
        let (scales, codes) = (map.inverse().scales(), map.inverse().codes());
        let read = |scales: &[f32], codes: &[i8], weight| {
            Full::from_parts(DIM, (scales, codes), Some([1.0, 0.5, weight, 0.1]))
        };
        assert!(read(scales, codes, 0.2).is_some());
        assert!(read(scales, codes, 0.0).is_none() && read(scales, codes, f32::NAN).is_none());
        assert!(read(scales, &[&[0; DIM][..], &codes[DIM..]].concat(), 0.2).is_none(), "no inverse");
        let small: Vec<f32> = scales.iter().map(|x| x / 2.0).collect();
        assert!(read(&small, codes, 0.2).is_none(), "keys would grow");
    }
}

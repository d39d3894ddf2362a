//! Moments of the keys and queries of a KV head, as memory, snapshots and files keep them.
//!
//! Products of two coordinates are kept as correlations in signed bytes, because maps shrink a covariance much
//! further than that rounds it. Those of keys are of keys less their weighted mean, as a mean may hold most of
//! the energy of keys.

use super::chunks::{Parser, put};
use crate::error::CacheError;

/// The code of a correlation of 1.
const ONE: f64 = 127.0;

/// Vectors of f32: the mean of keys, the mean of weighted keys, then the variances of weighted keys and the mean
/// squares of queries.
const VECTORS: usize = 4;

/// The moments of a head, or nothing for a head that keeps no keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptMoments {
    vectors: Box<[f32]>,
    /// Correlations of keys, then of queries: the triangle below the diagonal, row by row.
    codes: Box<[i8]>,
}

/// Moments without their rounding. Products are lower triangles, row by row.
#[derive(Debug)]
pub(super) struct Exact {
    pub(super) mean: Vec<f64>,
    pub(super) weighted: Vec<f64>,
    /// Mean products of weighted keys, and of queries.
    pub(super) products: [Vec<f64>; 2],
}

/// Number of values in the lower triangle of a matrix, without its diagonal.
const fn below(dim: usize) -> usize {
    dim * dim.saturating_sub(1) / 2
}

/// Number of values in the lower triangle of a matrix.
pub(super) const fn triangle(dim: usize) -> usize {
    dim * (dim + 1) / 2
}

impl KeptMoments {
    pub(super) fn none() -> Self {
        Self { vectors: Box::default(), codes: Box::default() }
    }

    pub(super) fn new(exact: &Exact) -> Self {
        let dim = exact.mean.len();
        let [mut keys, queries] = exact.products.clone();
        add_squares(&mut keys, &exact.weighted, -1.0);
        let products = [keys, queries];
        let energies = products
            .each_ref()
            .map(|products| (0..dim).map(|i| products[triangle(i) + i].max(0.0)).collect::<Vec<_>>());
        let codes = products.iter().zip(&energies).flat_map(|(products, energies)| {
            (0..dim).flat_map(move |i| (0..i).map(move |j| (i, j))).map(move |(i, j)| {
                let correlation = products[triangle(i) + j] / (energies[i] * energies[j]).sqrt();
                // Not a number where there is no energy, which becomes 0.
                (ONE * correlation.clamp(-1.0, 1.0)).round_ties_even() as i8
            })
        });
        let codes = codes.collect();
        let vectors = [&exact.mean, &exact.weighted].into_iter().chain(&energies);
        Self { vectors: vectors.flatten().map(|x| *x as f32).collect(), codes }
    }

    /// Number of coordinates, 0 for none.
    pub(super) fn dim(&self) -> usize {
        self.vectors.len() / VECTORS
    }

    pub(super) fn exact(&self) -> Exact {
        let dim = self.dim();
        let part = |i: usize| self.vectors[i * dim..(i + 1) * dim].iter().map(|x| f64::from(*x));
        let weighted: Vec<f64> = part(1).collect();
        let [mut keys, queries] = [0, 1].map(|side| {
            let energies: Vec<f64> = part(2 + side).collect();
            let mut codes = self.codes[side * below(dim)..].iter();
            let rows = energies.iter().enumerate().flat_map(|(i, energy)| {
                let row = energies[..i].iter().zip(&mut codes);
                let row: Vec<f64> =
                    row.map(|(other, code)| f64::from(*code) / ONE * (energy * other).sqrt()).collect();
                row.into_iter().chain([*energy])
            });
            rows.collect::<Vec<_>>()
        });
        add_squares(&mut keys, &weighted, 1.0);
        Exact { mean: part(0).collect(), weighted, products: [keys, queries] }
    }

    /// Bytes of the moments of `dim` coordinates.
    pub(super) const fn bytes(dim: usize) -> usize {
        VECTORS * dim * size_of::<f32>() + 2 * below(dim)
    }

    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        put(bytes, &self.vectors);
        put(bytes, &self.codes);
    }

    /// Reads moments of `dim` coordinates. `None` if no text has them.
    ///
    /// # Errors
    /// [`CacheError::Snapshot`]: too few bytes.
    pub(super) fn read(parser: &mut Parser<'_>, dim: usize) -> Result<Option<Self>, CacheError> {
        let vectors = parser.values::<f32>(VECTORS * dim)?;
        let codes = parser.values::<i8>(2 * below(dim))?;
        let fits = vectors.iter().all(|x| x.is_finite())
            && vectors[2 * dim..].iter().all(|x| *x >= 0.0)
            && codes.iter().all(|code| *code != i8::MIN);
        Ok(fits.then(|| Self { vectors: vectors.into(), codes: codes.into() }))
    }
}

/// Adds the products of a vector with itself to a lower triangle, times a factor.
fn add_squares(products: &mut [f64], vector: &[f64], factor: f64) {
    for (i, x) in vector.iter().enumerate() {
        let row = &mut products[triangle(i)..];
        row.iter_mut().zip(&vector[..=i]).for_each(|(sum, y)| *sum += factor * x * y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments of rows whose keys have a mean far above their spread.
    fn some(dim: usize) -> Exact {
        let row = |i: usize, salt: usize| -> Vec<f64> {
            let wave = |j: usize| ((i * 37 + j * 11 + salt * 101) as f64 * 0.7).sin() / (1 + j % 5) as f64;
            (0..dim).map(|j| wave(j) + 0.5 * wave(j / 2)).collect()
        };
        let mean: Vec<f64> = (0..dim).map(|j| 10.0 * (j as f64).cos()).collect();
        let (count, mut products) = (50, [vec![0.0; triangle(dim)], vec![0.0; triangle(dim)]]);
        let mut weighted = vec![0.0; dim];
        for i in 0..count {
            let key: Vec<f64> = row(i, 1).iter().zip(&mean).map(|(x, y)| x + y).collect();
            weighted.iter_mut().zip(&key).for_each(|(sum, x)| *sum += x / f64::from(count as u32));
            add_squares(&mut products[0], &key, 1.0 / f64::from(count as u32));
            add_squares(&mut products[1], &row(i, 2), 1.0 / f64::from(count as u32));
        }
        Exact { mean, weighted, products }
    }

    #[test]
    fn products_are_near_by_the_spread_of_their_coordinates() {
        let dim = 12;
        let exact = some(dim);
        let kept = KeptMoments::new(&exact);
        let got = kept.exact();
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(near(&got.mean, &exact.mean) && near(&got.weighted, &exact.weighted));
        for (side, centre) in [exact.weighted.clone(), vec![0.0; dim]].iter().enumerate() {
            let energy = |i: usize| exact.products[side][triangle(i) + i] - centre[i] * centre[i];
            for (i, j) in (0..dim).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                let at = triangle(i) + j;
                let error = (got.products[side][at] - exact.products[side][at]).abs();
                // Half a code, and the rounding of the vectors to f32.
                let most = (energy(i) * energy(j)).sqrt() * if i == j { 0.0 } else { 0.5 / ONE } + 2e-5;
                assert!(error <= most, "side {side}, {i}, {j}: {error}, not below {most}");
            }
        }
        let mut bytes = Vec::new();
        kept.write(&mut bytes);
        assert_eq!(bytes.len(), KeptMoments::bytes(dim));
        assert_eq!(KeptMoments::read(&mut Parser::new(&bytes), dim).unwrap(), Some(kept));
    }

    #[test]
    fn only_moments_that_a_text_has_are_read() {
        let (dim, mut bytes) = (4, Vec::new());
        KeptMoments::new(&some(dim)).write(&mut bytes);
        let read = |at: usize, with: &[u8]| {
            let mut bytes = bytes.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            KeptMoments::read(&mut Parser::new(&bytes), dim).unwrap()
        };
        assert!(read(0, &bytes).is_some());
        assert!(read(0, &f32::NAN.to_le_bytes()).is_none());
        assert!(read(4 * 2 * dim, &(-1.0f32).to_le_bytes()).is_none(), "a variance");
        assert!(read(4 * VECTORS * dim + 3, &[0x80]).is_none(), "a code");
        KeptMoments::read(&mut Parser::new(&bytes[1..]), dim).unwrap_err();
    }

    #[test]
    fn a_coordinate_without_energy_has_no_correlations() {
        let exact = Exact {
            mean: vec![1.0, 0.0],
            weighted: vec![1.0, 0.0],
            products: [vec![1.0, 0.0, 2.0], vec![0.0, 0.0, 3.0]],
        };
        let got = KeptMoments::new(&exact).exact();
        assert_eq!(got.products, [vec![1.0, 0.0, 2.0], vec![0.0, 0.0, 3.0]]);
    }
}

//! Dense random rotations, and the orthonormal Hadamard transform with random signs.
//!
//! A Haar matrix is the orthogonal factor of a Gaussian matrix whose triangular factor has a positive
//! diagonal. This factorisation is unique, so any sound algorithm gives the same matrix.
//!
//! The algorithm here is Householder's, in f64, with a fixed order of sums and no fused operations. Entries
//! are rounded to f32, so they have the same bits on every platform. Making a matrix takes d^3 operations and
//! using it d^2. The Hadamard transform takes d log d, and `tqkv_core` has it without a matrix.

use crate::random::{SplitMix, normals};
use half::bf16;

/// The rotation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationKind {
    /// A Haar matrix with entries in f32.
    Dense,
    /// The same with entries rounded to bf16. The vectors that it multiplies are rounded as well.
    DenseBf16,
    /// Random signs, then a Hadamard transform. Only for powers of two.
    Hadamard,
    /// The Hadamard transform without signs.
    Sylvester,
}

/// An orthogonal map of head vectors.
#[derive(Clone, Debug)]
pub enum Rotation {
    /// A matrix and its transpose, row by row.
    Dense {
        /// Q.
        rows: Vec<f32>,
        /// Its transpose.
        columns: Vec<f32>,
        /// Vectors are rounded to bf16 before they are multiplied.
        is_bf16: bool,
    },
    /// The signs. The map is H diag(signs) / sqrt(d).
    Hadamard(Vec<f64>),
}

/// Seeds of layers are a thousand apart.
pub(crate) fn layer_seed(seed: u64, layer: usize) -> u64 {
    seed.wrapping_add(1000u64.wrapping_mul(layer as u64))
}

impl Rotation {
    /// The rotation of a layer, with the seed `seed + 1000 * layer`. `None` for a Hadamard transform whose
    /// size is no power of two.
    pub fn new(kind: RotationKind, dim: usize, seed: u64, layer: usize) -> Option<Self> {
        let seed = layer_seed(seed, layer);
        match kind {
            RotationKind::Dense => Some(Self::dense(&haar(dim, seed), dim, |x| x as f32, false)),
            RotationKind::DenseBf16 => {
                Some(Self::dense(&haar(dim, seed), dim, |x| bf16::from_f32(x as f32).to_f32(), true))
            }
            RotationKind::Hadamard => dim.is_power_of_two().then(|| {
                let mut draws = SplitMix::new(seed);
                Self::Hadamard((0..dim).map(|_| if draws.next() >> 63 == 1 { -1.0 } else { 1.0 }).collect())
            }),
            RotationKind::Sylvester => dim.is_power_of_two().then(|| Self::Hadamard(vec![1.0; dim])),
        }
    }

    fn dense(q: &[f64], dim: usize, round: impl Fn(f64) -> f32, is_bf16: bool) -> Self {
        let rows: Vec<f32> = q.iter().map(|&x| round(x)).collect();
        let columns = (0..dim * dim).map(|i| rows[i % dim * dim + i / dim]).collect();
        Self::Dense { rows, columns, is_bf16 }
    }

    /// y = Q x.
    pub(crate) fn apply(&self, x: &[f64]) -> Vec<f64> {
        match self {
            Self::Dense { columns, is_bf16, .. } => multiply(columns, x, *is_bf16),
            Self::Hadamard(signs) => {
                let mut y: Vec<f64> = x.iter().zip(signs).map(|(x, sign)| x * sign).collect();
                hadamard(&mut y);
                y
            }
        }
    }

    /// x = Q^T y.
    pub(crate) fn invert(&self, y: &[f64]) -> Vec<f64> {
        match self {
            Self::Dense { rows, is_bf16, .. } => multiply(rows, y, *is_bf16),
            Self::Hadamard(signs) => {
                let mut x = y.to_vec();
                hadamard(&mut x);
                x.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
                x
            }
        }
    }
}

fn multiply(rows: &[f32], x: &[f64], is_bf16: bool) -> Vec<f64> {
    if !is_bf16 {
        return combine(rows, x);
    }
    let rounded: Vec<f64> = x.iter().map(|&x| bf16::from_f32(x as f32).to_f64()).collect();
    combine(rows, &rounded)
}

/// The sum over i of row i of `rows` times `x[i]`, in the order of the rows.
pub(crate) fn combine(rows: &[f32], x: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; rows.len() / x.len().max(1)];
    for (row, &x) in rows.chunks_exact(sum.len().max(1)).zip(x) {
        sum.iter_mut().zip(row).for_each(|(sum, &entry)| *sum += f64::from(entry) * x);
    }
    sum
}

/// The orthonormal Sylvester transform, in place.
pub(crate) fn hadamard(x: &mut [f64]) {
    let mut stride = 1;
    while stride < x.len() {
        for pair in x.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride *= 2;
    }
    let scale = 1.0 / libm::sqrt(x.len() as f64);
    x.iter_mut().for_each(|x| *x *= scale);
}

/// A Haar matrix in `dim` dimensions, row by row.
fn haar(dim: usize, seed: u64) -> Vec<f64> {
    // Reflections work on columns, so the Gaussian matrix is kept by columns. Its entries are drawn row by
    // row.
    let draws = normals(seed, dim * dim);
    let mut columns: Vec<Vec<f64>> =
        (0..dim).map(|c| (0..dim).map(|r| draws[r * dim + c]).collect()).collect();
    let mut reflections: Vec<Vec<f64>> = Vec::with_capacity(dim);
    let mut is_positive = Vec::with_capacity(dim);
    for c in 0..dim {
        let (pivot, rest) = columns[c..].split_at_mut(1);
        let mut v = pivot[0][c..].to_vec();
        let norm = libm::sqrt(dot(&v, &v));
        // The reflection goes to the side where nothing cancels, so the diagonal gets the other sign.
        let sign = if v[0] < 0.0 { -1.0 } else { 1.0 };
        v[0] += sign * norm;
        is_positive.push(sign < 0.0);
        for column in rest {
            reflect(&v, &mut column[c..]);
        }
        reflections.push(v);
    }
    // Column c of Q is the product of all reflections, last to first, applied to the unit vector c.
    let mut q = vec![0.0; dim * dim];
    for (c, is_positive) in is_positive.into_iter().enumerate() {
        let mut column = vec![0.0; dim];
        column[c] = if is_positive { 1.0 } else { -1.0 };
        for (k, v) in reflections.iter().enumerate().take(c + 1).rev() {
            reflect(v, &mut column[k..]);
        }
        column.into_iter().enumerate().for_each(|(r, x)| q[r * dim + c] = x);
    }
    q
}

/// Reflects: x - 2 v (v x) / (v v).
fn reflect(v: &[f64], x: &mut [f64]) {
    let factor = 2.0 * dot(v, x) / dot(v, v);
    x.iter_mut().zip(v).for_each(|(x, v)| *x -= factor * v);
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: [usize; 4] = [16, 64, 80, 128];

    /// The largest entry of |Q Q^T - I|.
    fn defect(rotation: &Rotation, dim: usize) -> f64 {
        let unit = |i| (0..dim).map(|j| f64::from(u8::from(i == j))).collect::<Vec<_>>();
        let rows: Vec<Vec<f64>> = (0..dim).map(|i| rotation.apply(&unit(i))).collect();
        let entries = (0..dim * dim).map(|at| {
            let (i, j) = (at / dim, at % dim);
            (dot(&rows[i], &rows[j]) - f64::from(u8::from(i == j))).abs()
        });
        entries.fold(0.0, f64::max)
    }

    #[test]
    fn dense_rotations_are_orthogonal_and_go_back() {
        for dim in DIMS {
            for layer in [0, 39] {
                let rotation = Rotation::new(RotationKind::Dense, dim, 42, layer).unwrap();
                assert!(defect(&rotation, dim) < 1e-6, "{dim}: {}", defect(&rotation, dim));
                let x = normals(1, dim);
                let back = rotation.invert(&rotation.apply(&x));
                assert!(x.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1e-5));
            }
        }
        let hadamard = Rotation::new(RotationKind::Hadamard, 128, 42, 0).unwrap();
        assert!(defect(&hadamard, 128) < 1e-12);
        assert!(Rotation::new(RotationKind::Hadamard, 80, 42, 0).is_none());
        // bf16 loses two digits in every entry.
        let coarse = defect(&Rotation::new(RotationKind::DenseBf16, 128, 42, 0).unwrap(), 128);
        assert!((1e-5..0.01).contains(&coarse), "{coarse}");
    }

    /// A Haar matrix has entries of variance 1/d and no preferred sign. The diagonal is no exception.
    #[test]
    fn the_law_has_no_preferred_direction() {
        let dim = 32;
        let (mut diagonal, mut squares) = (0.0, 0.0);
        let layers = 400;
        for layer in 0..layers {
            let q = haar(dim, layer_seed(42, layer));
            diagonal += (0..dim).map(|i| q[i * dim + i]).sum::<f64>();
            squares += q[1] * q[1] * dim as f64;
        }
        // The trace of a Haar matrix has mean 0 and variance 1.
        assert!((diagonal / layers as f64).abs() < 0.2, "{diagonal}");
        assert!((squares / layers as f64 - 1.0).abs() < 0.3, "{squares}");
    }

    /// The bytes of the matrices are part of the formats. WARNING: a change here changes the decoded vectors
    /// of stored blocks.
    #[test]
    fn matrices_are_the_same_bits_everywhere() {
        let hash = |layer| {
            let Some(Rotation::Dense { rows, .. }) = Rotation::new(RotationKind::Dense, 128, 42, layer)
            else {
                panic!("a dense rotation")
            };
            rows.iter().flat_map(|x| x.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        assert_eq!([hash(0), hash(1)], [16_087_399_567_554_958_947, 15_578_950_377_543_983_093]);
    }
}

//! A matrix in signed integers, with a scale for each of its rows.
//!
//! The inverse of a range is in bytes. The matrix of keys is the inverse of what those bytes say, so their
//! rounding only makes it another matrix, which is as good. The matrix of keys itself has 16 bits, because its
//! rounding is an error of keys.

use tqkv_core::MAX_HEAD_DIM;
use tqkv_simd::Level;

/// The level of work on matrices. Levels do not change the bits, so one that the machine lacks may be ignored.
pub(super) fn level() -> Level {
    Level::detect().unwrap_or(Level::Portable)
}

/// An integer that stands for a value.
pub(in crate::cache) trait Code: Copy + Into<f32> {
    /// The largest code.
    const MOST: f64;

    fn nearest(x: f64) -> Self;
}

impl Code for i8 {
    const MOST: f64 = 127.0;

    fn nearest(x: f64) -> Self {
        x.round_ties_even() as Self
    }
}

impl Code for i16 {
    const MOST: f64 = 32_767.0;

    fn nearest(x: f64) -> Self {
        x.round_ties_even() as Self
    }
}

#[derive(Debug)]
pub(in crate::cache) struct Matrix<T> {
    dim: usize,
    level: Level,
    scales: Box<[f32]>,
    /// Row by row.
    codes: Box<[T]>,
}

impl Matrix<i8> {
    /// The matrix of a snapshot. `None` if it is no matrix that [`Matrix::new`] makes.
    pub(super) fn from_parts(dim: usize, scales: &[f32], codes: &[i8]) -> Option<Self> {
        let fits = scales.len() == dim && codes.len() == dim * dim;
        let made = scales.iter().all(|x| x.is_finite() && *x > 0.0) && codes.iter().all(|x| *x != i8::MIN);
        (fits && made).then(|| Self { dim, level: level(), scales: scales.into(), codes: codes.into() })
    }

    pub(in crate::cache) fn scales(&self) -> &[f32] {
        &self.scales
    }

    pub(in crate::cache) fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// The values, row by row.
    pub(super) fn values(&self) -> Vec<f64> {
        let rows = self.codes.chunks_exact(self.dim).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |x| f64::from(*x) * f64::from(*scale))).collect()
    }
}

impl<T: Code> Matrix<T> {
    /// Rounds a matrix of finite values, given row by row.
    pub(super) fn new(rows: &[f64], dim: usize) -> Self {
        let largest = |row: &[f64]| row.iter().fold(0.0, |most, x| f64::max(most, x.abs()));
        let scales: Box<[f32]> = rows.chunks_exact(dim).map(|row| (largest(row) / T::MOST) as f32).collect();
        let rows = rows.chunks_exact(dim).zip(&scales);
        // A row of zeros has no scale, and its codes are 0.
        let codes = rows.flat_map(|(row, scale)| row.iter().map(move |x| T::nearest(x / f64::from(*scale))));
        let codes = codes.collect();
        Self { dim, level: level(), scales, codes }
    }

    /// Multiplies vectors (`[n, dim]`) by the matrix. Every sum is in the order of the rows.
    pub(super) fn apply(&self, vectors: &mut [f32]) {
        let mut values = [0.0; MAX_HEAD_DIM];
        let values = &mut values[..self.dim];
        let given = vectors.to_vec();
        vectors.fill(0.0);
        self.level.plain(
            #[inline(always)]
            || {
                for (i, (row, scale)) in self.codes.chunks_exact(self.dim).zip(&self.scales).enumerate() {
                    values.iter_mut().zip(row).for_each(|(value, x)| *value = (*x).into());
                    for (given, sums) in given.chunks_exact(self.dim).zip(vectors.chunks_exact_mut(self.dim))
                    {
                        let factor = given[i] * scale;
                        sums.iter_mut().zip(&*values).for_each(|(sum, x)| *sum += factor * x);
                    }
                }
            },
        );
    }

    /// Multiplies vectors (`[n, dim]`) by the transposed matrix.
    pub(super) fn apply_transposed(&self, vectors: &mut [f32]) {
        let mut values = [0.0; MAX_HEAD_DIM];
        let values = &mut values[..self.dim];
        let given = vectors.to_vec();
        self.level.plain(
            #[inline(always)]
            || {
                for (i, (row, scale)) in self.codes.chunks_exact(self.dim).zip(&self.scales).enumerate() {
                    values.iter_mut().zip(row).for_each(|(value, x)| *value = (*x).into());
                    for (given, out) in given.chunks_exact(self.dim).zip(vectors.chunks_exact_mut(self.dim)) {
                        out[i] = scale * dot(given, values);
                    }
                }
            },
        );
    }

    /// Bytes of a matrix, without the struct.
    pub(super) const fn bytes(dim: usize) -> usize {
        dim * (dim * size_of::<T>() + size_of::<f32>())
    }
}

/// The product of two rows, summed in eight lanes.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(lane, (a, b))| *lane += a * b);
    }
    lanes.iter().fold(0.0, |sum, lane| sum + lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIM: usize = 8;

    fn rows() -> Vec<f64> {
        (0..DIM * DIM).map(|at| ((at * 37) as f64 * 0.7).sin() * f64::from(1 << (at / DIM))).collect()
    }

    #[test]
    fn a_row_is_near_by_its_own_largest_value() {
        let (rows, matrix) = (rows(), Matrix::<i8>::new(&rows(), DIM));
        let values = matrix.values();
        for (want, got) in rows.chunks_exact(DIM).zip(values.chunks_exact(DIM)) {
            let largest = want.iter().fold(0.0, |most, x| f64::max(most, x.abs()));
            let half = 1.001 * largest / i8::MOST / 2.0;
            assert!(want.iter().zip(got).all(|(x, y)| (x - y).abs() <= half), "{want:?} {got:?}");
        }
        let again = Matrix::from_parts(DIM, matrix.scales(), matrix.codes()).unwrap();
        assert_eq!(again.values(), values);
    }

    #[test]
    fn products_are_those_of_the_values() {
        let (matrix, given) =
            (Matrix::<i8>::new(&rows(), DIM), [0.5f32, -1.0, 2.0, 0.0, 3.0, 1.0, -0.25, 0.125]);
        let values = matrix.values();
        let [mut by_rows, mut by_columns] = [[given, given.map(|x| -2.0 * x)].concat(), given.to_vec()];
        matrix.apply(&mut by_rows);
        matrix.apply_transposed(&mut by_columns);
        for j in 0..DIM {
            let sum = |at: &dyn Fn(usize) -> usize| -> f64 {
                (0..DIM).map(|i| f64::from(given[i]) * values[at(i)]).sum()
            };
            let (own, turned) = (sum(&|i| i * DIM + j), sum(&|i| j * DIM + i));
            assert!((f64::from(by_rows[j]) - own).abs() < 1e-3, "{j}: {}, not {own}", by_rows[j]);
            assert!((f64::from(by_rows[DIM + j]) + 2.0 * own).abs() < 2e-3, "{j}: the second vector");
            assert!((f64::from(by_columns[j]) - turned).abs() < 1e-3, "{j}: {}, not {turned}", by_columns[j]);
        }
    }

    #[test]
    fn sixteen_bits_are_nearer() {
        let (rows, matrix) = (rows(), Matrix::<i16>::new(&rows(), DIM));
        for i in 0..DIM {
            let mut unit = [0.0f32; DIM];
            unit[i] = 1.0;
            matrix.apply(&mut unit);
            let row = &rows[i * DIM..(i + 1) * DIM];
            let half = 1.01 * f64::from(1 << i) / i16::MOST / 2.0;
            assert!(row.iter().zip(unit).all(|(x, y)| (x - f64::from(y)).abs() <= half), "{row:?} {unit:?}");
        }
    }

    #[test]
    fn only_matrices_that_rounding_makes_are_read() {
        let matrix = Matrix::<i8>::new(&rows(), DIM);
        let (scales, codes) = (matrix.scales(), matrix.codes());
        assert!(Matrix::from_parts(DIM, &scales[1..], codes).is_none());
        assert!(Matrix::from_parts(DIM, scales, &codes[1..]).is_none());
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let mut scales = scales.to_vec();
            scales[3] = bad;
            assert!(Matrix::from_parts(DIM, &scales, codes).is_none(), "{bad}");
        }
        let mut codes = codes.to_vec();
        codes[9] = i8::MIN;
        assert!(Matrix::from_parts(DIM, scales, &codes).is_none());
    }
}

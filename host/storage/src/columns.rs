//! An orthonormal matrix, stored as bytes.

use half::f16;
use tqkv::unstable::matmul::{Mat, MatMut, Store, product};

/// A square matrix: each column as signed bytes times a scale.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Columns {
    pub(crate) scales: Vec<f16>,
    /// Column by column.
    pub(crate) entries: Vec<i8>,
}

impl Columns {
    /// Rounds a matrix column by column. A column has `dim` numbers.
    pub(crate) fn round(columns: &[f64], dim: usize) -> Self {
        let (mut scales, mut entries) = (Vec::with_capacity(dim), Vec::with_capacity(dim * dim));
        for column in columns.chunks_exact(dim) {
            let most = column.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let scale = f16::from_f64(most / 127.0);
            let inverse = if scale.to_f64() > 0.0 { 1.0 / scale.to_f64() } else { 0.0 };
            entries.extend(column.iter().map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8));
            scales.push(scale);
        }
        Self { scales, entries }
    }

    pub(crate) const fn dim(&self) -> usize {
        self.scales.len()
    }

    /// Coefficients `[rows, stride]` of rows `[rows, stride]`. Uses columns `first..first + dim` of both.
    pub(crate) fn project(&self, rows: &[f32], out: &mut [f32], stride: usize, first: usize) {
        let (dim, count) = (self.dim(), rows.len() / stride);
        let columns: Vec<f32> = self.entries.iter().map(|x| f32::from(*x)).collect();
        product(
            &mut MatMut::new(&mut out[first..], count, dim, stride),
            Mat::new(&rows[first..], count, dim, stride),
            Mat::new(&columns, dim, dim, dim).transposed(),
            1.0,
            Store::Replace,
        );
        let scales: Vec<f32> = self.scales.iter().map(|scale| scale.to_f32()).collect();
        for row in out.chunks_exact_mut(stride) {
            row[first..first + dim].iter_mut().zip(&scales).for_each(|(x, scale)| *x *= scale);
        }
    }

    /// The inverse of [`Columns::project`]. Reads only the columns for which `is_used` is true.
    pub(crate) fn back(
        &self,
        coefficients: &[f32],
        out: &mut [f32],
        stride: usize,
        first: usize,
        is_used: impl Fn(usize) -> bool,
    ) {
        let (dim, count) = (self.dim(), coefficients.len() / stride);
        let used: Vec<usize> = (0..dim).filter(|&column| is_used(first + column)).collect();
        if used.is_empty() {
            out.chunks_exact_mut(stride).for_each(|row| row[first..first + dim].fill(0.0));
            return;
        }
        let columns: Vec<f32> = used
            .iter()
            .flat_map(|&column| self.entries[column * dim..][..dim].iter().map(|x| f32::from(*x)))
            .collect();
        let scaled: Vec<f32> = coefficients
            .chunks_exact(stride)
            .flat_map(|row| used.iter().map(|&column| row[first + column] * self.scales[column].to_f32()))
            .collect();
        product(
            &mut MatMut::new(&mut out[first..], count, dim, stride),
            Mat::new(&scaled, count, used.len(), used.len()),
            Mat::new(&columns, used.len(), dim, dim),
            1.0,
            Store::Replace,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_comes_back_and_unused_columns_are_left_out() {
        let (c, s) = (0.8, 0.6);
        let columns = Columns::round(&[c, s, -s, c], 2);
        // With a stride of 3, the middle and last values are the part.
        let rows = [9.0, 1.0, 2.0, 9.0, -3.0, 0.5];
        let (mut coefficients, mut back) = ([0.0; 6], [7.0; 6]);
        columns.project(&rows, &mut coefficients, 3, 1);
        for (got, want) in coefficients.chunks(3).zip([[2.0, 1.0], [-2.1, 2.2]]) {
            assert!(got[1..].iter().zip(want).all(|(a, b)| (a - b).abs() < 0.02), "{got:?} {want:?}");
        }
        columns.back(&coefficients, &mut back, 3, 1, |_| true);
        assert!(back.iter().zip([7.0, 1.0, 2.0, 7.0, -3.0, 0.5]).all(|(a, b)| (a - b).abs() < 0.05));
        columns.back(&coefficients, &mut back, 3, 1, |column| column == 1);
        assert!((back[1] - 1.6).abs() < 0.05 && (back[2] - 1.2).abs() < 0.05, "{back:?}");
        columns.back(&coefficients, &mut back, 3, 1, |_| false);
        assert_eq!(back, [7.0, 0.0, 0.0, 7.0, 0.0, 0.0]);
    }
}

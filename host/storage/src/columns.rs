//! An orthonormal matrix, stored as bytes.

use std::sync::OnceLock;

use half::f16;
use tqkv_simd::page::Line;
use tqkv_simd::{Level, products};

use crate::bytes::TokenBytes;

/// A square matrix: each column as signed bytes times a scale.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) scales: Vec<f16>,
    /// The entries, arranged for sums over columns.
    lines: Vec<Line>,
    /// The transposed matrix, arranged for sums over its columns. Only encoding needs it.
    transposed: OnceLock<Vec<Line>>,
}

impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        self.scales == other.scales && self.lines == other.lines
    }
}

impl Columns {
    /// The matrix of these entries, column by column.
    pub(crate) fn new(scales: Vec<f16>, entries: &[i8]) -> Self {
        let dim = scales.len();
        let lines = arranged(dim, |row, column| entries[column * dim + row]);
        Self { scales, lines, transposed: OnceLock::new() }
    }

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
        Self::new(scales, &entries)
    }

    pub(crate) const fn dim(&self) -> usize {
        self.scales.len()
    }

    /// The entries, column by column.
    pub(crate) fn entries(&self) -> impl Iterator<Item = i8> {
        let dim = self.dim();
        (0..dim).flat_map(move |column| (0..dim).map(move |row| self.entry(row, column)))
    }

    fn entry(&self, row: usize, column: usize) -> i8 {
        let (line, byte) = products::place(self.dim(), row, column);
        self.lines[line].0[byte].cast_signed()
    }

    /// Coefficients `[rows, stride]` of rows `[rows, stride]`. Uses columns `first..first + dim` of both.
    pub(crate) fn project(&self, level: Level, rows: &[f32], out: &mut [f32], stride: usize, first: usize) {
        let dim = self.dim();
        let lines = self.transposed.get_or_init(|| arranged(dim, |row, column| self.entry(column, row)));
        let mut bytes = TokenBytes::new(rows.len() / stride);
        let runs: Vec<usize> = (0..dim / products::RUN).collect();
        bytes.add(level, &rows[first..], stride, &runs, &vec![1.0; dim], true);
        bytes.product(level, lines, dim, &mut out[first..], stride);
        let scales: Vec<f32> = self.scales.iter().map(|scale| scale.to_f32()).collect();
        for row in out.chunks_exact_mut(stride) {
            row[first..first + dim].iter_mut().zip(&scales).for_each(|(x, scale)| *x *= scale);
        }
    }

    /// Adds coefficients to `bytes`: a run of 16 for each of `runs`, `stride` numbers from one token to the
    /// next.
    pub(crate) fn add(
        &self,
        level: Level,
        coefficients: &[f32],
        stride: usize,
        runs: &[usize],
        fine: bool,
        bytes: &mut TokenBytes,
    ) {
        let scales = runs.iter().flat_map(|run| &self.scales[run * products::RUN..][..products::RUN]);
        let factors: Vec<f32> = scales.map(|scale| scale.to_f32()).collect();
        bytes.add(level, coefficients, stride, runs, &factors, fine);
    }

    /// The inverse of [`Columns::project`], of coefficients that [`Columns::add`] has added.
    pub(crate) fn back(
        &self,
        level: Level,
        bytes: &TokenBytes,
        out: &mut [f32],
        stride: usize,
        first: usize,
    ) {
        bytes.product(level, &self.lines, self.dim(), &mut out[first..], stride);
    }
}

/// The lines of a square matrix.
fn arranged(dim: usize, entry: impl Fn(usize, usize) -> i8) -> Vec<Line> {
    let mut lines = vec![Line::ZERO; products::lines(dim, dim)];
    for column in 0..dim {
        for row in 0..dim {
            let (line, byte) = products::place(dim, row, column);
            lines[line].0[byte] = entry(row, column).cast_unsigned();
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_comes_back_and_unused_columns_are_left_out() {
        let (dim, stride, first) = (32, 48, 16);
        // Turns coordinates i and i + 16 against each other.
        let (c, s) = (0.8, 0.6);
        let entry = |row: usize, column: usize| match (row % 16 == column % 16, row.cmp(&column)) {
            (false, _) => 0.0,
            (true, std::cmp::Ordering::Equal) => c,
            (true, std::cmp::Ordering::Less) => -s,
            (true, std::cmp::Ordering::Greater) => s,
        };
        let matrix: Vec<f64> = (0..dim * dim).map(|at| entry(at % dim, at / dim)).collect();
        let columns = Columns::round(&matrix, dim);
        assert_eq!(columns.entries().map(f64::from).fold(0.0, f64::max), 127.0);
        assert_eq!(Columns::new(columns.scales.clone(), &columns.entries().collect::<Vec<_>>()), columns);
        let level = Level::fastest();
        let rows: Vec<f32> = (0..3 * stride).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        let mut coefficients = vec![7.0; rows.len()];
        columns.project(level, &rows, &mut coefficients, stride, first);
        for (got, x) in coefficients.chunks(stride).zip(rows.chunks(stride)) {
            assert!(got[..first].iter().all(|x| *x == 7.0));
            for i in 0..16 {
                let (a, b) = (x[first + i], x[first + 16 + i]);
                let want = [0.8 * a + 0.6 * b, 0.8 * b - 0.6 * a];
                let got = [got[first + i], got[first + 16 + i]];
                assert!((got[0] - want[0]).abs() + (got[1] - want[1]).abs() < 0.5, "{got:?} {want:?}");
            }
        }
        for used in [vec![0, 1], vec![1], vec![]] {
            let values: Vec<f32> = coefficients
                .chunks(stride)
                .flat_map(|row| used.iter().flat_map(move |run| &row[first + 16 * run..][..16]))
                .copied()
                .collect();
            let (mut bytes, mut back) = (TokenBytes::new(3), vec![7.0; rows.len()]);
            columns.add(level, &values, 16 * used.len(), &used, true, &mut bytes);
            columns.back(level, &bytes, &mut back, stride, first);
            for ((got, x), own) in
                back.chunks(stride).zip(rows.chunks(stride)).zip(coefficients.chunks(stride))
            {
                assert!(got[..first].iter().all(|x| *x == 7.0));
                for i in first..stride {
                    let want = match used.len() {
                        2 => x[i],
                        1 if i < 32 => -0.6 * own[i + 16],
                        1 => 0.8 * own[i],
                        _ => 0.0,
                    };
                    assert!((got[i] - want).abs() < 0.5, "{} {want}", got[i]);
                }
            }
        }
    }
}

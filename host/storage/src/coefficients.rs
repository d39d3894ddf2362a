//! Decoded coefficients on their way to rows.

use tqkv_simd::Level;
use tqkv_simd::products::RUN;

use crate::bytes::TokenBytes;
use crate::frame::Frame;

/// Coefficients of this width and wider ones take two bytes. With one, the rounding would show next to the
/// error of their code.
const FINE_FROM: u8 = 4;

/// The coefficients of a section.
pub(crate) struct Coefficients<'a> {
    frame: &'a Frame,
    tokens: usize,
    stride: usize,
    /// Those of each matrix.
    parts: Vec<TokenBytes>,
    /// Rows `[tokens, stride]` where there is no matrix. A run is then one coefficient.
    rows: Vec<f32>,
}

impl<'a> Coefficients<'a> {
    pub(crate) fn new(frame: &'a Frame, tokens: usize, stride: usize) -> Self {
        let parts: Vec<_> = frame.columns.iter().map(|_| TokenBytes::new(tokens)).collect();
        let rows = if parts.is_empty() { vec![0.0; tokens * stride] } else { Vec::new() };
        Self { frame, tokens, stride, parts, rows }
    }

    /// Adds the runs of a width, each of `run` coefficients. `values` has those of each token, one after the
    /// other.
    pub(crate) fn add(&mut self, level: Level, width: u8, (runs, run): (&[usize], usize), values: &[f32]) {
        let all = runs.len() * run;
        debug_assert!(self.rows.is_empty() || run == 1, "without a matrix a run is one coefficient");
        let rows = self.rows.chunks_exact_mut(self.stride).zip(values.chunks_exact(all));
        for (row, values) in rows {
            // Copying slices of one would take longer than decoding.
            runs.iter().zip(values).for_each(|(i, value)| row[*i] = *value);
        }
        let (mut rest, mut first, mut values) = (runs, 0, values);
        for (columns, bytes) in self.frame.columns.iter().zip(&mut self.parts) {
            let end = first + columns.dim() / RUN;
            let (own, others) = rest.split_at(rest.partition_point(|i| *i < end));
            let own: Vec<usize> = own.iter().map(|i| i - first).collect();
            columns.add(level, values, all, &own, width >= FINE_FROM, bytes);
            (rest, first, values) = (others, end, &values[own.len() * RUN..]);
        }
    }

    /// The rows of these coefficients, `[tokens, stride]`.
    pub(crate) fn rows(self, level: Level) -> Vec<f32> {
        let (mut rows, mut first) = (self.rows, 0);
        rows.resize(self.tokens * self.stride, 0.0);
        for (columns, bytes) in self.frame.columns.iter().zip(&self.parts) {
            columns.back(level, bytes, &mut rows, self.stride, first);
            first += columns.dim();
        }
        rows
    }
}

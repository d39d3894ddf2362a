//! Where the rows of a layer are coded: moved by a mean, scaled, and turned into a basis where there is one.

use half::f16;

use crate::columns::Columns;
use crate::rows::Rows;
use crate::shape::Shape;

/// A layer's frame. Without columns, coefficients are the scaled channels themselves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// Of the un-RoPEd keys, f16 each.
    pub(crate) mean: Vec<f32>,
    pub(crate) key_scale: f32,
    pub(crate) value_scale: f32,
    /// One over all values of a layer, or of keys and of values.
    pub(crate) columns: Vec<Columns>,
}

impl Frame {
    /// The frame of rows without a basis: keys less their own mean, as large as values over their norms.
    pub(crate) fn of_rows(rows: &Rows, shape: &Shape) -> Self {
        let (keys, stride) = (shape.key_values(), shape.layer_values());
        let tokens = (rows.values.len() / stride) as f64;
        let mut sums = vec![0.0f64; keys];
        for row in rows.values.chunks_exact(stride) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let mean: Vec<f32> = sums.iter().map(|sum| rounded(sum / tokens)).collect();
        let key = |row: &[f32]| -> f64 { row.iter().zip(&mean).map(|(x, m)| f64::from(x - m).powi(2)).sum() };
        let energy: f64 = rows.values.chunks_exact(stride).map(key).sum::<f64>() / (tokens * keys as f64);
        let value_scale = Self::own_value_scale(shape);
        Self { key_scale: scale_of(energy), mean, value_scale, columns: Vec::new() }
    }

    /// What makes values over their norm as large as keys, without a basis.
    pub(crate) fn own_value_scale(shape: &Shape) -> f32 {
        (shape.value_dim.max(1) as f32).sqrt()
    }

    /// Coefficients `[tokens, layer_values]` of rows.
    pub(crate) fn coefficients(&self, mut rows: Vec<f32>, stride: usize) -> Vec<f32> {
        for row in rows.chunks_exact_mut(stride) {
            let (key, value) = row.split_at_mut(self.mean.len());
            key.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x = (*x - mean) * self.key_scale);
            value.iter_mut().for_each(|x| *x *= self.value_scale);
        }
        if self.columns.is_empty() {
            return rows;
        }
        let (mut out, mut first) = (vec![0.0; rows.len()], 0);
        for part in &self.columns {
            part.project(&rows, &mut out, stride, first);
            first += part.dim();
        }
        out
    }

    /// Rows of coefficients; those that `is_used` does not say are zero.
    pub(crate) fn rows(
        &self,
        coefficients: Vec<f32>,
        stride: usize,
        is_used: impl Fn(usize) -> bool,
    ) -> Vec<f32> {
        let mut rows = if self.columns.is_empty() {
            coefficients
        } else {
            let (mut rows, mut first) = (vec![0.0; coefficients.len()], 0);
            for part in &self.columns {
                part.back(&coefficients, &mut rows, stride, first, &is_used);
                first += part.dim();
            }
            rows
        };
        let (keys, values) = (1.0 / self.key_scale, 1.0 / self.value_scale);
        for row in rows.chunks_exact_mut(stride) {
            let (key, value) = row.split_at_mut(self.mean.len());
            key.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x = *x * keys + mean);
            value.iter_mut().for_each(|x| *x *= values);
        }
        rows
    }
}

/// To the nearest f16, within its range.
pub(crate) fn rounded(x: f64) -> f32 {
    let most = f64::from(f16::MAX);
    f16::from_f64(x.clamp(-most, most)).to_f32()
}

/// What makes a mean square 1; 1 where there is nothing.
pub(crate) fn scale_of(mean_square: f64) -> f32 {
    let scale = (1.0 / mean_square.sqrt()) as f32;
    if scale.is_normal() { scale } else { 1.0 }
}

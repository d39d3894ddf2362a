//! A frame moves rows by a mean and scales them. With a basis it also rotates them into it.

use half::f16;
use tqkv_simd::Level;

use crate::columns::Columns;
use crate::rows::CodedRows;
use crate::shape::Shape;

/// The frame of a layer, or of the layers that share a basis. Without columns, coefficients are the scaled
/// channels themselves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// The mean of the un-RoPEd keys, f16 each.
    pub(crate) mean: Vec<f32>,
    /// One scale for the keys and one for the values of each layer.
    pub(crate) scales: Vec<[f32; 2]>,
    /// One matrix for the whole row, or one for keys and one for values. Empty without a basis.
    pub(crate) columns: Vec<Columns>,
}

impl Frame {
    /// The frame of rows without a basis. It subtracts the mean of the keys and makes them as large as values
    /// over their norms.
    pub(crate) fn of_rows(rows: &CodedRows, shape: &Shape) -> Self {
        let (keys, stride) = (shape.key_values(), shape.layer_values());
        let tokens = (rows.values.len() / stride) as f64;
        let mut sums = vec![0.0f64; keys];
        for row in rows.values.chunks_exact(stride) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let mean: Vec<f32> = sums.iter().map(|sum| rounded(sum / tokens)).collect();
        let key = |row: &[f32]| -> f64 { row.iter().zip(&mean).map(|(x, m)| f64::from(x - m).powi(2)).sum() };
        let energy: f64 = rows.values.chunks_exact(stride).map(key).sum::<f64>() / (tokens * keys as f64);
        Self { mean, scales: vec![[scale_of(energy), Self::own_value_scale(shape)]], columns: Vec::new() }
    }

    /// The scale that makes values over their norm as large as keys, without a basis.
    pub(crate) fn own_value_scale(shape: &Shape) -> f32 {
        (shape.value_dim.max(1) as f32).sqrt()
    }

    /// Transforms rows to coefficients `[tokens, stride]`.
    pub(crate) fn coefficients(&self, level: Level, mut rows: Vec<f32>, stride: usize) -> Vec<f32> {
        for row in rows.chunks_exact_mut(stride) {
            row.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
            self.scale(row, |scale| scale);
        }
        if self.columns.is_empty() {
            return rows;
        }
        let (mut out, mut first) = (vec![0.0; rows.len()], 0);
        for part in &self.columns {
            part.project(level, &rows, &mut out, stride, first);
            first += part.dim();
        }
        out
    }

    /// Undoes the scales of a row, and then moves it by the mean.
    #[inline(always)]
    pub(crate) fn undo(&self, row: &mut [f32]) {
        self.scale(row, |scale| 1.0 / scale);
        row.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x += mean);
    }

    /// Multiplies the keys and the values of each layer in a row by `factor` of their scale.
    #[inline(always)]
    fn scale(&self, row: &mut [f32], factor: impl Fn(f32) -> f32) {
        let layers = self.scales.len();
        let (keys, values) = row.split_at_mut(self.mean.len());
        for (i, part) in [keys, values].into_iter().enumerate() {
            // Latent vectors have no values.
            for (part, scales) in part.chunks_mut((part.len() / layers).max(1)).zip(&self.scales) {
                let factor = factor(scales[i]);
                part.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
}

/// Rounds to the nearest f16. Larger numbers become its largest.
pub(crate) fn rounded(x: f64) -> f32 {
    let most = f64::from(f16::MAX);
    f16::from_f64(x.clamp(-most, most)).to_f32()
}

/// The scale that makes a mean square 1. It is 1 where there is no normal number.
pub(crate) fn scale_of(mean_square: f64) -> f32 {
    let scale = (1.0 / mean_square.sqrt()) as f32;
    if scale.is_normal() { scale } else { 1.0 }
}

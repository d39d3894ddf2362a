//! Keys and values as rows of numbers, of one layer or of the layers that share a basis.
//!
//! A row is the un-RoPEd keys of its layers, then their values. Each token's values are divided by their own
//! 8-bit norm. Tokens with small values are the attended ones, so noise must shrink with the values. Keys
//! need the same noise for every token, and have no norm.

use std::ops::Range;

use tqkv_simd::Level;

use crate::angles::{Angles, RopeDirection};
use crate::element::Element;
use crate::error::StorageError;
use crate::shape::Shape;

/// The code of norm 1. A step of the code is an eighth of the norm's logarithm to base 2.
const UNIT_CODE: f32 = 128.0;
const STEPS: f32 = 8.0;

/// The code of the nearest norm.
fn norm_code(norm: f32) -> u8 {
    // Zero gets the smallest code: its logarithm is minus infinity.
    (libm::roundf(STEPS * libm::log2f(norm)) + UNIT_CODE).clamp(0.0, 255.0) as u8
}

fn norm_of(code: u8) -> f32 {
    libm::exp2f((f32::from(code) - UNIT_CODE) / STEPS)
}

/// Rows of coded tokens.
pub(crate) struct CodedRows {
    /// Values of the rows, `[tokens, layers * layer_values]`.
    pub(crate) values: Vec<f32>,
    /// Norm codes, `[tokens, layers * norms]`.
    pub(crate) norms: Vec<u8>,
}

/// The tokens and layers of rows, and the angles of their keys.
#[derive(Clone, Copy)]
pub(crate) struct RowPlace<'a> {
    pub(crate) level: Level,
    pub(crate) shape: &'a Shape,
    pub(crate) first_layer: usize,
    /// Layers per row.
    pub(crate) layers: usize,
    /// Exact tokens in front of the tokens in rows.
    pub(crate) exact: usize,
    /// Number of tokens in rows.
    pub(crate) tokens: usize,
    /// Angles for each kind of RoPE, one row per token in rows.
    pub(crate) angles: &'a [Angles],
    /// Norms of a token's values in a layer: one, or one per KV head. Zero for latent vectors.
    pub(crate) norms: usize,
}

impl RowPlace<'_> {
    /// Values that share a norm.
    fn norm_values(&self) -> usize {
        // Without norms this is 1: chunks of zero values do not exist.
        self.shape.value_values().checked_div(self.norms).unwrap_or(1)
    }

    /// Values per row.
    pub(crate) const fn stride(&self) -> usize {
        self.layers * self.shape.layer_values()
    }

    /// The ranges of the keys and values of one layer in a row.
    const fn parts(&self, layer: usize) -> (Range<usize>, Range<usize>) {
        let (keys, values) = (self.shape.key_values(), self.shape.value_values());
        let (key, value) = (layer * keys, self.layers * keys + layer * values);
        (key..key + keys, value..value + values)
    }

    /// The range of a token in keys or values `[layers, exact + tokens, values]`.
    const fn source(&self, layer: usize, token: usize, values: usize) -> Range<usize> {
        let first = (layer * (self.exact + self.tokens) + self.exact + token) * values;
        first..first + values
    }

    #[inline(always)]
    fn turn(&self, layer: usize, token: usize, key: &mut [f32], way: RopeDirection) {
        let layer = self.first_layer + layer;
        let angles = &self.angles[usize::from(self.shape.rope_of[layer])];
        angles.turn(self.shape.rope(layer), token, key, self.shape.head_dim, way);
    }

    /// Makes rows from keys `[layers, tokens, num_kv_heads, head_dim]`, exact tokens in front, and values
    /// likewise.
    ///
    /// # Errors
    /// [`StorageError::Layer`] names a token that is not finite.
    pub(crate) fn take_apart<T: Element>(&self, k: &[T], v: &[T]) -> Result<CodedRows, StorageError> {
        let (stride, norms) = (self.stride(), self.layers * self.norms);
        let mut rows =
            CodedRows { values: vec![0.0; self.tokens * stride], norms: vec![0; self.tokens * norms] };
        for layer in 0..self.layers {
            let (keys, values) = self.parts(layer);
            for (token, row) in rows.values.chunks_exact_mut(stride).enumerate() {
                T::widen(self.level, &k[self.source(layer, token, keys.len())], &mut row[keys.clone()]);
                T::widen(self.level, &v[self.source(layer, token, values.len())], &mut row[values.clone()]);
                if row[keys.clone()].iter().chain(&row[values.clone()]).any(|x| !x.is_finite()) {
                    let what = format!("keys or values of coded token {token} are not finite");
                    return Err(StorageError::Layer { layer: self.first_layer + layer, what });
                }
                self.level.plain(
                    #[inline(always)]
                    || self.turn(layer, token, &mut row[keys.clone()], RopeDirection::Undo),
                );
                let codes = &mut rows.norms[token * norms + layer * self.norms..][..self.norms];
                for (part, code) in row[values.clone()].chunks_exact_mut(self.norm_values()).zip(codes) {
                    *code = norm_code(part.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32);
                    let inverse = 1.0 / norm_of(*code);
                    part.iter_mut().for_each(|x| *x *= inverse);
                }
            }
        }
        Ok(rows)
    }

    /// The mean of the un-RoPEd keys of one layer.
    pub(crate) fn key_mean<T: Element>(&self, k: &[T]) -> Vec<f64> {
        let keys = self.shape.key_values();
        let (mut sums, mut key) = (vec![0.0f64; keys], vec![0.0; keys]);
        for (token, own) in k.chunks_exact(keys).enumerate() {
            T::widen(self.level, own, &mut key);
            self.turn(0, token, &mut key, RopeDirection::Undo);
            sums.iter_mut().zip(&key).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let tokens = (k.len() / keys).max(1) as f64;
        sums.into_iter().map(|sum| sum / tokens).collect()
    }

    /// Writes rows back to keys and values, each after `undo`, which is an `#[inline(always)]` closure. The
    /// exact tokens in front stay, and `rows` is overwritten. Returns false if a number is not finite, which
    /// no encoder writes.
    pub(crate) fn put_together<T: Element>(
        &self,
        rows: &mut [f32],
        norms: &[u8],
        undo: impl Fn(&mut [f32]),
        k: &mut [T],
        v: &mut [T],
    ) -> bool {
        let mut finite = true;
        for (token, row) in rows.chunks_exact_mut(self.stride()).enumerate() {
            self.level.plain(
                #[inline(always)]
                || {
                    undo(row);
                    (0..self.layers).for_each(|layer| self.complete(layer, token, norms, row));
                },
            );
            for layer in 0..self.layers {
                let (keys, values) = self.parts(layer);
                let to = &mut k[self.source(layer, token, keys.len())];
                finite &= T::narrow(self.level, &row[keys], to);
                let to = &mut v[self.source(layer, token, values.len())];
                finite &= T::narrow(self.level, &row[values], to);
            }
        }
        finite
    }

    /// Turns the keys of a layer, and multiplies its values by their norms.
    #[inline(always)]
    fn complete(&self, layer: usize, token: usize, norms: &[u8], row: &mut [f32]) {
        let (keys, values) = self.parts(layer);
        self.turn(layer, token, &mut row[keys], RopeDirection::Do);
        let codes = &norms[(token * self.layers + layer) * self.norms..][..self.norms];
        for (part, code) in row[values].chunks_exact_mut(self.norm_values()).zip(codes) {
            let norm = norm_of(*code);
            part.iter_mut().for_each(|x| *x *= norm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_is_within_a_sixteenth_of_an_octave() {
        for norm in [1e-4f32, 0.03, 1.0, 17.3, 3e4] {
            let near = norm_of(norm_code(norm));
            assert!((near / norm).log2().abs() <= 0.0626, "{norm} became {near}");
        }
        assert_eq!(norm_code(0.0), 0);
        assert_eq!((norm_code(1e30), norm_code(f32::MIN_POSITIVE)), (255, 0));
    }
}

//! Keys and values of one layer as rows of numbers: keys un-RoPEd, values over an 8-bit norm.
//!
//! Tokens with small values are the attended ones, so noise must shrink with them: each token's values are divided by a norm of
//! their own. Keys want the same noise for every token, and are not.

use crate::element::Element;
use crate::rope::{Angles, Way};
use crate::shape::Shape;

/// Steps of a norm's logarithm to base 2 are an eighth; this code is the norm 1.
const UNIT_CODE: f32 = 128.0;
const STEPS: f32 = 8.0;

/// The code of the nearest norm there is.
fn norm_code(norm: f32) -> u8 {
    // Zero is the least code: the logarithm is minus infinity.
    (libm::roundf(STEPS * libm::log2f(norm)) + UNIT_CODE).clamp(0.0, 255.0) as u8
}

fn norm_of(code: u8) -> f32 {
    libm::exp2f((f32::from(code) - UNIT_CODE) / STEPS)
}

/// Rows of the coded tokens of one layer.
pub(crate) struct Rows {
    /// `[tokens, layer_values]`
    pub(crate) values: Vec<f32>,
    /// `[tokens, norms]`
    pub(crate) norms: Vec<u8>,
}

/// Which layer's keys and values, and how they turn.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) layer: usize,
    /// A row for each token.
    pub(crate) angles: &'a Angles,
    /// Norms of a token's values: one, or one a KV head. None for latent vectors.
    pub(crate) norms: usize,
}

impl Place<'_> {
    /// Values that share a norm.
    fn norm_values(&self) -> usize {
        // One where there are none: chunks of zero values do not exist.
        self.shape.value_values().checked_div(self.norms).unwrap_or(1)
    }

    /// From keys `[tokens, num_kv_heads, head_dim]` and values likewise.
    ///
    /// # Errors
    /// What is not finite, in words.
    pub(crate) fn take_apart<T: Element>(&self, k: &[T], v: &[T]) -> Result<Rows, String> {
        let (keys, values) = (self.shape.key_values(), self.shape.value_values());
        let tokens = k.len() / keys;
        let mut rows =
            Rows { values: vec![0.0; tokens * (keys + values)], norms: vec![0; tokens * self.norms] };
        for (token, row) in rows.values.chunks_exact_mut(keys + values).enumerate() {
            let (key, value) = row.split_at_mut(keys);
            read(&k[token * keys..][..keys], key);
            read(&v[token * values..][..values], value);
            if key.iter().chain(&*value).any(|x| !x.is_finite()) {
                return Err(format!("keys or values of token {token} of those coded are not finite"));
            }
            self.shape.rope(self.layer).turn(self.angles, token, key, self.shape.head_dim, Way::Undo);
            let codes = &mut rows.norms[token * self.norms..][..self.norms];
            for (part, code) in value.chunks_exact_mut(self.norm_values()).zip(codes) {
                *code = norm_code(part.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32);
                let inverse = 1.0 / norm_of(*code);
                part.iter_mut().for_each(|x| *x *= inverse);
            }
        }
        Ok(rows)
    }

    /// The mean of un-RoPEd keys.
    pub(crate) fn key_mean<T: Element>(&self, k: &[T]) -> Vec<f64> {
        let keys = self.shape.key_values();
        let (mut sums, mut key) = (vec![0.0f64; keys], vec![0.0; keys]);
        for (token, own) in k.chunks_exact(keys).enumerate() {
            read(own, &mut key);
            self.shape.rope(self.layer).turn(self.angles, token, &mut key, self.shape.head_dim, Way::Undo);
            sums.iter_mut().zip(&key).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let tokens = (k.len() / keys).max(1) as f64;
        sums.into_iter().map(|sum| sum / tokens).collect()
    }

    /// To keys and values; `rows` is used up.
    pub(crate) fn put_together<T: Element>(&self, rows: &mut [f32], norms: &[u8], k: &mut [T], v: &mut [T]) {
        let (keys, values) = (self.shape.key_values(), self.shape.value_values());
        for (token, row) in rows.chunks_exact_mut(keys + values).enumerate() {
            let (key, value) = row.split_at_mut(keys);
            self.shape.rope(self.layer).turn(self.angles, token, key, self.shape.head_dim, Way::Do);
            let codes = &norms[token * self.norms..][..self.norms];
            for (part, code) in value.chunks_exact_mut(self.norm_values()).zip(codes) {
                let norm = norm_of(*code);
                part.iter_mut().for_each(|x| *x *= norm);
            }
            write(key, &mut k[token * keys..][..keys]);
            write(value, &mut v[token * values..][..values]);
        }
    }
}

fn read<T: Element>(from: &[T], to: &mut [f32]) {
    from.iter().zip(to).for_each(|(from, to)| *to = from.to_f32());
}

fn write<T: Element>(from: &[f32], to: &mut [T]) {
    from.iter().zip(to).for_each(|(from, to)| *to = T::from_f32(*from));
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

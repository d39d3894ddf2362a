//! Rotary position embedding in the half-split ("rotate_half") convention: channel c pairs with c + head_dim / 2.
//!
//! Checkpoints in the interleaved convention must be permuted first; Hugging Face's are not interleaved.

use std::f64::consts::TAU;

use crate::config::{Config, RopeScaling};

/// Frequencies of one model; angles are computed in f64 so that long contexts lose nothing.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    inv_freq: Vec<f64>,
}

/// Cosines and sines of a run of positions, each `[n, head_dim / 2]`.
pub(crate) struct RopeTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rope {
    pub(crate) fn new(config: &Config) -> Self {
        let dim = config.head_dim;
        let inv_freq = (0..dim / 2)
            .map(|i| config.rope_theta.powf(-((2 * i) as f64) / dim as f64))
            .enumerate()
            .map(|(i, f)| scale(i, f, &config.rope_scaling))
            .collect();
        Self { inv_freq }
    }

    /// The angles of one position a row; made once a pass and shared by all layers.
    pub(crate) fn table(&self, positions: impl ExactSizeIterator<Item = usize>) -> RopeTable {
        let half = self.inv_freq.len();
        let values = positions.len() * half;
        let mut table = RopeTable { cos: Vec::with_capacity(values), sin: Vec::with_capacity(values), half };
        for position in positions {
            for f in &self.inv_freq {
                let (sin, cos) = (position as f64 * f).sin_cos();
                table.cos.push(cos as f32);
                table.sin.push(sin as f32);
            }
        }
        table
    }
}

/// Llama 3.1's rule is `rope_type: "llama3"` of the transformers library.
fn scale(index: usize, freq: f64, scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::None => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Factors(ref factors) => freq / factors.get(index).copied().unwrap_or(1.0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let turns = original_context * freq / TAU;
            let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            keep * freq + (1.0 - keep) * freq / factor
        }
    }
}

impl RopeTable {
    /// Rotates `[n, heads, head_dim]` in place.
    pub(crate) fn apply(&self, x: &mut [f32], heads: usize) {
        let per_token = heads * 2 * self.half;
        let angles = self.cos.chunks_exact(self.half).zip(self.sin.chunks_exact(self.half));
        for (token, (cos, sin)) in x.chunks_exact_mut(per_token).zip(angles) {
            for head in token.chunks_exact_mut(2 * self.half) {
                let (low, high) = head.split_at_mut(self.half);
                for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_scaling_equals_fractional_positions() {
        let f = 0.37;
        assert_eq!(scale(0, f, &RopeScaling::None), f);
        assert_eq!(scale(0, f, &RopeScaling::Linear { factor: 4.0 }) * 8.0, f * 2.0);
    }

    /// The three branches as transformers writes them, with wavelengths.
    #[test]
    fn llama3_scaling_follows_the_three_branches() {
        let (factor, low, high, old) = (8.0, 1.0, 4.0, 8192.0);
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: old,
        };
        let mut branches = [0; 3];
        for i in 0..64 {
            let freq = 500_000f64.powf(-f64::from(2 * i) / 128.0);
            let wavelength = TAU / freq;
            let (branch, want) = if wavelength < old / high {
                (0, freq)
            } else if wavelength > old / low {
                (1, freq / factor)
            } else {
                let smooth = (old / wavelength - low) / (high - low);
                (2, (1.0 - smooth) * freq / factor + smooth * freq)
            };
            branches[branch] += 1;
            assert!((scale(0, freq, &scaling) / want - 1.0).abs() < 1e-12, "frequency {i}");
        }
        assert!(branches.iter().all(|&n| n > 0), "every branch is reached: {branches:?}");
    }

    #[test]
    fn position_zero_is_the_identity_and_one_is_a_turn_by_the_frequency() {
        let rope = Rope { inv_freq: vec![1.0, 0.25] };
        let mut x = [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0];
        rope.table(0..2).apply(&mut x, 1);
        assert_eq!(x[..4], [1.0, 2.0, 0.0, 0.0]);
        let want = [1f32.cos(), 2.0 * 0.25f32.cos(), 1f32.sin(), 2.0 * 0.25f32.sin()];
        for (got, want) in x[4..].iter().zip(want) {
            assert!((got - want).abs() < 1e-7);
        }
    }
}

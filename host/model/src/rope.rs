//! Rotary position embedding. In the half-split ("rotate_half") convention channel c pairs with channel c +
//! half of the rotated ones. In the interleaved convention it pairs with its neighbour.

use std::f64::consts::TAU;

use crate::config::{RopeScaling, Rotary};
use tqkv_storage::RopePairing;

/// Frequencies of the layers of one kind. Angles are computed in f64, so that long contexts lose no
/// precision.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    inv_freq: Vec<f64>,
    /// Factor of the rotated coordinates.
    amplitude: f64,
    is_interleaved: bool,
}

/// Cosines and sines of a run of positions, each `[n, half]`. `half` is half the number of rotated
/// coordinates.
pub(crate) struct RopeTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
    is_interleaved: bool,
}

impl Rope {
    pub(crate) fn new(rotary: &Rotary) -> Self {
        let amplitude = match rotary.scaling {
            RopeScaling::Yarn { amplitude, .. } => amplitude,
            _ => 1.0,
        };
        let inv_freq = (0..rotary.dim / 2).map(|i| frequency(i, rotary)).collect();
        Self { inv_freq, amplitude, is_interleaved: rotary.is_interleaved }
    }

    /// Radians per position, for each pair.
    pub(crate) fn frequencies(&self) -> &[f64] {
        &self.inv_freq
    }

    /// The same RoPE for the storage tier. The rotated coordinates begin at `first`.
    pub(crate) fn stored(&self, first: usize) -> tqkv_storage::Rope {
        let pairs = if self.is_interleaved { RopePairing::Interleaved } else { RopePairing::Half };
        tqkv_storage::Rope::new(first, pairs, self.inv_freq.clone())
    }

    /// The angles, one row per position. Made once per pass, and shared by all layers of the kind.
    pub(crate) fn table(&self, positions: impl ExactSizeIterator<Item = usize>) -> RopeTable {
        let half = self.inv_freq.len();
        let room = || Vec::with_capacity(positions.len() * half);
        let (mut cos, mut sin) = (room(), room());
        for position in positions {
            for f in &self.inv_freq {
                let (s, c) = (position as f64 * f).sin_cos();
                cos.push((self.amplitude * c) as f32);
                sin.push((self.amplitude * s) as f32);
            }
        }
        RopeTable { cos, sin, half, is_interleaved: self.is_interleaved }
    }
}

/// The frequency of pair `index`, by the rules of the transformers library for its `rope_type`s.
fn frequency(index: usize, rotary: &Rotary) -> f64 {
    let &Rotary { theta, dim, .. } = rotary;
    let freq = theta.powf(-((2 * index) as f64) / dim as f64);
    // Keeps the share `keep` of the frequency and divides the rest.
    let blend = |keep: f64, factor: f64| keep * freq + (1.0 - keep) * freq / factor;
    match rotary.scaling {
        RopeScaling::None => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Factors(ref factors) => freq / factors.get(index).copied().unwrap_or(1.0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let turns = original_context * freq / TAU;
            blend(((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0), factor)
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, is_truncated, .. } => {
            // The pair that makes `turns` turns in the original context, not rounded.
            let pair = |turns: f64| dim as f64 * (original_context / (turns * TAU)).ln() / (2.0 * theta.ln());
            let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
            if is_truncated {
                (low, high) = (low.floor(), high.ceil());
            }
            (low, high) = (low.max(0.0), high.min((dim - 1) as f64));
            if low == high {
                high += 0.001;
            }
            blend(1.0 - ((index as f64 - low) / (high - low)).clamp(0.0, 1.0), factor)
        }
    }
}

impl RopeTable {
    /// Rotates `[n, heads, head_dim]` in place. In each head it turns the coordinates from `first` on, as
    /// many as there are angles for.
    pub(crate) fn apply(&self, x: &mut [f32], heads: usize, head_dim: usize, first: usize) {
        let angles = self.cos.chunks_exact(self.half).zip(self.sin.chunks_exact(self.half));
        for (token, (cos, sin)) in x.chunks_exact_mut(heads * head_dim).zip(angles) {
            for head in token.chunks_exact_mut(head_dim) {
                let rotated = &mut head[first..first + 2 * self.half];
                if self.is_interleaved {
                    let pairs = rotated.as_chunks_mut().0.iter_mut().map(|[a, b]| (a, b));
                    turn(pairs, cos, sin);
                } else {
                    let (low, high) = rotated.split_at_mut(self.half);
                    turn(low.iter_mut().zip(high), cos, sin);
                }
            }
        }
    }
}

fn turn<'a>(pairs: impl Iterator<Item = (&'a mut f32, &'a mut f32)>, cos: &[f32], sin: &[f32]) {
    for (((a, b), c), s) in pairs.zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotary(theta: f64, dim: usize, scaling: RopeScaling) -> Rotary {
        Rotary { theta, dim, is_interleaved: false, scaling }
    }

    #[test]
    fn linear_scaling_equals_fractional_positions() {
        let plain = frequency(3, &rotary(100.0, 16, RopeScaling::None));
        let slower = frequency(3, &rotary(100.0, 16, RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(slower * 8.0, plain * 2.0);
    }

    /// The three branches as transformers writes them, by wavelengths.
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
            let freq = 500_000f64.powf(-((2 * i) as f64) / 128.0);
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
            let got = frequency(i, &rotary(500_000.0, 128, scaling.clone()));
            assert!((got / want - 1.0).abs() < 1e-12, "frequency {i}");
        }
        assert!(branches.iter().all(|&n| n > 0), "every branch is reached: {branches:?}");
    }

    #[test]
    fn position_zero_is_the_identity_and_one_is_a_turn_by_the_frequency() {
        for (is_interleaved, start) in [(false, [1.0, 2.0, 0.0, 0.0]), (true, [1.0, 0.0, 2.0, 0.0])] {
            let rope = Rope { inv_freq: vec![1.0, 0.25], amplitude: 1.0, is_interleaved };
            let mut x = [start, start].concat();
            rope.table(0..2).apply(&mut x, 1, 4, 0);
            assert_eq!(x[..4], start);
            let (a, b) = ([1f32.cos(), 1f32.sin()], [2.0 * 0.25f32.cos(), 2.0 * 0.25f32.sin()]);
            let want = if is_interleaved { [a[0], a[1], b[0], b[1]] } else { [a[0], b[0], a[1], b[1]] };
            for (got, want) in x[4..].iter().zip(want) {
                assert!((got - want).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn a_part_of_each_head_is_left_as_it_is() {
        let rope = Rope { inv_freq: vec![1.0], amplitude: 2.0, is_interleaved: false };
        let mut x = [7.0, 1.0, 0.0, 9.0];
        rope.table(1..2).apply(&mut x, 1, 4, 1);
        assert_eq!((x[0], x[3]), (7.0, 9.0));
        assert!((x[1] - 2.0 * 1f32.cos()).abs() < 1e-6 && (x[2] - 2.0 * 1f32.sin()).abs() < 1e-6);
    }
}

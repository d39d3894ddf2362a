//! RoPE is undone before keys are coded, and applied again after decoding.
//!
//! Angles come from a table of frequencies, which covers every scaling of them. A constant factor of rotated
//! coordinates (the attention scaling of YaRN) stays in the keys: only the rotation is undone. `libm`
//! computes the angles in f64, so they are the same on every machine.

use std::str::FromStr;

use crate::error::StorageError;

/// Which coordinates turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Coordinates that are half of the rotated ones apart, as in Llama.
    Half,
    /// Neighbouring coordinates, as in DeepSeek-V2 and GPT-J.
    Interleaved,
}

impl FromStr for Pairs {
    type Err = StorageError;

    /// Parses a name. Kinds whose angles are not position times frequency (M-RoPE, dynamic ones) are refused
    /// by name.
    fn from_str(name: &str) -> Result<Self, StorageError> {
        match name {
            "half" => Ok(Self::Half),
            "interleaved" => Ok(Self::Interleaved),
            other => Err(StorageError::RopeKind(other.to_owned())),
        }
    }
}

/// How positions turn the keys of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub(crate) first: usize,
    pub(crate) pairs: Pairs,
    pub(crate) inv_freq: Vec<f64>,
}

impl Rope {
    /// Turns coordinates `first..first + 2 * inv_freq.len()` of each head. Pair i turns by the angle
    /// `position * inv_freq[i]`.
    pub const fn new(first: usize, pairs: Pairs, inv_freq: Vec<f64>) -> Self {
        Self { first, pairs, inv_freq }
    }

    /// No RoPE: positions do not turn the keys.
    pub const fn none() -> Self {
        Self::new(0, Pairs::Half, Vec::new())
    }

    /// The arguments of [`Rope::new`].
    pub fn into_parts(self) -> (usize, Pairs, Vec<f64>) {
        (self.first, self.pairs, self.inv_freq)
    }

    /// Cosines and sines of `tokens` positions from `first` on.
    pub(crate) fn angles(&self, first: u64, tokens: usize) -> Angles {
        let turn = |i: usize| {
            let position = (first + i as u64) as f64;
            self.inv_freq.iter().map(move |f| libm::sincos(position * f))
        };
        let (sin, cos) = (0..tokens).flat_map(turn).map(|(s, c)| (s as f32, c as f32)).unzip();
        Angles { sin, cos }
    }

    /// Turns the keys `[heads, head_dim]` of one token by the angles of its row.
    #[inline(always)]
    pub(crate) fn turn(&self, angles: &Angles, row: usize, keys: &mut [f32], head_dim: usize, way: Way) {
        let half = self.inv_freq.len();
        let (cos, sin) = (&angles.cos[row * half..][..half], &angles.sin[row * half..][..half]);
        for head in keys.chunks_exact_mut(head_dim) {
            let rotated = &mut head[self.first..self.first + 2 * half];
            match self.pairs {
                Pairs::Half => {
                    let (low, high) = rotated.split_at_mut(half);
                    turn_pairs(low.iter_mut().zip(high), cos, sin, way);
                }
                Pairs::Interleaved => {
                    turn_pairs(rotated.as_chunks_mut().0.iter_mut().map(|[a, b]| (a, b)), cos, sin, way);
                }
            }
        }
    }
}

/// Cosines and sines of consecutive positions, `[tokens, pairs]`.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The direction of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Undo,
    Do,
}

#[inline(always)]
fn turn_pairs<'a>(
    pairs: impl Iterator<Item = (&'a mut f32, &'a mut f32)>,
    cos: &[f32],
    sin: &[f32],
    way: Way,
) {
    let sign = if way == Way::Undo { -1.0 } else { 1.0 };
    for (((a, b), c), s) in pairs.zip(cos).zip(sin) {
        let s = sign * s;
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_and_its_undoing_are_the_identity_and_others_stay() {
        for pairs in [Pairs::Half, Pairs::Interleaved] {
            let rope = Rope::new(1, pairs, vec![1.0, 0.1]);
            let angles = rope.angles(1000, 3);
            let start: Vec<f32> = (0..12).map(|i| i as f32 - 4.5).collect();
            let mut keys = start.clone();
            rope.turn(&angles, 2, &mut keys, 6, Way::Do);
            assert!(keys.iter().zip(&start).filter(|(a, b)| (*a - *b).abs() > 0.1).count() >= 6);
            assert_eq!((keys[0], keys[5], keys[11]), (start[0], start[5], start[11]));
            rope.turn(&angles, 2, &mut keys, 6, Way::Undo);
            assert!(keys.iter().zip(&start).all(|(a, b)| (a - b).abs() < 1e-5), "{pairs:?}");
        }
    }

    #[test]
    fn the_pairs_of_one_turn_are_those_of_their_kind() {
        let turned = |pairs| {
            let rope = Rope::new(0, pairs, vec![1.0, 0.0]);
            let mut keys = [1.0, 0.0, 0.0, 0.0];
            rope.turn(&rope.angles(1, 1), 0, &mut keys, 4, Way::Do);
            keys
        };
        let (c, s) = (1f32.cos(), 1f32.sin());
        assert_eq!(turned(Pairs::Half), [c, 0.0, s, 0.0]);
        assert_eq!(turned(Pairs::Interleaved), [c, s, 0.0, 0.0]);
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        assert_eq!(
            "mrope".parse::<Pairs>().unwrap_err().to_string(),
            "RoPE of the kind 'mrope' is not stored; expected half, interleaved or none"
        );
    }
}

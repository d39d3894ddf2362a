//! The rotation of RoPE, done and undone. `libm` computes the angles in f64, so they are the same on every
//! machine.

use tqkv::rope::{Rope, RopePairing};

/// Cosines and sines of consecutive positions, `[tokens, pairs]`.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The direction of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RopeDirection {
    /// From after RoPE to before it.
    Undo,
    /// From before RoPE to after it.
    Do,
}

impl Angles {
    /// The angles of `tokens` positions from `first` on.
    pub(crate) fn new(rope: &Rope, first: u64, tokens: usize) -> Self {
        let turn = |i: usize| {
            let position = (first + i as u64) as f64;
            rope.inv_freq.iter().map(move |f| libm::sincos(position * f))
        };
        let (sin, cos) = (0..tokens).flat_map(turn).map(|(s, c)| (s as f32, c as f32)).unzip();
        Self { cos, sin }
    }

    /// Turns the keys `[heads, head_dim]` of one token by the angles of its row.
    #[inline(always)]
    pub(crate) fn turn(
        &self,
        rope: &Rope,
        row: usize,
        keys: &mut [f32],
        head_dim: usize,
        way: RopeDirection,
    ) {
        let half = rope.inv_freq.len();
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        for head in keys.chunks_exact_mut(head_dim) {
            let rotated = &mut head[rope.first..rope.first + 2 * half];
            match rope.pairs {
                RopePairing::Half => {
                    let (low, high) = rotated.split_at_mut(half);
                    turn_pairs(low.iter_mut().zip(high), cos, sin, way);
                }
                RopePairing::Interleaved => {
                    turn_pairs(rotated.as_chunks_mut().0.iter_mut().map(|[a, b]| (a, b)), cos, sin, way);
                }
            }
        }
    }
}

#[inline(always)]
fn turn_pairs<'a>(
    pairs: impl Iterator<Item = (&'a mut f32, &'a mut f32)>,
    cos: &[f32],
    sin: &[f32],
    way: RopeDirection,
) {
    let sign = if way == RopeDirection::Undo { -1.0 } else { 1.0 };
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
        for pairs in [RopePairing::Half, RopePairing::Interleaved] {
            let rope = Rope::new(1, pairs, vec![1.0, 0.1]);
            let angles = Angles::new(&rope, 1000, 3);
            let start: Vec<f32> = (0..12).map(|i| i as f32 - 4.5).collect();
            let mut keys = start.clone();
            angles.turn(&rope, 2, &mut keys, 6, RopeDirection::Do);
            assert!(keys.iter().zip(&start).filter(|(a, b)| (*a - *b).abs() > 0.1).count() >= 6);
            assert_eq!((keys[0], keys[5], keys[11]), (start[0], start[5], start[11]));
            angles.turn(&rope, 2, &mut keys, 6, RopeDirection::Undo);
            assert!(keys.iter().zip(&start).all(|(a, b)| (a - b).abs() < 1e-5), "{pairs:?}");
        }
    }

    #[test]
    fn the_pairs_of_one_turn_are_those_of_their_kind() {
        let turned = |pairs| {
            let rope = Rope::new(0, pairs, vec![1.0, 0.0]);
            let mut keys = [1.0, 0.0, 0.0, 0.0];
            Angles::new(&rope, 1, 1).turn(&rope, 0, &mut keys, 4, RopeDirection::Do);
            keys
        };
        let (c, s) = (1f32.cos(), 1f32.sin());
        assert_eq!(turned(RopePairing::Half), [c, 0.0, s, 0.0]);
        assert_eq!(turned(RopePairing::Interleaved), [c, s, 0.0, 0.0]);
    }
}

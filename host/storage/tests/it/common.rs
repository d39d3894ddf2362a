//! Keys and values like those of a model: linear maps of one hidden vector per token. Keys have a mean and
//! RoPE, and tokens have different norms.
#![allow(dead_code, reason = "each test uses its own part")]

use fastrand::Rng;
use tqkv_storage::{Learner, Rope, RopePairing, Shape};

/// A model's shape with the matrices that make its keys and values.
pub(crate) struct Source {
    pub(crate) shape: Shape,
    layers: Vec<Vec<f32>>,
    /// Each odd layer is a map of the hidden vectors of the layer before it.
    is_paired: bool,
    rank: usize,
    rope: Rope,
    head_dim: usize,
}

pub(crate) struct Tokens {
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
}

pub(crate) fn rope(first: usize, pairs: RopePairing, rotated: usize) -> Rope {
    let of = |i: usize| 10_000f64.powf(-(2.0 * i as f64) / rotated as f64);
    Rope::new(first, pairs, (0..rotated / 2).map(of).collect())
}

impl Source {
    pub(crate) fn new(layers: usize, heads: usize, head_dim: usize, value_dim: usize, rope: Rope) -> Self {
        Self::of_kind(7, (layers, heads, head_dim, value_dim), rope)
    }

    /// Another kind of text: other maps.
    pub(crate) fn of_kind(
        kind: u64,
        (layers, heads, head_dim, value_dim): (usize, usize, usize, usize),
        rope: Rope,
    ) -> Self {
        let shape = Shape::new(layers, heads, head_dim, value_dim, rope.clone()).unwrap();
        let width = shape.layer_values();
        let rank = width / 2;
        let mut rng = Rng::with_seed(kind);
        // Some directions hold more of the energy than others.
        let entry = |rng: &mut Rng, i: usize| normal(rng) * 0.97f32.powi((i % rank) as i32);
        let layers = (0..layers).map(|_| (0..width * rank).map(|i| entry(&mut rng, i)).collect()).collect();
        Self { shape, layers, is_paired: false, rank, rope, head_dim }
    }

    /// Pairs of consecutive layers are maps of the same hidden vectors.
    pub(crate) fn with_pairs_of_layers(self) -> Self {
        Self { is_paired: true, ..self }
    }

    pub(crate) fn tokens(&self, seed: u64, first: u64, count: usize) -> Tokens {
        let mut rng = Rng::with_seed(seed);
        let (mut k, mut v) = (Vec::new(), Vec::new());
        let keys = self.shape.key_values();
        for (layer, matrix) in self.layers.iter().enumerate() {
            if self.is_paired {
                rng = Rng::with_seed(1000 * seed + layer as u64 / 2);
            }
            for position in (first..).take(count) {
                let hidden: Vec<f32> = (0..self.rank).map(|_| normal(&mut rng)).collect();
                let mut row: Vec<f32> = matrix
                    .chunks_exact(self.rank)
                    .map(|weights| weights.iter().zip(&hidden).map(|(a, b)| a * b).sum())
                    .collect();
                row[..keys]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x += if i % 7 == 0 { 6.0 } else { 0.0 });
                self.turn(position, &mut row[..keys]);
                let norm = 2f32.powi(rng.i32(-3..3));
                row[keys..].iter_mut().for_each(|x| *x *= norm);
                k.extend_from_slice(&row[..keys]);
                v.extend_from_slice(&row[keys..]);
            }
        }
        Tokens { k, v }
    }

    /// RoPE written a second time, pair by pair.
    fn turn(&self, position: u64, keys: &mut [f32]) {
        let Rope { first, pairs, inv_freq } = self.rope.clone();
        for head in keys.chunks_exact_mut(self.head_dim) {
            for (i, frequency) in inv_freq.iter().enumerate() {
                let (a, b) = match pairs {
                    RopePairing::Half => (first + i, first + i + inv_freq.len()),
                    RopePairing::Interleaved => (first + 2 * i, first + 2 * i + 1),
                };
                let (s, c) = (position as f64 * frequency).sin_cos();
                let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                (head[a], head[b]) = ((x * c - y * s) as f32, (y * c + x * s) as f32);
            }
        }
    }

    pub(crate) fn learner(&self) -> Learner {
        Learner::new(self.shape.clone(), self.shape.join()).unwrap()
    }
}

fn normal(rng: &mut Rng) -> f32 {
    // The sum of twelve uniform numbers is near enough to a normal one.
    (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0
}

/// Squared error over squared norm.
pub(crate) fn error(got: &[f32], want: &[f32]) -> f64 {
    let sum = |x: &mut dyn Iterator<Item = f64>| x.sum::<f64>();
    let wrong = sum(&mut got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)));
    wrong / sum(&mut want.iter().map(|x| f64::from(*x).powi(2))).max(f64::MIN_POSITIVE)
}

//! The tokens of `tqkv-lab needle`, made chunk by chunk, so that the sequence is never in memory
//! uncompressed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use tqkv_core::KvShape;

use crate::stats::dot;

/// Tokens per chunk.
pub(crate) const CHUNK: usize = 1024;

/// Norm of the common offset of the keys over the norm of the keys around it.
const OFFSET: f32 = 2.0;

/// The tokens of one layer with some needles among them, and the queries for these needles.
pub(crate) struct Haystack {
    shape: KvShape,
    tokens: usize,
    strength: f32,
    /// `[num_kv_heads, head_dim]`
    offset: Vec<f32>,
    /// `[needles, num_kv_heads, head_dim]`. The norm is the root of `head_dim`, the norm of keys without the
    /// offset.
    asks: Vec<f32>,
    /// `[needles, num_kv_heads, head_dim]`
    answers: Vec<f32>,
    random: ChaCha8Rng,
    /// Keys of the newest chunk.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Sum over all tokens so far of exp(logit - logit of the needle), one per needle and KV head.
    weight: Vec<f64>,
}

impl Haystack {
    pub(crate) fn new(shape: KvShape, tokens: usize, needles: usize, strength: f32, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let per_token = shape.num_kv_heads * shape.head_dim;
        let mut offset = normals(&mut random, per_token);
        let mut asks = normals(&mut random, needles * per_token);
        for (vectors, length) in [(&mut offset, OFFSET), (&mut asks, 1.0)] {
            for vector in vectors.chunks_exact_mut(shape.head_dim) {
                let factor = length * (shape.head_dim as f32 / dot(vector, vector)).sqrt();
                vector.iter_mut().for_each(|x| *x *= factor);
            }
        }
        Self {
            answers: normals(&mut random, needles * per_token),
            weight: vec![0.0; needles * shape.num_kv_heads],
            keys: Vec::new(),
            values: Vec::new(),
            shape,
            tokens,
            strength,
            offset,
            asks,
            random,
        }
    }

    /// The position of a needle: the middle of its share of the tokens.
    pub(crate) fn position(&self, needle: usize) -> usize {
        let needles = self.weight.len() / self.shape.num_kv_heads;
        ((2 * needle as u128 + 1) * self.tokens as u128 / (2 * needles as u128)) as usize
    }

    /// Makes keys and values of the tokens from `first` on, at most [`CHUNK`]. Calls must be in order.
    pub(crate) fn chunk(&mut self, first: usize) -> (&[f32], &[f32]) {
        let dim = self.shape.head_dim;
        let per_token = self.offset.len();
        let tokens = CHUNK.min(self.tokens - first);
        self.keys = normals(&mut self.random, tokens * per_token);
        self.values = normals(&mut self.random, tokens * per_token);
        for needle in 0..self.weight.len() / self.shape.num_kv_heads {
            let position = self.position(needle);
            if !(first..first + tokens).contains(&position) {
                continue;
            }
            let at = (position - first) * per_token;
            let of_needle = needle * per_token..(needle + 1) * per_token;
            self.values[at..at + per_token].copy_from_slice(&self.answers[of_needle.clone()]);
            let keys = self.keys[at..at + per_token].chunks_exact_mut(dim);
            for (key, ask) in keys.zip(self.asks[of_needle].chunks_exact(dim)) {
                // The key loses its own part along the query, so that the logit equals the strength exactly.
                let root = (dim as f32).sqrt();
                let move_by = (self.strength * root - dot(key, ask)) / dim as f32;
                key.iter_mut().zip(ask).for_each(|(k, a)| *k += move_by * a);
            }
        }
        self.weigh();
        for token in self.keys.chunks_exact_mut(per_token) {
            token.iter_mut().zip(&self.offset).for_each(|(k, o)| *k += o);
        }
        (&self.keys, &self.values)
    }

    /// Adds the weights of the chunk's tokens for each query. The offset is the same for all, so it is left
    /// out.
    fn weigh(&mut self) {
        let (dim, heads) = (self.shape.head_dim, self.shape.num_kv_heads);
        let scale = 1.0 / (dim as f32).sqrt();
        let (keys, strength) = (&self.keys, self.strength);
        let asks = self.asks.par_chunks_exact(dim).enumerate();
        self.weight.par_iter_mut().zip(asks).for_each(|(weight, (i, ask))| {
            let of_head = keys.chunks_exact(dim).skip(i % heads).step_by(heads);
            *weight += of_head.map(|key| f64::from(dot(key, ask) * scale - strength).exp()).sum::<f64>();
        });
    }

    /// Mean weight of the needles in exact attention, after all tokens are made.
    pub(crate) fn exact_weight(&self) -> f64 {
        self.weight.iter().map(|sum| 1.0 / sum).sum::<f64>() / self.weight.len() as f64
    }

    /// The needle that a query head searches for. Heads of a group search for different needles.
    pub(crate) fn needle_of(&self, turn: usize, head: usize) -> usize {
        (turn + head % self.shape.group()) % (self.weight.len() / self.shape.num_kv_heads)
    }

    /// `[num_heads, head_dim]`
    pub(crate) fn queries(&self, turn: usize) -> Vec<f32> {
        let ask = |head| {
            vector(&self.asks, self.shape, self.needle_of(turn, head), head / self.shape.group()).iter()
        };
        (0..self.shape.num_heads).flat_map(ask).copied().collect()
    }

    /// The value that the query of a needle should return.
    pub(crate) fn value(&self, needle: usize, kv_head: usize) -> &[f32] {
        vector(&self.answers, self.shape, needle, kv_head)
    }
}

/// One vector of `[needles, num_kv_heads, head_dim]`.
fn vector(all: &[f32], shape: KvShape, needle: usize, kv_head: usize) -> &[f32] {
    &all[(needle * shape.num_kv_heads + kv_head) * shape.head_dim..][..shape.head_dim]
}

fn normals(random: &mut ChaCha8Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| StandardNormal.sample(random)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed in f64, over all tokens at once.
    #[test]
    fn needles_have_the_logit_that_was_asked_for_and_the_weight_that_follows() {
        let shape = KvShape::new(1, 4, 2, 64);
        let (tokens, needles, strength) = (2500, 3, 13.0);
        let mut hay = Haystack::new(shape, tokens, needles, strength, 1);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for first in (0..tokens).step_by(CHUNK) {
            let (k, v) = hay.chunk(first);
            keys.extend_from_slice(k);
            values.extend_from_slice(v);
        }
        assert_eq!(keys.len(), tokens * 2 * 64);
        let mut weights = 0.0;
        for turn in 0..needles {
            let queries = hay.queries(turn);
            for head in 0..4 {
                let query = &queries[head * 64..][..64];
                let logit = |token: usize| -> f64 {
                    let key = &keys[(token * 2 + head / 2) * 64..][..64];
                    key.iter().zip(query).map(|(k, q)| f64::from(k * q)).sum::<f64>() / 8.0
                };
                let at = hay.position(hay.needle_of(turn, head));
                let others: Vec<f64> = (0..tokens).filter(|&token| token != at).map(logit).collect();
                let mean = others.iter().sum::<f64>() / others.len() as f64;
                let spread = others.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / others.len() as f64;
                assert!((logit(at) - mean - 13.0).abs() < 0.1, "{} {mean}", logit(at));
                assert!((spread - 1.0).abs() < 0.2, "{spread}");
                weights += 1.0 / (1.0 + others.iter().map(|l| (l - logit(at)).exp()).sum::<f64>());
                let value = &values[(at * 2 + head / 2) * 64..][..64];
                assert_eq!(value, hay.value(hay.needle_of(turn, head), head / 2));
            }
        }
        assert!((hay.exact_weight() - weights / 12.0).abs() < 1e-4, "{} {weights}", hay.exact_weight());
        assert!(hay.exact_weight() > 0.98);
    }
}

//! The rules of a token's life that the cache of a sequence and the cache of slots share: those of
//! [`tqkv_core::life`], and what follows from them on a computer.

pub use tqkv_core::life::PAGE_TOKENS;
pub(crate) use tqkv_core::life::{
    BATCH, KEY_SHARE, LEARN_TOKENS, LEAST_QUERIES, LEAST_SEEN, LEAST_VALUES, MEAN_TOKENS, VALUE_SHARE,
    centres_values, first_values, leaving,
};

/// Tokens that have left a sliding window and are kept for a rollback. This is more than a page, because only
/// complete pages are evicted.
pub(crate) const ROLLBACK: usize = 2 * PAGE_TOKENS;

/// Most rows that are taken up, or encoded, in one piece. It bounds the memory of the work.
pub(crate) const PIECE: usize = 64;

/// Most rows that a ring takes up in one piece, because its rows take their memory at the start.
pub(crate) const RING_PIECE: usize = 4 * BATCH;

/// Number of newer tokens from which a page is in a tier that begins after `after` tokens. A page is full once its last
/// token and the rest of that batch have left the hot window.
pub(crate) fn cold_age(after: usize, hot: usize) -> usize {
    after.max(hot + BATCH - 1)
}

/// Writes the mean of vectors (`[n, dim]`), and returns the share of their energy that it holds.
pub(crate) fn mean_of(vectors: &[f32], mean: &mut [f32]) -> f32 {
    let count = (vectors.len() / mean.len()) as f32;
    let mut energy = 0.0;
    mean.fill(0.0);
    for vector in vectors.chunks_exact(mean.len()) {
        for (m, x) in mean.iter_mut().zip(vector) {
            *m += x;
            energy += x * x;
        }
    }
    mean.iter_mut().for_each(|m| *m /= count);
    let mean_energy: f32 = mean.iter().map(|m| m * m).sum();
    if energy > 0.0 { mean_energy * count / energy } else { 0.0 }
}

/// Subtracts a mean from vectors (`[n, dim]`); an empty mean changes nothing.
pub(crate) fn subtract(vectors: &mut [f32], mean: &[f32]) {
    for vector in vectors.chunks_exact_mut(mean.len().max(1)) {
        vector.iter_mut().zip(mean).for_each(|(x, m)| *x -= m);
    }
}

/// Adds a mean to vectors (`[n, dim]`); an empty mean changes nothing.
pub(crate) fn add(vectors: &mut [f32], mean: &[f32]) {
    for vector in vectors.chunks_exact_mut(mean.len().max(1)) {
        vector.iter_mut().zip(mean).for_each(|(x, m)| *x += m);
    }
}

/// Adds a mean to weighted sums (`[n, dim]`) of vectors that were stored less that mean, for the weights that
/// these got (`[n, vectors]`). An empty mean changes nothing.
pub(crate) fn add_weighted(sums: &mut [f32], weights: &[f32], mean: &[f32]) {
    if mean.is_empty() {
        return;
    }
    let vectors = weights.len() * mean.len() / sums.len().max(1);
    let weights = weights.chunks_exact(vectors.max(1));
    for (sum, weights) in sums.chunks_exact_mut(mean.len()).zip(weights) {
        let weight: f32 = weights.iter().sum();
        sum.iter_mut().zip(mean).for_each(|(sum, x)| *sum += weight * x);
    }
}

/// Logits l become cap * tanh(l / cap).
pub(crate) fn cap(logits: &mut [f32], soft_cap: f32) {
    logits.iter_mut().for_each(|logit| *logit = soft_cap * (*logit / soft_cap).tanh());
}

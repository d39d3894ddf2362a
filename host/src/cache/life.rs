//! The rules of a token's life that the cache of a sequence and the cache of slots share.
//!
//! The newest rows stay f16. Older ones leave in groups of [`BATCH`] and become codes in pages of
//! [`PAGE_TOKENS`]. Keys wait for the mean of the first [`MEAN_TOKENS`] that leave, and with a map for the
//! first [`LEARN_TOKENS`]. Values do not wait for theirs.

use tqkv_core::CodecId;

/// Number of tokens in a full page.
pub const PAGE_TOKENS: usize = 128;

/// Number of tokens that leave the hot window together. Encoders are faster with several vectors.
pub(crate) const BATCH: usize = 4;

/// Tokens behind a sliding window that are kept for a rollback. This is more than a page, because only whole
/// pages are evicted.
pub(crate) const ROLLBACK: usize = 2 * PAGE_TOKENS;

/// Most rows that are taken up, or encoded, in one piece. It bounds the memory of the work.
pub(crate) const PIECE: usize = 64;

/// Number of keys in the first mean, and of values in theirs. Keys wait uncompressed until there are this many.
pub(crate) const MEAN_TOKENS: usize = 64;

/// Share of the keys' energy in the mean from which [`super::Centring::Auto`] centres them.
///
/// Subtracting a mean with a share s of the energy divides the squared error by 1 / (1 - s). Below a few
/// percent the gain is smaller than the spread between rotation seeds.
pub(crate) const KEY_SHARE: f32 = 0.05;

/// The same for values. Attention may go to tokens whose values are short, and a mean that only others have makes
/// these longer, and so their error. At a share of nearly a half nearly all values have the mean.
pub(crate) const VALUE_SHARE: f32 = 0.45;

/// Fewest values that give a mean.
pub(crate) const LEAST_VALUES: usize = 16;

/// True if values in this code are stored less their mean. Codes of eight bits lose so little that none gains, and
/// the mean would take more than the first of them save.
pub(crate) fn centres_values(id: CodecId) -> bool {
    id.bits() < 8
}

/// Number of values that give a mean when the first leave a window of `hot` tokens, however they came; 0 if
/// these are too few.
pub(crate) fn first_values(hot: usize) -> usize {
    let held = if hot < BATCH { 0 } else { hot + BATCH };
    if held < LEAST_VALUES { 0 } else { held.min(MEAN_TOKENS) }
}

/// Number of keys that teach a map. They wait uncompressed.
pub(crate) const LEARN_TOKENS: usize = 128;

/// Fewest queries of a head from which a map is made.
pub(crate) const LEAST_QUERIES: usize = 16;

/// Fewest keys that a query must see to teach a map. Among few keys, each has much weight.
pub(crate) const LEAST_SEEN: usize = 64;

/// Number of rows to encode if `extra` rows lie beyond an exact window of `hot`.
pub(crate) fn leaving(hot: usize, extra: usize) -> usize {
    // With a window shorter than a batch, every row is encoded at once.
    if hot < BATCH { extra } else { extra / BATCH * BATCH }
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

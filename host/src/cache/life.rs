//! The rules of a token's life that the cache of a sequence and the cache of slots share.
//!
//! The newest rows stay f16. Older ones leave in groups of [`BATCH`] and become codes in pages of
//! [`PAGE_TOKENS`]. Keys wait for the mean of the first [`MEAN_TOKENS`] that leave, and with a map for the
//! first [`LEARN_TOKENS`].

/// Number of tokens in a full page.
pub const PAGE_TOKENS: usize = 128;

/// Number of tokens that leave the hot window together. Encoders are faster with several vectors.
pub(crate) const BATCH: usize = 4;

/// Most rows that are taken up, or encoded, in one piece. It bounds the memory of the work.
pub(crate) const PIECE: usize = 64;

/// Number of keys in the first mean. They wait uncompressed until there are this many.
pub(crate) const MEAN_TOKENS: usize = 64;

/// Share of energy in the mean from which [`super::Centring::Auto`] centres.
///
/// Subtracting a mean with a share s of the energy divides the squared error by 1 / (1 - s). Below a few
/// percent the gain is smaller than the spread between rotation seeds.
pub(crate) const AUTO_SHARE: f32 = 0.05;

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

/// Logits l become cap * tanh(l / cap).
pub(crate) fn cap(logits: &mut [f32], soft_cap: f32) {
    logits.iter_mut().for_each(|logit| *logit = soft_cap * (*logit / soft_cap).tanh());
}

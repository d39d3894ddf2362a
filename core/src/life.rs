//! The rules of a token's life that every cache shares, on a CPU, on a GPU and in Python.
//!
//! The first [`SINKS`] rows and the newest [`HOT`] stay exact. Older ones leave in groups of [`BATCH`] and become codes
//! in pages of [`PAGE_TOKENS`]. Keys wait for the mean of the first [`MEAN_TOKENS`] that leave, and with a map for the
//! first [`LEARN_TOKENS`]. Values do not wait for theirs.

use crate::CodecId;

/// Number of first tokens that stay exact unless a cache is told otherwise. Attention concentrates on them, whatever
/// their text.
pub const SINKS: usize = 4;

/// Number of newest tokens that stay exact unless a cache is told otherwise.
pub const HOT: usize = 64;

/// Number of tokens in a full page.
pub const PAGE_TOKENS: usize = 128;

/// Number of tokens that leave the hot window together. Encoders are faster with several vectors.
pub const BATCH: usize = 4;

/// Number of keys in the first mean, and of values in theirs. Keys wait uncompressed until there are this many.
pub const MEAN_TOKENS: usize = 64;

/// Share of the keys' energy in the mean from which keys are centred, unless a cache is told otherwise.
///
/// Subtracting a mean with a share s of the energy divides the squared error by 1 / (1 - s). Below a few
/// percent the gain is smaller than the spread between rotation seeds.
pub const KEY_SHARE: f32 = 0.05;

/// The same for values. Attention may go to tokens whose values are short, and a mean that only others have makes
/// these longer, and so their error. At a share of nearly a half nearly all values have the mean.
pub const VALUE_SHARE: f32 = 0.45;

/// Fewest values that give a mean.
pub const LEAST_VALUES: usize = 16;

/// Number of keys that teach a map. They wait uncompressed.
pub const LEARN_TOKENS: usize = 128;

/// Fewest queries of a head from which a map is made.
pub const LEAST_QUERIES: usize = 16;

/// Fewest keys that a query must see to teach a map. Among few keys, each has much weight.
pub const LEAST_SEEN: usize = 64;

/// True if values in this code are stored less their mean. Codes of eight bits lose so little that none gains, and
/// the mean would take more than the first of them save.
#[must_use]
pub fn centres_values(id: CodecId) -> bool {
    id.bits() < 8
}

/// Number of values that give a mean when the first leave a window of `hot` tokens, however they came; 0 if
/// these are too few.
#[must_use]
pub fn first_values(hot: usize) -> usize {
    let held = if hot < BATCH { 0 } else { hot + BATCH };
    if held < LEAST_VALUES { 0 } else { held.min(MEAN_TOKENS) }
}

/// Number of rows to encode if `extra` rows lie beyond an exact window of `hot`.
#[must_use]
pub fn leaving(hot: usize, extra: usize) -> usize {
    // With a window shorter than a batch, every row is encoded at once.
    if hot < BATCH { extra } else { extra / BATCH * BATCH }
}

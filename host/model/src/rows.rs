//! Some of the tokens of a chunk.

use std::ops::Range;

/// Where the values of `tokens` lie among `len` values of `n` tokens. Latent vectors have no values, so `len` may be 0.
pub(crate) fn rows_of(tokens: &Range<usize>, len: usize, n: usize) -> Range<usize> {
    let width = len / n.max(1);
    tokens.start * width..tokens.end * width
}

//! A window of tokens.

use std::ops::Range;

/// Tokens that a model reads from an empty cache, and the positions whose predictions are scored.
pub(crate) struct Window {
    pub(crate) tokens: Vec<u32>,
    pub(crate) scored: Vec<Range<usize>>,
}

//! A window of tokens.

use std::ops::Range;

/// Tokens that a model reads from an empty cache, and the positions whose predictions are scored.
pub(crate) struct Window {
    pub(crate) tokens: Vec<u32>,
    pub(crate) scored: Vec<Range<usize>>,
}

impl Window {
    /// A window that is scored from position `from` on.
    pub(crate) fn scored_from(from: usize, tokens: Vec<u32>) -> Self {
        let scored = std::iter::once(from..tokens.len()).collect();
        Self { tokens, scored }
    }
}

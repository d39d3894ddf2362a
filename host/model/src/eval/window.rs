//! A window of tokens.

use super::recall::Part;
use std::ops::Range;

/// Tokens that a model reads from an empty cache, and the positions whose predictions are scored.
pub(crate) struct Window {
    pub(crate) tokens: Vec<u32>,
    pub(crate) scored: Vec<Range<usize>>,
    /// Tokens before the first question.
    pub(super) prefix: usize,
    /// For each span of `scored` where the text told what it asks for. Empty if the text does not say.
    pub(super) depths: Vec<Depth>,
}

/// Where a text tells what it asks for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    FirstPage,
    Middle,
    End,
}

impl Depth {
    pub(super) const ALL: [Self; 3] = [Self::FirstPage, Self::Middle, Self::End];
}

impl Window {
    /// A window that is scored from position `from` on.
    pub(crate) fn scored_from(from: usize, tokens: Vec<u32>) -> Self {
        let scored = std::iter::once(from..tokens.len()).collect();
        Self { tokens, scored, prefix: from, depths: Vec::new() }
    }

    /// A window of what comes before the first question.
    pub(super) fn before_questions(tokens: Vec<u32>) -> Self {
        Self { prefix: tokens.len(), tokens, scored: Vec::new(), depths: Vec::new() }
    }

    /// Adds a part, whose tokens are scored if it says so.
    pub(super) fn ask(&mut self, part: Part) {
        if part.is_scored {
            // Position p predicts token p + 1.
            self.scored.push(self.tokens.len() - 1..self.tokens.len() + part.tokens.len() - 1);
        }
        self.tokens.extend(part.tokens);
    }
}

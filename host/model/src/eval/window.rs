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
    pub(super) asks: Asks,
}

/// What a text asks for.
pub(super) enum Asks {
    /// It goes on.
    Nothing,
    /// Each scored part is an answer, which is right if all of its tokens are the likeliest ones.
    Parts,
    /// The scored part is the answer to its one question, and the model also generates one.
    Answer(Answer),
}

/// An answer that is generated.
pub(super) struct Answer {
    /// The strings that it must have.
    pub(super) wanted: Vec<String>,
    /// Tokens before it.
    pub(super) begin: usize,
    /// Most tokens.
    pub(super) most: usize,
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
        Self { tokens, scored, prefix: from, depths: Vec::new(), asks: Asks::Nothing }
    }

    /// A window of what comes before the first question.
    pub(super) fn before_questions(tokens: Vec<u32>) -> Self {
        let (scored, depths) = (Vec::new(), Vec::new());
        Self { prefix: tokens.len(), tokens, scored, depths, asks: Asks::Parts }
    }

    /// Adds a part, whose tokens are scored if it says so.
    pub(super) fn ask(&mut self, part: Part) {
        if part.is_scored {
            // Position p predicts token p + 1.
            self.scored.push(self.tokens.len() - 1..self.tokens.len() + part.tokens.len() - 1);
        }
        self.tokens.extend(part.tokens);
    }

    /// Adds the answer to the one question. A generated one, of `most` tokens at most, must have the strings `wanted`.
    pub(super) fn answer_with(&mut self, tokens: Vec<u32>, wanted: Vec<String>, most: usize) {
        self.asks = Asks::Answer(Answer { wanted, begin: self.tokens.len(), most });
        self.ask(Part { tokens, is_scored: true });
    }

    /// The answer that is generated, if any.
    pub(super) fn answer(&self) -> Option<&Answer> {
        if let Asks::Answer(answer) = &self.asks { Some(answer) } else { None }
    }
}

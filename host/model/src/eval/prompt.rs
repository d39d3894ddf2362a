//! What the tokens of a prompt read of a cache.

use super::window::Window;
use std::ops::Range;
use std::str::FromStr;

/// What the tokens of prompts read. What comes later always reads codes.
///
/// The caches of this library read every prompt as if it came token by token. Engines compute the attention of a prompt
/// over its own keys and values before they are coded, so there it matters what was one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt {
    /// Older tokens as codes.
    Codes,
    /// Exact keys and values up to the first question, and codes from it on: the text before it was a prompt of an
    /// engine, and its codes are found again for the questions.
    Restored,
    /// Exact keys and values, also in each question. Only answers read codes, from their second token on.
    Cold,
}

impl Prompt {
    const ALL: [(&str, Self); 3] =
        [("codes", Self::Codes), ("restored", Self::Restored), ("cold", Self::Cold)];

    /// The forward passes of a window, and whether their tokens read exact keys and values.
    ///
    /// Passes have `step` tokens, but what comes before the first scored token is one prompt, and so is each part that
    /// reads exact keys. A question whose answer is generated is the end of a pass.
    pub(super) fn passes(self, window: &Window, step: Option<usize>) -> Vec<(Range<usize>, bool)> {
        let len = window.tokens.len();
        let first = window.scored.first().map_or(0, |scored| scored.start);
        let mut parts = Vec::new();
        let mut at = 0;
        let mut part = |end: usize, exact: bool| parts.push((std::mem::replace(&mut at, end)..end, exact));
        match self {
            Self::Codes if step.is_some() => part(first, false),
            Self::Codes => {}
            Self::Restored => part(window.prefix, true),
            Self::Cold => {
                for scored in &window.scored {
                    // The last token of a question is scored first, and the last one of an answer is not.
                    part(scored.start + 1, true);
                    part((scored.end + 1).min(len), false);
                }
            }
        }
        part(len, self == Self::Cold);
        let question = window.answer().map_or(len, |answer| answer.begin);
        let cut = |(range, exact): (Range<usize>, bool)| {
            let at = question.clamp(range.start, range.end);
            [(range.start..at, exact), (at..range.end, exact)]
        };
        let passes = parts.into_iter().flat_map(cut).filter(|(range, _)| !range.is_empty()).flat_map(
            |(range, exact)| {
                let is_prompt = exact || range.end <= first;
                let step = step.filter(|_| !is_prompt).unwrap_or(range.len()).max(1);
                range.clone().step_by(step).map(move |start| (start..range.end.min(start + step), exact))
            },
        );
        passes.collect()
    }
}

impl FromStr for Prompt {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(own, _)| *own == name);
        found.map(|(_, prompt)| prompt).ok_or_else(|| {
            format!("prompts do not read '{name}': expected {}", Self::ALL.map(|(own, _)| own).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_cover_the_window_and_answers_read_codes() {
        // A text of 6 tokens; questions of 2 with answers of 3 and 1 tokens.
        let mut window = Window { prefix: 6, ..Window::scored_from(0, vec![0; 14]) };
        window.scored = vec![7..10, 12..13];
        let passes = |prompt: Prompt, step| prompt.passes(&window, step);
        assert_eq!(passes(Prompt::Codes, None), [(0..14, false)]);
        assert_eq!(passes(Prompt::Codes, Some(4)), [(0..7, false), (7..11, false), (11..14, false)]);
        assert_eq!(passes(Prompt::Restored, None), [(0..6, true), (6..14, false)]);
        let cold = [(0..8, true), (8..11, false), (11..13, true), (13..14, false)];
        assert_eq!(passes(Prompt::Cold, None), cold);
        let by_one = passes(Prompt::Cold, Some(1));
        assert_eq!(by_one.iter().filter(|(range, exact)| !exact && range.len() == 1).count(), 4);
        // A question whose answer is generated is the end of a pass.
        let mut asking = Window::before_questions(vec![0; 6]);
        asking.answer_with(vec![0; 3], Vec::new(), 6);
        for prompt in [Prompt::Codes, Prompt::Restored] {
            let exact = prompt == Prompt::Restored;
            assert_eq!(prompt.passes(&asking, None), [(0..6, exact), (6..9, false)]);
        }
        assert_eq!(Prompt::Codes.passes(&asking, Some(4)), [(0..5, false), (5..6, false), (6..9, false)]);
        // Nothing comes before running text.
        let plain = Window::scored_from(0, vec![0; 5]);
        assert_eq!(Prompt::Restored.passes(&plain, None), [(0..5, false)]);
        assert_eq!(
            Prompt::Cold.passes(&Window::scored_from(2, vec![0; 5]), None),
            [(0..3, true), (3..5, false)]
        );
    }

    #[test]
    fn names_are_those_that_an_error_lists() {
        assert!(Prompt::ALL.iter().all(|(name, prompt)| name.parse() == Ok(*prompt)));
        assert!("warm".parse::<Prompt>().unwrap_err().contains("expected codes, restored, cold"));
    }
}

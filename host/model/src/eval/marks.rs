//! Texts of which only the parts between two marks are scored, such as the answers to questions.

use super::{EvalReport, EvalSpec, Progress, Setting, Window, report};
use crate::tokenizer::TextStream;
use crate::{Model, ModelError, SpecialTokens};
use std::ops::Range;

/// A text without its marks, and where they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    text: String,
    /// Bytes of `text` that stood between marks, in order.
    parts: Vec<Range<usize>>,
}

impl Marked {
    /// Takes the marks `begin` and `end` out of a text.
    ///
    /// # Errors
    /// [`ModelError::Evaluation`] for a text that is not UTF-8, marks that are empty or equal, a mark without its
    /// other one, nothing between two marks, and a text without marks.
    pub fn new(text: &[u8], [begin, end]: [&str; 2]) -> Result<Self, ModelError> {
        let refused = |why: String| Err(ModelError::Evaluation(why));
        if begin.is_empty() || end.is_empty() || begin == end {
            return refused(format!("the marks '{begin}' and '{end}': expected two different ones"));
        }
        let Ok(text) = std::str::from_utf8(text) else {
            return refused("a text with marks: expected UTF-8".to_owned());
        };
        let mut marked = Self { text: String::with_capacity(text.len()), parts: Vec::new() };
        let mut pieces = text.split(begin);
        marked.add(pieces.next().unwrap_or_default(), end)?;
        for piece in pieces {
            let Some((part, after)) = piece.split_once(end) else {
                let place = marked.text.lines().count();
                return refused(format!(
                    "a '{begin}' in or near line {place} has no '{end}': expected one before the next"
                ));
            };
            let from = marked.text.len();
            marked.text += part;
            if part.is_empty() {
                return refused(format!(
                    "nothing stands between '{begin}' and '{end}': expected text to score"
                ));
            }
            marked.parts.push(from..marked.text.len());
            marked.add(after, end)?;
        }
        if marked.parts.is_empty() {
            return refused(format!(
                "the text has no '{begin}': expected answers between '{begin}' and '{end}'"
            ));
        }
        Ok(marked)
    }

    /// Adds text outside of marks.
    fn add(&mut self, text: &str, end: &str) -> Result<(), ModelError> {
        if text.contains(end) {
            return Err(ModelError::Evaluation(format!(
                "a '{end}' has no mark before it that begins a part"
            )));
        }
        self.text += text;
        Ok(())
    }

    /// The text without its marks.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of windows of `context` tokens that have something to score.
    ///
    /// # Errors
    /// Texts that the tokeniser refuses or changes, and a `context` that the model does not accept.
    pub fn count_windows(&self, model: &Model, context: usize) -> Result<usize, ModelError> {
        self.all_windows(model, context).map(|windows| windows.len())
    }

    /// The windows that have something to score. The last one of the text may be shorter than the others.
    fn all_windows(&self, model: &Model, context: usize) -> Result<Vec<Window>, ModelError> {
        let beginning = model.beginning()?;
        let fresh = model.fresh_tokens(context, beginning.len())?;
        let tokens = model.tokenizer().encode(self.text.as_bytes(), SpecialTokens::Omit)?;
        let bytes = self.bytes_of(model, &tokens)?;
        let is_scored = |bytes: &Range<usize>| {
            let next = self.parts.partition_point(|part| part.end <= bytes.start);
            self.parts.get(next).is_some_and(|part| part.start < bytes.end)
        };
        let window = |(tokens, bytes): (&[u32], &[Range<usize>])| {
            let mut scored: Vec<Range<usize>> = Vec::new();
            let places = bytes.iter().enumerate().filter(|(_, bytes)| is_scored(bytes));
            // Position p predicts token p + 1.
            for position in places.filter_map(|(i, _)| (beginning.len() + i).checked_sub(1)) {
                match scored.last_mut() {
                    Some(span) if span.end == position => span.end += 1,
                    _ => scored.push(position..position + 1),
                }
            }
            let prefix = scored.first().map_or(0, |scored| scored.start);
            Window { scored, ..Window::scored_from(prefix, [&beginning, tokens].concat()) }
        };
        let windows = tokens.chunks(fresh).zip(bytes.chunks(fresh)).map(window);
        Ok(windows.filter(|window| !window.scored.is_empty()).collect())
    }

    /// The bytes of the text that each token stands for. Tokens that share a character have all its bytes.
    fn bytes_of(&self, model: &Model, tokens: &[u32]) -> Result<Vec<Range<usize>>, ModelError> {
        let mut stream = TextStream::after(model.tokenizer(), &[]);
        let mut bytes = Vec::with_capacity(tokens.len());
        let mut at = 0;
        for (i, token) in tokens.iter().enumerate() {
            let mut piece = stream.push(*token)?;
            if i + 1 == tokens.len() {
                piece += &stream.finish()?;
            }
            let waiting = i - bytes.len();
            // A token without text, such as a special one, stands for what is left out before the next one.
            let found = self.text[at..].find(&piece).filter(|&skipped| skipped == 0 || waiting > 0 || i == 0);
            let Some(skipped) = found else {
                return Err(ModelError::Evaluation(format!(
                    "the tokeniser changes the text at byte {at}, so its marks have no place; expected a text that it gives back"
                )));
            };
            let last = i + 1 == tokens.len();
            if !piece.is_empty() || last {
                let end = if last { self.text.len() } else { at + skipped + piece.len() };
                bytes.resize(i + 1, at..end);
                at = end;
            }
        }
        Ok(bytes)
    }
}

/// Compares `settings` with `reference` on the marked parts of a text, one after the other. Windows without any are
/// left out, and the last window of the text may be shorter than `spec.context`.
///
/// # Errors
/// [`ModelError::Evaluation`] if there are fewer such windows than `spec.windows`, and the errors of
/// [`super::evaluate`].
pub fn evaluate_marked(
    model: &Model,
    text: &Marked,
    spec: &EvalSpec,
    reference: &Setting<'_>,
    settings: &[Setting<'_>],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<EvalReport, ModelError> {
    let mut windows = text.all_windows(model, spec.context)?;
    let count = spec.windows.unwrap_or(windows.len());
    if count == 0 || count > windows.len() {
        return Err(ModelError::Evaluation(format!(
            "{count} windows of {} tokens: expected 1 to {}, because as many have marked tokens",
            spec.context,
            windows.len()
        )));
    }
    windows.truncate(count);
    report(model, &windows, spec, (reference, settings), progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    fn windows(text: &str, context: usize) -> Vec<Window> {
        let marked = Marked::new(text.as_bytes(), ["<<", ">>"]).unwrap();
        marked.all_windows(&Model::shipped().unwrap(), context).unwrap()
    }

    /// The tokens of the shipped model are bytes, so what is scored can be read.
    #[test]
    fn marks_are_removed_and_only_what_they_enclose_is_scored() {
        let filler = "running text ".repeat(8);
        let text = format!("the sky is <<blue>> and <<grass \u{e4}>><<!>> {filler}is long. <<Yes>>.");
        let windows = windows(&text, 40);
        let read = |bytes: &[u32]| String::from_utf8(bytes.iter().map(|byte| *byte as u8).collect()).unwrap();
        let all: String = windows.iter().map(|window| read(&window.tokens)).collect();
        assert!(!all.contains(['<', '>']), "{all}");
        let scored: Vec<_> = windows
            .iter()
            .map(|window| window.scored.iter().map(|span| read(&window.tokens[span.start + 1..=span.end])))
            .map(Iterator::collect::<Vec<_>>)
            .collect();
        // Windows without marks are left out, and the last one is shorter.
        assert_eq!(scored, [vec!["blue", "grass \u{e4}!"], vec!["Yes"]]);
        assert!(windows[0].tokens.len() == 40 && windows[1].tokens.len() < 40, "{all}");
    }

    /// A token counts if any of it is marked, such as a word with the space before it. A special token has no text, and
    /// one that reads a capital letter as a small one does not give its text back.
    #[test]
    fn tokens_are_found_in_the_text() {
        let words = ["\u{2581}sky", "\u{2581}is", "\u{2581}blue", "\u{2581}now", "<s>"];
        let vocab: serde_json::Map<_, _> =
            words.iter().zip(0..).map(|(word, id)| ((*word).to_owned(), serde_json::json!(id))).collect();
        let spaces =
            serde_json::json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "never" });
        let json = serde_json::json!({ "version": "1.0", "normalizer": { "type": "Lowercase" },
            "pre_tokenizer": spaces, "decoder": spaces, "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<s>" },
            "added_tokens": [{ "id": 4, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false }] });
        let json = json.to_string();
        let model = Model::from_bytes("w", shipped::CONFIG, shipped::WEIGHTS, Some(json.as_bytes())).unwrap();
        let windows = |text: &str| Marked::new(text.as_bytes(), ["[", "]"]).unwrap().all_windows(&model, 64);
        for (text, tokens, scored) in [
            (" sky is [blue] now", vec![0, 1, 2, 3], 1..2),
            (" sky<s> is [blue now]<s> sky", vec![0, 4, 1, 2, 3, 4, 0], 2..4),
            ("<s> sky[ is] blue", vec![4, 0, 1, 2], 1..2),
        ] {
            let window = windows(text).unwrap().remove(0);
            assert_eq!((window.tokens, window.scored), (tokens, vec![scored]), "{text}");
        }
        let changed = windows(" sky Is [blue]").err().unwrap().to_string();
        assert!(changed.contains("at byte 4"), "{changed}");
    }

    #[test]
    fn texts_without_two_marks_are_refused() {
        for (text, marks, said) in [
            ("nothing here", ["<<", ">>"], "has no '<<'"),
            ("open << here", ["<<", ">>"], "line 1 has no '>>'"),
            ("open <<a <<b>>", ["<<", ">>"], "line 1 has no '>>'"),
            ("<<a>> closed >> here", ["<<", ">>"], "a '>>' has no mark before it"),
            ("empty <<>>", ["<<", ">>"], "nothing stands between"),
            ("a|b|", ["|", "|"], "expected two different"),
            ("a|b|", ["", "|"], "expected two different"),
        ] {
            let error = Marked::new(text.as_bytes(), marks).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(Marked::new(b"<<\xff>>", ["<<", ">>"]).unwrap_err().to_string().contains("UTF-8"));
    }
}

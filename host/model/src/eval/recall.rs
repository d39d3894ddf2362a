//! Texts whose next tokens stand far back: what a long context is used for, and what running text hardly asks.
//!
//! A text of a kind has three parts. First comes what must be remembered, then running text, then a part whose
//! tokens follow from the first. Only these tokens are scored, and the cue before each of them is input. Words
//! and running text come from the user's text, so the set exists in its language and on every model. The same
//! text, context and sample make the same tokens.

use super::{EvalResult, EvalSpec, Progress, Setting, Window, compare};
use crate::{Model, ModelError, SpecialTokens};
use fastrand::Rng;
use std::collections::HashSet;

/// What a text asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// Running text as it is, every token scored.
    Prose,
    /// A passage that comes again, word for word.
    Copy,
    /// A list of words with numbers of five digits that comes again, in the same order.
    List,
    /// The same kind of list, its numbers asked for in another order.
    Pairs,
    /// Structs of Rust that are written again, in another order.
    Code,
    /// Facts that a user told in a conversation.
    Turns,
    /// Running text after as many tokens of code and numbers, which teach a cache little about it.
    Change,
}

impl Recall {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 7] =
        [Self::Prose, Self::Copy, Self::List, Self::Pairs, Self::Code, Self::Turns, Self::Change];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prose => "prose",
            Self::Copy => "copy",
            Self::List => "list",
            Self::Pairs => "pairs",
            Self::Code => "code",
            Self::Turns => "turns",
            Self::Change => "change",
        }
    }
}

/// Compares `settings` with `reference` on every kind of [`Recall`], `spec.windows` texts of each (one if it is
/// `None`), `spec.context` tokens long. Returns a result per kind, for the reference and then for each setting.
///
/// # Errors
/// [`ModelError::Evaluation`] if the text or the context is too short, and the errors of [`super::evaluate`].
pub fn evaluate_recall(
    model: &Model,
    text: &[u8],
    spec: &EvalSpec,
    reference: &Setting<'_>,
    settings: &[Setting<'_>],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Vec<EvalResult>>, ModelError> {
    let samples = spec.windows.unwrap_or(1);
    let texts = model.windows(text, &EvalSpec { windows: Some(samples), ..*spec })?;
    let words = words(text)?;
    let make = |kind: Recall| -> Result<Vec<Window>, ModelError> {
        texts.iter().zip(0..).map(|(text, sample)| window(model, kind, text, &words, sample)).collect()
    };
    let sets = Recall::ALL.into_iter().map(make).collect::<Result<Vec<_>, _>>()?;
    let sets: Vec<_> = sets.iter().map(Vec::as_slice).collect();
    compare(model, &sets, spec, (reference, settings), progress)
}

/// Words that a text must have: a struct needs seven of them.
const LEAST_WORDS: usize = 64;

/// The different words of a text, 4 to 9 letters long, in its order.
fn words(text: &[u8]) -> Result<Vec<String>, ModelError> {
    let text = String::from_utf8_lossy(text).to_lowercase();
    let mut seen = HashSet::new();
    let words: Vec<_> = text
        .split(|letter: char| !letter.is_alphabetic())
        .filter(|word| (4..=9).contains(&word.chars().count()) && seen.insert(*word))
        .map(str::to_owned)
        .collect();
    if words.len() < LEAST_WORDS {
        return Err(ModelError::Evaluation(format!(
            "the text has {} different words of 4 to 9 letters, too few to ask for; accepted: {LEAST_WORDS} or more",
            words.len()
        )));
    }
    Ok(words)
}

/// A text of a kind, as long as `text`, a window of running text.
fn window(
    model: &Model,
    kind: Recall,
    text: &[u32],
    words: &[String],
    sample: u64,
) -> Result<Window, ModelError> {
    let context = text.len();
    let begin = model.first_tokens(b"", usize::MAX)?.len();
    let (beginning, text) = text.split_at(begin);
    let mut material = Material { model, words, random: Rng::with_seed(sample), most: context / 4 };
    let (told, asked) = match kind {
        Recall::Prose => {
            return Ok(Window::scored_from(0, [beginning, text].concat()));
        }
        Recall::Copy => material.copy(&text[text.len() / 2..])?,
        Recall::List => material.list(true)?,
        Recall::Pairs => material.list(false)?,
        Recall::Code => material.code()?,
        Recall::Turns => material.turns()?,
        Recall::Change => material.change(text, context / 2)?,
    };
    let taken = begin + told.len() + asked.iter().map(|part| part.tokens.len()).sum::<usize>();
    let Some(between) = context.checked_sub(taken).filter(|_| asked.iter().any(|part| part.is_scored)) else {
        return Err(ModelError::Evaluation(format!(
            "windows of {context} tokens are too short for the text '{}'; expected 512 or more",
            kind.name()
        )));
    };
    let mut tokens = [beginning, &told, &text[..between]].concat();
    let mut scored = Vec::new();
    for part in asked {
        if part.is_scored {
            // Position p predicts token p + 1.
            scored.push(tokens.len() - 1..tokens.len() + part.tokens.len() - 1);
        }
        tokens.extend(part.tokens);
    }
    Ok(Window { tokens, scored })
}

/// A piece of the last part of a text.
struct Part {
    tokens: Vec<u32>,
    is_scored: bool,
}

/// What must be remembered, and what asks for it.
type Told = (Vec<u32>, Vec<Part>);

/// Makes the parts of a text.
struct Material<'a> {
    model: &'a Model,
    words: &'a [String],
    random: Rng,
    /// Tokens of the first part, at most.
    most: usize,
}

impl Material<'_> {
    fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.model.tokenizer().encode(text.as_bytes(), SpecialTokens::Omit)
    }

    fn part(&self, text: &str, is_scored: bool) -> Result<Part, ModelError> {
        Ok(Part { tokens: self.encode(text)?, is_scored })
    }

    /// `count` different words.
    fn choose(&mut self, count: usize) -> Vec<String> {
        let mut words: Vec<_> = self.words.iter().collect();
        self.random.shuffle(&mut words);
        words.into_iter().take(count).cloned().collect()
    }

    /// A passage of `text`; the second time its first tokens are the cue.
    fn copy(&mut self, text: &[u32]) -> Result<Told, ModelError> {
        const CUE: usize = 16;
        let passage = &text[..self.most.min(text.len()).min(256)];
        let gap = self.encode("\n\n")?;
        let (cue, rest) = passage.split_at(CUE.min(passage.len()));
        let cue = Part { tokens: [&gap, cue].concat(), is_scored: false };
        let rest = Part { tokens: rest.to_vec(), is_scored: true };
        Ok(([passage, &gap].concat(), vec![cue, rest]))
    }

    /// Lines `word: 12345`. In order, all but the first line are scored; else the numbers alone.
    fn list(&mut self, in_order: bool) -> Result<Told, ModelError> {
        const LINES: usize = 26;
        let lines: Vec<_> = self.choose(LINES).into_iter().map(|word| (word, self.number())).collect();
        let mut told = self.encode("\n")?;
        let mut kept = Vec::new();
        for (word, number) in lines {
            let line = [self.part(&format!("{word}:"), in_order)?, self.part(&format!(" {number}\n"), true)?];
            if told.len() + line.iter().map(|part| part.tokens.len()).sum::<usize>() > self.most {
                break;
            }
            line.iter().for_each(|part| told.extend(&part.tokens));
            kept.push(line);
        }
        if in_order {
            kept.iter_mut().take(1).flatten().for_each(|part| part.is_scored = false);
        } else {
            self.random.shuffle(&mut kept);
        }
        let gap = self.part("\n\n", false)?;
        Ok((told, std::iter::once(gap).chain(kept.into_iter().flatten()).collect()))
    }

    fn number(&mut self) -> u32 {
        self.random.u32(10_000..100_000)
    }

    /// Definitions of structs with three fields. What follows a name is asked for.
    fn code(&mut self) -> Result<Told, ModelError> {
        const FIELDS: usize = 3;
        const STRUCTS: usize = 14;
        const TYPES: [&str; 4] = ["u32", "bool", "String", "f64"];
        let mut told = self.encode("\n")?;
        let mut kept = Vec::new();
        let words = self.choose(STRUCTS.min(self.words.len() / (FIELDS + 1)) * (FIELDS + 1));
        for words in words.chunks_exact(FIELDS + 1) {
            let (name, fields) = (capitalised(&words[0]), &words[1..]);
            let lines: String = fields
                .iter()
                .map(|field| format!("    {field}: {},\n", TYPES[self.random.usize(..TYPES.len())]))
                .collect();
            let definition = self.encode(&format!("struct {name} {{\n{lines}}}\n\n"))?;
            if told.len() + definition.len() > self.most {
                break;
            }
            told.extend(definition);
            let used = [
                self.part(&format!("struct {name} {{\n"), false)?,
                self.part(&format!("{lines}}}\n\n"), true)?,
            ];
            kept.push(used);
        }
        self.random.shuffle(&mut kept);
        let gap = self.part("\n\n", false)?;
        Ok((told, std::iter::once(gap).chain(kept.into_iter().flatten()).collect()))
    }

    /// Facts of a user, and questions about them in another order.
    fn turns(&mut self) -> Result<Told, ModelError> {
        let mut told = self.encode("\n")?;
        let mut kept = Vec::new();
        for (what, value) in FACTS {
            let turn = format!("User: The {what} is {value}.\nAssistant: Thank you, I will remember it.\n");
            let turn = self.encode(&turn)?;
            if told.len() + turn.len() > self.most {
                break;
            }
            told.extend(turn);
            let yours = what.replace("my ", "your ").replace("I ", "you ");
            let asked = format!("User: What is the {what}?\nAssistant: The {yours} is");
            kept.push([
                self.part(&asked, false)?,
                self.part(&format!(" {value}"), true)?,
                self.part(".\n", false)?,
            ]);
        }
        self.random.shuffle(&mut kept);
        let gap = self.part("\n\n", false)?;
        Ok((told, std::iter::once(gap).chain(kept.into_iter().flatten()).collect()))
    }

    /// `first` tokens of code and numbers, then running text up to the end.
    fn change(&mut self, text: &[u32], first: usize) -> Result<Told, ModelError> {
        let mut told = Vec::new();
        while told.len() < first {
            told.extend(self.code()?.0);
            told.extend(self.list(true)?.0);
        }
        told.truncate(first);
        let rest = text[..text.len() - first].to_vec();
        Ok((told, vec![Part { tokens: rest, is_scored: true }]))
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Facts that a user tells, and their values.
const FACTS: [(&str, &str); 12] = [
    ("name of my dog", "Bruno"),
    ("city where I live", "Lisbon"),
    ("name of my sister", "Clara"),
    ("color of my car", "green"),
    ("name of my teacher", "Mr. Holt"),
    ("capital of my country", "Madrid"),
    ("month of my birthday", "October"),
    ("name of my cat", "Smokey"),
    ("sport that I play", "tennis"),
    ("language that I learn", "Greek"),
    ("name of my street", "Mill Lane"),
    ("day of my exam", "Thursday"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    const CONTEXT: usize = 768;

    fn windows(kind: Recall, samples: u64) -> Vec<Window> {
        let model = Model::shipped().unwrap();
        let spec = EvalSpec::new(CONTEXT, Some(samples as usize));
        let texts = model.windows(shipped::HELDOUT_TEXT, &spec).unwrap();
        let words = words(shipped::HELDOUT_TEXT).unwrap();
        texts.iter().zip(0..samples).map(|(text, i)| window(&model, kind, text, &words, i).unwrap()).collect()
    }

    /// The tokens of the shipped model are bytes, so a piece that is asked for can be searched in what came before.
    #[test]
    fn what_is_asked_for_was_told_far_back() {
        for kind in Recall::ALL {
            for Window { tokens, scored } in windows(kind, 2) {
                assert_eq!(tokens.len(), CONTEXT, "{kind:?}");
                assert!(scored.windows(2).all(|pair| pair[0].end <= pair[1].start), "{kind:?}: {scored:?}");
                assert!(scored.iter().all(|span| span.start < span.end), "{kind:?}: {scored:?}");
                if matches!(kind, Recall::Prose | Recall::Change) {
                    continue;
                }
                let told = &tokens[..CONTEXT / 4];
                for span in scored {
                    assert!(span.start > CONTEXT / 2, "{kind:?}");
                    let asked = &tokens[span.start + 1..=span.end];
                    let found = told.windows(asked.len()).any(|piece| piece == asked);
                    let text = asked.iter().map(|byte| char::from(*byte as u8)).collect::<String>();
                    assert!(found, "{kind:?}: {text:?}");
                }
            }
        }
    }

    #[test]
    fn a_sample_is_always_the_same_and_unlike_the_next() {
        let [first, again] = [0; 2].map(|_| windows(Recall::Pairs, 2));
        assert_eq!(first[0].tokens, again[0].tokens);
        assert_ne!(first[0].tokens, first[1].tokens);
    }

    #[test]
    fn a_text_with_too_few_words_is_refused() {
        let error = words(b"one word and another word").unwrap_err().to_string();
        assert!(error.contains("2 different words") && error.contains("64 or more"), "{error}");
    }
}

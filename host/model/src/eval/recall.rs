//! Texts whose next tokens stand far back: what a long context is used for, and what running text hardly asks.
//!
//! A text of a kind has three parts: what must be remembered, running text, and a part whose tokens follow from the
//! first. Only these tokens are scored, and the cue before each of them is input. A table, facts, JSON and a chat are
//! told within the running text at every depth of it, and have figures for each depth ([`DepthFigures`]); the other
//! kinds tell everything before it. Words and running text come from the user's text, so the set exists in its
//! language and on every model. The same text, context and sample make the same tokens.
//!
//! [`DepthFigures`]: super::DepthFigures

mod documents;
mod material;
mod question;
mod ruler;
mod scattered;
mod spread;
mod tools;

use super::window::Asks;
use super::{EvalResult, EvalSpec, Progress, Setting, Window, compare};
use crate::{Model, ModelError};
use fastrand::Rng;
use material::Material;
pub(super) use material::Part;
use std::collections::HashSet;
use std::str::FromStr;

/// What a text asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// Running text as it is, every token scored.
    Prose,
    /// A passage that comes again, word for word.
    Copy,
    /// A list of words with numbers of five digits that comes again, in the same order.
    List,
    /// Rows of tables, asked for in another order.
    Table,
    /// Facts that are scattered in running text.
    Facts,
    /// Calls in JSON that are repeated.
    Json,
    /// A chat of turns, and questions about what was said in it.
    Chat,
    /// Structs of Rust that are written again, in another order.
    Code,
    /// Facts that a user told in a conversation.
    Turns,
    /// Calls of tools whose arguments were named in a list of tools.
    Calls,
    /// Sums of two prices that were told. Small models cannot add, whatever the cache.
    Sums,
    /// Running text after as many tokens of code and numbers, which teach a cache little about it.
    Change,
    /// Four keys with numbers in running text, of which one is asked for.
    Needles,
    /// Variables that were assigned in a chain, scattered in running text.
    Variables,
    /// The words that come most often in a list.
    Words,
    /// A question about one of several documents.
    Documents,
    /// A call in JSON, of a tool whose schema was given.
    Tools,
    /// Sums of two small numbers after running text that has nothing to do with them.
    Arithmetic,
}

impl Recall {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 18] = [
        Self::Prose,
        Self::Copy,
        Self::List,
        Self::Table,
        Self::Facts,
        Self::Json,
        Self::Chat,
        Self::Code,
        Self::Turns,
        Self::Calls,
        Self::Sums,
        Self::Change,
        Self::Needles,
        Self::Variables,
        Self::Words,
        Self::Documents,
        Self::Tools,
        Self::Arithmetic,
    ];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prose => "prose",
            Self::Copy => "copy",
            Self::List => "list",
            Self::Table => "table",
            Self::Facts => "facts",
            Self::Json => "json",
            Self::Chat => "chat",
            Self::Code => "code",
            Self::Turns => "turns",
            Self::Calls => "calls",
            Self::Sums => "sums",
            Self::Change => "change",
            Self::Needles => "needles",
            Self::Variables => "variables",
            Self::Words => "words",
            Self::Documents => "documents",
            Self::Tools => "tools",
            Self::Arithmetic => "arithmetic",
        }
    }
}

impl FromStr for Recall {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("no kind of text is named '{name}': expected {}", names()))
    }
}

/// Compares `settings` with `reference` on texts of `kinds`, `spec.windows` of each (one if it is `None`),
/// `spec.context` tokens long. Returns a result per kind, for the reference and then for each setting.
///
/// # Errors
/// [`ModelError::Evaluation`] if the text or the context is too short, and the errors of [`super::evaluate`].
pub fn evaluate_recall(
    model: &Model,
    (text, kinds): (&[u8], &[Recall]),
    spec: &EvalSpec,
    reference: &Setting<'_>,
    settings: &[Setting<'_>],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Vec<EvalResult>>, ModelError> {
    let samples = spec.windows.unwrap_or(1);
    let texts = model.windows(text, &EvalSpec { windows: Some(samples), ..*spec })?;
    compare_kinds(model, (text, kinds), (&texts, 0), spec, (reference, settings), progress)
}

/// First sample of [`evaluate_late_recall`].
const LATE: u64 = 1 << 32;

/// Like [`evaluate_recall`] on texts that it does not use, unless the text is too short for others: with running text from
/// the end, and other samples.
///
/// # Errors
/// The errors of [`evaluate_recall`].
pub(crate) fn evaluate_late_recall(
    model: &Model,
    (text, kinds): (&[u8], &[Recall]),
    spec: &EvalSpec,
    reference: &Setting<'_>,
    settings: &[Setting<'_>],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Vec<EvalResult>>, ModelError> {
    let samples = spec.windows.unwrap_or(1);
    let available = model.count_windows(text, spec.context)?;
    let texts = model.windows(text, &EvalSpec { windows: Some(samples.max(available)), ..*spec })?;
    let texts = &texts[texts.len() - samples..];
    compare_kinds(model, (text, kinds), (texts, LATE), spec, (reference, settings), progress)
}

/// Compares settings on texts of some kinds, which have one window of running text each. `first` is the first sample.
fn compare_kinds(
    model: &Model,
    (text, kinds): (&[u8], &[Recall]),
    (texts, first): (&[Vec<u32>], u64),
    spec: &EvalSpec,
    settings: (&Setting<'_>, &[Setting<'_>]),
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Vec<EvalResult>>, ModelError> {
    let words = words(text)?;
    let make = |kind: Recall| -> Result<Vec<Window>, ModelError> {
        texts.iter().zip(first..).map(|(text, sample)| window(model, kind, text, &words, sample)).collect()
    };
    let sets = kinds.iter().copied().map(make).collect::<Result<Vec<_>, _>>()?;
    let sets: Vec<_> = sets.iter().map(Vec::as_slice).collect();
    compare(model, &sets, spec, settings, progress)
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
    let short = |expected: usize| {
        ModelError::Evaluation(format!(
            "windows of {context} tokens are too short for the text '{}'; expected {expected} or more",
            kind.name()
        ))
    };
    let items = match kind {
        Recall::Table => Some(material.table()?),
        Recall::Facts => Some(material.facts()?),
        Recall::Json => Some(material.json()?),
        Recall::Chat => Some(material.chat()?),
        _ => None,
    };
    if let Some(items) = items {
        return items.lay((beginning, text), &mut material.random).ok_or_else(|| short(1024));
    }
    let question = match kind {
        Recall::Needles => Some(material.needles()?),
        Recall::Variables => Some(material.variables()?),
        Recall::Words => Some(material.common_words(text.len())?.ok_or_else(|| short(1024))?),
        Recall::Documents => Some(material.documents(text.len(), text)?.ok_or_else(|| short(1024))?),
        Recall::Tools => Some(material.tools()?),
        _ => None,
    };
    if let Some(question) = question {
        return question.lay((beginning, text), &mut material).ok_or_else(|| short(1024));
    }
    let (told, asked) = match kind {
        Recall::Copy => material.copy(&text[text.len() / 2..])?,
        Recall::List => material.list()?,
        Recall::Code => material.code()?,
        Recall::Turns => material.turns()?,
        Recall::Calls => material.calls()?,
        Recall::Sums => material.sums()?,
        Recall::Change => material.change(text, context / 2)?,
        Recall::Arithmetic => material.arithmetic()?,
        _ => return Ok(Window::scored_from(0, [beginning, text].concat())),
    };
    let taken = begin + told.len() + asked.iter().map(|part| part.tokens.len()).sum::<usize>();
    let between = context.checked_sub(taken).filter(|_| asked.iter().any(|part| part.is_scored));
    let between = between.ok_or_else(|| short(512))?;
    let tokens = [beginning, &told, &text[..between]].concat();
    let mut window = Window::before_questions(tokens);
    asked.into_iter().for_each(|part| window.ask(part));
    if matches!(kind, Recall::Copy | Recall::Change) {
        window.asks = Asks::Nothing;
    }
    Ok(window)
}

#[cfg(test)]
mod question_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::window::{Answer, Depth};
    use crate::shipped;

    const CONTEXT: usize = 1024;

    pub(super) fn windows(kind: Recall, samples: u64) -> Vec<Window> {
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
            for Window { tokens, scored, depths, asks, .. } in windows(kind, 2) {
                if let Asks::Answer(Answer { begin, most, .. }) = asks {
                    assert_eq!(begin + most, CONTEXT, "{kind:?}: a generated answer has room");
                    assert_eq!(scored.first(), Some(&(begin - 1..tokens.len() - 1)), "{kind:?}");
                    continue;
                }
                assert_eq!(tokens.len(), CONTEXT, "{kind:?}");
                assert!(scored.windows(2).all(|pair| pair[0].end <= pair[1].start), "{kind:?}: {scored:?}");
                assert!(scored.iter().all(|span| span.start < span.end), "{kind:?}: {scored:?}");
                if matches!(kind, Recall::Prose | Recall::Change | Recall::Sums | Recall::Arithmetic)
                    || !depths.is_empty()
                {
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

    /// What is asked for was told at the depth that its figure has, and every depth has its share.
    #[test]
    fn tables_facts_json_and_chats_tell_at_every_depth() {
        for kind in [Recall::Table, Recall::Facts, Recall::Json, Recall::Chat] {
            let mut places = HashSet::new();
            for Window { tokens, scored, depths, .. } in windows(kind, 4) {
                assert_eq!((tokens.len(), scored.len()), (CONTEXT, depths.len()), "{kind:?}");
                // An empty line comes before the first question.
                let cue = tokens[..scored[0].start].windows(2).rposition(|two| two == [u32::from(b'\n'); 2]);
                let questions = cue.unwrap();
                let middle = (128 + questions) / 2;
                let regions = [0..128, 128..middle + 1, middle - 1..questions - 63];
                for (depth, region) in Depth::ALL.into_iter().zip(regions) {
                    let of_depth = || scored.iter().zip(&depths).filter(|(_, own)| **own == depth);
                    let count = of_depth().count();
                    assert!(count > 0, "{kind:?}: nothing of {depth:?}");
                    for (span, _) in of_depth() {
                        let asked = &tokens[span.start + 1..=span.end];
                        let text = asked.iter().map(|byte| char::from(*byte as u8)).collect::<String>();
                        let found =
                            tokens[region.clone()].windows(asked.len()).position(|piece| piece == asked);
                        assert!(found.is_some(), "{kind:?}, {depth:?}: {text:?}");
                        places.extend(found.map(|at| at + region.start));
                    }
                }
            }
            assert!(places.len() >= 16, "{kind:?}: {places:?}");
        }
    }

    #[test]
    fn sums_are_right() {
        let [Window { tokens, scored, .. }] = &windows(Recall::Sums, 1)[..] else { panic!("one window") };
        let text: String = tokens.iter().map(|byte| char::from(*byte as u8)).collect();
        let price = |word: &str| -> u32 {
            let (_, rest) = text.split_once(&format!("\n{word} costs ")).unwrap();
            rest.split('.').next().unwrap().parse().unwrap()
        };
        assert!(scored.len() > 2);
        for span in scored {
            let (before, after) = text.split_at(span.start + 1);
            let asked = before.rsplit('\n').next().unwrap();
            let words: Vec<_> = asked.split(' ').collect();
            let sum: u32 = after[..span.len()].trim().parse().unwrap();
            assert_eq!(sum, price(words[0]) + price(words[2]), "{asked}");
        }
    }

    #[test]
    fn a_sample_is_always_the_same_and_unlike_the_next() {
        for kind in Recall::ALL {
            let [first, again] = [0; 2].map(|_| windows(kind, 2));
            assert!(first[0].tokens == again[0].tokens && first[0].depths == again[0].depths, "{kind:?}");
            assert_ne!(first[0].tokens, first[1].tokens, "{kind:?}");
        }
    }

    #[test]
    fn a_text_with_too_few_words_is_refused() {
        let error = words(b"one word and another word").unwrap_err().to_string();
        assert!(error.contains("2 different words") && error.contains("64 or more"), "{error}");
    }
}

//! The parts of texts that ask for what stands far back.

use crate::{Model, ModelError, SpecialTokens};
use fastrand::Rng;

/// A piece of the last part of a text.
pub(in super::super) struct Part {
    pub(in super::super) tokens: Vec<u32>,
    pub(in super::super) is_scored: bool,
}

/// What must be remembered, and what asks for it.
pub(super) type Told = (Vec<u32>, Vec<Part>);

/// Makes the parts of a text.
pub(super) struct Material<'a> {
    pub(super) model: &'a Model,
    pub(super) words: &'a [String],
    pub(super) random: Rng,
    /// Tokens of the first part, at most.
    pub(super) most: usize,
}

impl Material<'_> {
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.model.tokenizer().encode(text.as_bytes(), SpecialTokens::Omit)
    }

    pub(super) fn part(&self, text: &str, is_scored: bool) -> Result<Part, ModelError> {
        Ok(Part { tokens: self.encode(text)?, is_scored })
    }

    /// `count` different words.
    pub(super) fn choose(&mut self, count: usize) -> Vec<String> {
        let mut words: Vec<_> = self.words.iter().collect();
        self.random.shuffle(&mut words);
        words.into_iter().take(count).cloned().collect()
    }

    /// A passage of `text`; the second time its first tokens are the cue.
    pub(super) fn copy(&mut self, text: &[u32]) -> Result<Told, ModelError> {
        const CUE: usize = 16;
        let passage = &text[..self.most.min(text.len()).min(256)];
        let gap = self.encode("\n\n")?;
        let (cue, rest) = passage.split_at(CUE.min(passage.len()));
        let cue = Part { tokens: [&gap, cue].concat(), is_scored: false };
        let rest = Part { tokens: rest.to_vec(), is_scored: true };
        Ok(([passage, &gap].concat(), vec![cue, rest]))
    }

    /// Lines `word: 12345`. All but the first line are scored.
    pub(super) fn list(&mut self) -> Result<Told, ModelError> {
        const LINES: usize = 26;
        let lines: Vec<_> = self.choose(LINES).into_iter().map(|word| (word, self.number())).collect();
        let mut told = self.encode("\n")?;
        let mut kept = Vec::new();
        for (word, number) in lines {
            let line = [self.part(&format!("{word}:"), true)?, self.part(&format!(" {number}\n"), true)?];
            if told.len() + line.iter().map(|part| part.tokens.len()).sum::<usize>() > self.most {
                break;
            }
            line.iter().for_each(|part| told.extend(&part.tokens));
            kept.push(line);
        }
        kept.iter_mut().take(1).flatten().for_each(|part| part.is_scored = false);
        let gap = self.part("\n\n", false)?;
        Ok((told, std::iter::once(gap).chain(kept.into_iter().flatten()).collect()))
    }

    pub(super) fn number(&mut self) -> u32 {
        self.random.u32(10_000..100_000)
    }

    /// Definitions of structs with three fields. What follows a name is asked for.
    pub(super) fn code(&mut self) -> Result<Told, ModelError> {
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
    pub(super) fn turns(&mut self) -> Result<Told, ModelError> {
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

    /// Tools with the names of their arguments, and calls in another order. The names are asked for; the first
    /// call shows the form.
    pub(super) fn calls(&mut self) -> Result<Told, ModelError> {
        const ARGUMENTS: usize = 3;
        const TOOLS: usize = 14;
        let mut told = self.encode("\n")?;
        let mut kept = Vec::new();
        let words = self.choose(TOOLS.min(self.words.len() / (ARGUMENTS + 1)) * (ARGUMENTS + 1));
        for words in words.chunks_exact(ARGUMENTS + 1) {
            let (tool, arguments) = (&words[0], &words[1..]);
            let definition = self.encode(&format!("tool {tool}: {}\n", arguments.join(", ")))?;
            if told.len() + definition.len() > self.most {
                break;
            }
            told.extend(definition);
            let values: Vec<_> = arguments.iter().map(|_| self.random.u32(10..100).to_string()).collect();
            let mut call = vec![self.part(
                &format!("User: call {tool} with {}\nAssistant: call {tool}:", values.join(", ")),
                false,
            )?];
            for (argument, value) in arguments.iter().zip(values) {
                call.push(self.part(&format!(" {argument}"), true)?);
                call.push(self.part(&format!(" = {value};"), false)?);
            }
            call.push(self.part("\n", false)?);
            kept.push(call);
        }
        self.random.shuffle(&mut kept);
        kept.iter_mut().take(1).flatten().for_each(|part| part.is_scored = false);
        let gap = self.part("\n\n", false)?;
        Ok((told, std::iter::once(gap).chain(kept.into_iter().flatten()).collect()))
    }

    /// Prices, and sums of two of them. The first sums show the form.
    pub(super) fn sums(&mut self) -> Result<Told, ModelError> {
        const PRICES: usize = 26;
        let mut told = self.encode("\n")?;
        let mut prices = Vec::new();
        for word in self.choose(PRICES) {
            let price = self.random.u32(2..50);
            let line = self.encode(&format!("{word} costs {price}.\n"))?;
            if told.len() + line.len() > self.most {
                break;
            }
            told.extend(line);
            prices.push((word, price));
        }
        self.random.shuffle(&mut prices);
        let shown = (prices.len() / 4).min(4);
        let mut asked = vec![self.part("\n\n", false)?];
        for (i, two) in prices.chunks_exact(2).enumerate() {
            let [(first, one), (second, other)] = two else { continue };
            asked.push(self.part(&format!("{first} and {second} together cost"), false)?);
            asked.push(self.part(&format!(" {}", one + other), i >= shown)?);
            asked.push(self.part(".\n", false)?);
        }
        Ok((told, asked))
    }

    /// Sums of two small numbers. The first ones show the form, and nothing is told before.
    pub(super) fn arithmetic(&mut self) -> Result<Told, ModelError> {
        const SUMS: usize = 16;
        const SHOWN: usize = 4;
        let mut pairs: Vec<_> = (1..10).flat_map(|one| (1..10).map(move |other| (one, other))).collect();
        self.random.shuffle(&mut pairs);
        let mut asked = vec![self.part("\n\n", false)?];
        for (i, (one, other)) in pairs.into_iter().take(SUMS).enumerate() {
            asked.push(self.part(&format!("{one} + {other} ="), false)?);
            asked.push(self.part(&format!(" {}", one + other), i >= SHOWN)?);
            asked.push(self.part("\n", false)?);
        }
        Ok((Vec::new(), asked))
    }

    /// `first` tokens of code and numbers, then running text up to the end.
    pub(super) fn change(&mut self, text: &[u32], first: usize) -> Result<Told, ModelError> {
        let mut told = Vec::new();
        while told.len() < first {
            told.extend(self.code()?.0);
            told.extend(self.list()?.0);
        }
        told.truncate(first);
        let rest = text[..text.len() - first].to_vec();
        Ok((told, vec![Part { tokens: rest, is_scored: true }]))
    }
}

pub(super) fn capitalised(word: &str) -> String {
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

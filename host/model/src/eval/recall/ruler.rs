//! Needles, variables and common words, by the rules of RULER (arXiv 2404.06654) and in words of this file.

use super::material::Material;
use super::question::Question;
use crate::ModelError;

impl Material<'_> {
    /// Four keys with numbers of seven digits, of which one is asked for.
    pub(super) fn needles(&mut self) -> Result<Question, ModelError> {
        const NEEDLES: usize = 4;
        let words = self.choose(2 * NEEDLES);
        let needles: Vec<_> = words
            .chunks_exact(2)
            .map(|two| (two.join("-"), self.random.u32(1_000_000..10_000_000).to_string()))
            .collect();
        let told = needles.iter().map(|(key, number)| self.encode(&needle(key, number)));
        let told = told.collect::<Result<_, _>>()?;
        let (key, number) = &needles[self.random.usize(..NEEDLES)];
        Ok(Question {
            opening: self.encode("Some secret numbers stand in this text. One of them is asked for.\n\n")?,
            told,
            is_scattered: true,
            question: self.encode(&format!(
                "\n\nQuestion: Which secret number does the text give for {key}?\nAnswer: The secret number of {key} is:"
            ))?,
            answer: self.encode(&format!(" {number}"))?,
            wanted: vec![number.clone()],
        })
    }

    /// A chain of assignments. All variables that have its value are asked for, after an example with shorter names.
    pub(super) fn variables(&mut self) -> Result<Question, ModelError> {
        let (shown, chain) = (self.chain(3), self.chain(5));
        let opening =
            [LOOK_FOR, &shown.lines().concat(), &shown.question(), &shown.answer(), "\n\n", LOOK_FOR];
        let told = chain.lines().iter().map(|line| self.encode(line)).collect::<Result<_, _>>()?;
        Ok(Question {
            opening: self.encode(&opening.concat())?,
            told,
            is_scattered: true,
            question: self.encode(&chain.question())?,
            answer: self.encode(&chain.answer())?,
            wanted: chain.names,
        })
    }

    /// A chain of variables whose names have as many capital letters.
    fn chain(&mut self, letters: usize) -> Chain {
        const NAMES: usize = 5;
        let mut names: Vec<String> = Vec::new();
        while names.len() < NAMES {
            let name = (0..letters).map(|_| self.random.uppercase()).collect();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Chain { names, value: self.number() }
    }

    /// A numbered list in which some words come six times and the others once, after an example where they come three
    /// times. The common ones are asked for, ten of them where `room` has place for that.
    pub(super) fn common_words(&mut self, room: usize) -> Result<Option<Question>, ModelError> {
        const COMMON: usize = 10;
        let shown = self.choose(2 * COMMON);
        let mut words = self.choose(self.words.len());
        words.retain(|word| !shown.contains(word));
        for common in (3..=COMMON.min(words.len() / 2)).rev() {
            let mut found = None;
            for rare in (common..=words.len() - common).step_by(5) {
                let question = self.list_with(&shown[..2 * common], &words[..common + rare], common)?;
                if question.len() > room {
                    break;
                }
                found = Some(question);
            }
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first `common` words of both lists are the common ones.
    fn list_with(
        &mut self,
        shown: &[String],
        words: &[String],
        common: usize,
    ) -> Result<Question, ModelError> {
        let wanted = words[..common].to_vec();
        let question =
            format!("\n\nQuestion: Which {common} words come most often in the list?\nAnswer: They are:");
        let example = self.repeated(shown, common, 3);
        let example = [LIST, &example, &question, " ", &numbered(&shown[..common]), "\n\n"].concat();
        let list = [LIST, &self.repeated(words, common, 6)].concat();
        Ok(Question {
            opening: Vec::new(),
            told: vec![self.encode(&(example + &list))?],
            is_scattered: false,
            question: self.encode(&question)?,
            answer: self.encode(&format!(" {}", numbered(&wanted)))?,
            wanted,
        })
    }

    /// A shuffled list of words, of which the first ones come several times.
    fn repeated(&mut self, words: &[String], common: usize, times: usize) -> String {
        let (common, rare) = words.split_at(common);
        let mut list: Vec<_> = std::iter::repeat_n(common, times).flatten().chain(rare).collect();
        self.random.shuffle(&mut list);
        numbered(&list)
    }
}

const LOOK_FOR: &str = "Variables are assigned in this text. Follow the assignments.\n\n";

const LIST: &str = "A numbered list, in which some words come more often than others:\n";

fn needle(key: &str, number: &str) -> String {
    format!("\nThe secret number of {key} is: {number}.\n")
}

fn numbered(words: &[impl AsRef<str>]) -> String {
    let each = (1..).zip(words).map(|(number, word)| format!("{number}. {}", word.as_ref()));
    each.collect::<Vec<_>>().join(" ")
}

/// Variables, of which the first has a value and each other one that of the one before it.
struct Chain {
    names: Vec<String>,
    value: u32,
}

impl Chain {
    fn lines(&self) -> Vec<String> {
        let values = std::iter::once(self.value.to_string())
            .chain(self.names.iter().map(|name| format!("VAR {name}")));
        self.names.iter().zip(values).map(|(name, value)| format!("\nVAR {name} = {value}\n")).collect()
    }

    fn question(&self) -> String {
        let Self { names, value } = self;
        format!(
            "\n\nQuestion: Which variables have the value {value}?\nAnswer: By the assignments, {} variables have the value {value}:",
            names.len()
        )
    }

    fn answer(&self) -> String {
        format!(" {}", self.names.join(" "))
    }
}

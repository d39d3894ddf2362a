//! Things that a text may tell at any depth, each with its question.

use super::material::{Material, Part};
use super::spread::{Item, Items};
use crate::ModelError;

/// Most things of a text.
const MOST: usize = 48;

impl Material<'_> {
    /// Rows of tables: a word, a number of five digits and another word. The word asks for the rest.
    pub(super) fn table(&mut self) -> Result<Items, ModelError> {
        const HEAD: &str = "\n\n| name | code | group |\n|---|---|---|\n";
        let all = self.pairs_of_words().map(|[name, group]| {
            let code = self.number();
            self.same(&[
                (&format!("| {name} |"), false),
                (&format!(" {code}"), true),
                (" |", false),
                (&format!(" {group}"), true),
                (" |\n", false),
            ])
        });
        let all = all.collect::<Result<_, _>>()?;
        let heading = self.encode(HEAD)?;
        Ok(Items { opening: heading.clone(), heading: Some(heading), all })
    }

    /// Sentences that give a word a number or another word.
    pub(super) fn facts(&mut self) -> Result<Items, ModelError> {
        let all = self.pairs_of_words().enumerate().map(|(i, [word, other])| {
            let (what, value) =
                if i % 2 == 0 { ("code", self.number().to_string()) } else { ("partner", other) };
            self.same(&[
                (&format!("\nThe {what} of {word} is"), false),
                (&format!(" {value}"), true),
                (".\n", false),
            ])
        });
        let all = all.collect::<Result<_, ModelError>>()?;
        self.scattered(all)
    }

    /// Calls in JSON. The tool asks for the name of the argument and for its value.
    pub(super) fn json(&mut self) -> Result<Items, ModelError> {
        let all = self.pairs_of_words().map(|[tool, argument]| {
            let value = self.number();
            self.same(&[
                (&format!("\n{{\"tool\": \"{tool}\", \"arguments\": {{\""), false),
                (&argument, true),
                ("\": ", false),
                (&value.to_string(), true),
                ("}}\n", false),
            ])
        });
        let all = all.collect::<Result<_, ModelError>>()?;
        self.scattered(all)
    }

    /// What a user says in a chat, whose answers are running text, and questions about it.
    pub(super) fn chat(&mut self) -> Result<Items, ModelError> {
        let mut said = SAID.to_vec();
        self.random.shuffle(&mut said);
        let all = said.into_iter().map(|(what, values)| {
            let value = values[self.random.usize(..values.len())];
            let yours = what.replace("my ", "your ").replace("I ", "you ");
            let asked = format!("\nUser: What is the {what}?\nAssistant: The {yours} is");
            Ok(Item {
                told: self.encode(&format!("\nUser: The {what} is {value}.\nAssistant: "))?,
                asked: vec![
                    self.part(&asked, false)?,
                    self.part(&format!(" {value}"), true)?,
                    self.part(".", false)?,
                ],
            })
        });
        let all = all.collect::<Result<_, ModelError>>()?;
        self.scattered(all)
    }

    /// Pairs of different words, as many as the text has and [`MOST`] at most.
    fn pairs_of_words(&mut self) -> impl Iterator<Item = [String; 2]> + use<> {
        let mut words = self.choose(2 * MOST).into_iter();
        std::iter::from_fn(move || Some([words.next()?, words.next()?]))
    }

    /// A thing that is asked for in the words in which it was told, those parts of it that are marked.
    fn same(&self, parts: &[(&str, bool)]) -> Result<Item, ModelError> {
        let asked = parts.iter().map(|(text, is_scored)| self.part(text, *is_scored));
        let asked: Vec<Part> = asked.collect::<Result<_, _>>()?;
        Ok(Item { told: asked.iter().flat_map(|part| &part.tokens).copied().collect(), asked })
    }

    fn scattered(&self, all: Vec<Item>) -> Result<Items, ModelError> {
        Ok(Items { heading: None, opening: self.encode("\n\n")?, all })
    }
}

pub(super) const NAMES: &[&str] = &["Bruno", "Clara", "Oscar", "Smokey", "Felix", "Nina", "Hugo", "Emma"];
pub(super) const CITIES: &[&str] =
    &["Lisbon", "Madrid", "Vienna", "Dublin", "Prague", "Athens", "Warsaw", "Oslo"];
const COLOURS: &[&str] = &["green", "yellow", "purple", "orange", "brown", "white"];
const MONTHS: &[&str] = &["January", "March", "April", "July", "October", "December"];
const DAYS: &[&str] = &["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Sunday"];
const SPORTS: &[&str] = &["tennis", "football", "hockey", "golf", "chess", "rugby"];
const LANGUAGES: &[&str] = &["Greek", "Dutch", "Polish", "Turkish", "Spanish", "Arabic"];
const FOODS: &[&str] = &["rice", "cheese", "soup", "bread", "fish", "pasta"];

/// What a user says, and the values that it may have.
const SAID: [(&str, &[&str]); 20] = [
    ("name of my dog", NAMES),
    ("name of my cat", NAMES),
    ("name of my sister", NAMES),
    ("name of my boss", NAMES),
    ("city where I live", CITIES),
    ("city where I work", CITIES),
    ("city where I was born", CITIES),
    ("color of my car", COLOURS),
    ("color of my door", COLOURS),
    ("color of my hat", COLOURS),
    ("month of my birthday", MONTHS),
    ("month of my trip", MONTHS),
    ("day of my exam", DAYS),
    ("day of my flight", DAYS),
    ("sport that I play", SPORTS),
    ("sport that I watch", SPORTS),
    ("language that I learn", LANGUAGES),
    ("language that I teach", LANGUAGES),
    ("food that I like", FOODS),
    ("food that I hate", FOODS),
];

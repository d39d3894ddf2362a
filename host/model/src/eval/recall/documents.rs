//! A question about one of several documents, as in RULER.

use super::material::{Material, capitalised};
use super::question::Question;
use super::scattered::{CITIES, NAMES};
use crate::ModelError;

/// Tokens of the running text in a document.
const PASSAGE: usize = 48;

impl Material<'_> {
    /// Documents about clubs, each with a passage of the running text. A fact of one club is asked for.
    pub(super) fn documents(&mut self, room: usize, running: &[u32]) -> Result<Option<Question>, ModelError> {
        const LEAST: usize = 3;
        let clubs = self.clubs();
        let asked = |club: &Club| [self.encode(&club.question()), self.encode(&club.answer())];
        let (mut told, mut longest, mut taken) = (Vec::new(), 0, 0);
        for ((number, club), passage) in (1..).zip(&clubs).zip(running.chunks(PASSAGE)) {
            let text = self.encode(&format!("\n\nDocument {number}: {}", club.facts()))?;
            let [question, answer] = asked(club);
            longest = longest.max(question?.len() + 2 * answer?.len());
            taken += text.len() + passage.len();
            if taken + longest > room {
                break;
            }
            told.push([&text, passage].concat());
        }
        if told.len() < LEAST {
            return Ok(None);
        }
        let club = &clubs[self.random.usize(..told.len())];
        Ok(Some(Question {
            opening: Vec::new(),
            told,
            is_scattered: false,
            question: self.encode(&club.question())?,
            answer: self.encode(&club.answer())?,
            wanted: vec![club.wanted()],
        }))
    }

    fn clubs(&mut self) -> Vec<Club> {
        let words = self.choose(self.words.len());
        let club = |words: &[String]| {
            let [first, second, family] = [0, 1, 2].map(|i| capitalised(&words[i]));
            let random = &mut self.random;
            let mut pick = |of: &[&str]| of[random.usize(..of.len())].to_owned();
            let (founder, city) = (format!("{} {family}", pick(NAMES)), pick(CITIES));
            let (year, asked) = (random.u32(1700..2000), random.usize(..3));
            Club { name: format!("{first} {second} Club"), founder, city, year, asked }
        };
        words.chunks_exact(3).map(club).collect()
    }
}

/// What a document tells.
struct Club {
    name: String,
    founder: String,
    city: String,
    year: u32,
    /// Which of the facts is asked for.
    asked: usize,
}

impl Club {
    fn facts(&self) -> String {
        let Self { name, founder, city, year, .. } = self;
        format!("{name}\nThe {name} was founded by {founder} in {year}. It meets in {city}. ")
    }

    fn question(&self) -> String {
        let name = &self.name;
        let (question, answer) = match self.asked {
            0 => ("Who founded", "was founded by"),
            1 => ("In which city meets", "meets in"),
            _ => ("In which year began", "was founded in the year"),
        };
        format!("\n\nQuestion: {question} the {name}?\nAnswer: The {name} {answer}")
    }

    fn wanted(&self) -> String {
        match self.asked {
            0 => self.founder.clone(),
            1 => self.city.clone(),
            _ => self.year.to_string(),
        }
    }

    fn answer(&self) -> String {
        format!(" {}", self.wanted())
    }
}

//! The texts with one question, read as bytes, which the tokens of the shipped model are.

use super::Recall;
use super::tests::windows;
use crate::eval::Window;
use std::collections::{HashMap, HashSet};

/// What a text tells, its question up to the answer, the answer, and the strings that it must have.
fn read(window: &Window) -> (String, String, String, &[String]) {
    let answer = window.answer().unwrap();
    let text: String = window.tokens.iter().map(|byte| char::from(*byte as u8)).collect();
    let (before, said) = text.split_at(answer.begin);
    let at = before.rfind("Question: ").or_else(|| before.rfind("User: ")).unwrap();
    (before[..at].to_owned(), before[at..].to_owned(), said.to_owned(), &answer.wanted)
}

/// The rest of each line that begins so, up to its end.
fn after<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    text.match_indices(begin).map(|(at, _)| text[at + begin.len()..].split('\n').next().unwrap()).collect()
}

#[test]
fn four_keys_have_numbers_and_one_is_asked_for() {
    let mut places = HashSet::new();
    for window in windows(Recall::Needles, 4) {
        let (told, question, answer, wanted) = read(&window);
        let needles: HashMap<_, _> = after(&told, "\nThe secret number of ")
            .iter()
            .map(|line| line.split_once(" is: ").unwrap())
            .collect();
        let numbers: HashSet<_> = needles.values().map(|number| number.trim_end_matches('.')).collect();
        assert_eq!((needles.len(), numbers.len()), (4, 4), "{told}");
        let key = after(&question, "text give for ")[0].trim_end_matches('?');
        let number = needles[key].trim_end_matches('.');
        assert!(
            number.len() == 7 && answer == format!(" {number}") && wanted == [number],
            "{question}{answer}"
        );
        assert!(question.ends_with(&format!("The secret number of {key} is:")), "{question}");
        places.insert(told.find(number).unwrap() / 100);
    }
    assert!(places.len() > 1, "always at the same place");
}

#[test]
fn variables_are_those_of_a_chain_with_its_value() {
    for window in windows(Recall::Variables, 2) {
        let (told, question, answer, wanted) = read(&window);
        let lines = after(&told, "\nVAR ");
        let mut values = HashMap::new();
        for line in &lines {
            let (name, value) = line.split_once(" = ").unwrap();
            values.insert(name, value.strip_prefix("VAR ").map_or(value, |of| values[of]));
        }
        assert_eq!(values.len(), 10, "five of the example, five that are asked for: {told}");
        let asked = after(&question, "have the value ")[0].trim_end_matches('?');
        let with_it: HashSet<_> =
            values.iter().filter(|(_, value)| **value == asked).map(|(name, _)| *name).collect();
        assert!(wanted.len() == 5 && wanted.iter().all(|name| name.len() == 5), "{wanted:?}");
        assert_eq!(with_it, wanted.iter().map(String::as_str).collect(), "{told}{question}");
        assert_eq!(answer, format!(" {}", wanted.join(" ")));
    }
}

#[test]
fn common_words_come_six_times_and_the_others_once() {
    for window in windows(Recall::Words, 2) {
        let (told, question, answer, wanted) = read(&window);
        let list = told.rsplit("than others:\n").next().unwrap();
        let words: Vec<_> = list.split_whitespace().filter(|word| !word.ends_with('.')).collect();
        let mut counts = HashMap::new();
        words.iter().for_each(|word| *counts.entry(*word).or_insert(0) += 1);
        let common: HashSet<_> =
            counts.iter().filter(|(_, count)| **count == 6).map(|(word, _)| *word).collect();
        assert!(counts.values().all(|count| [1, 6].contains(count)), "{counts:?}");
        assert!(wanted.len() >= 3 && counts.len() >= 2 * wanted.len(), "{counts:?}");
        assert_eq!(common, wanted.iter().map(String::as_str).collect());
        assert!(question.contains(&format!("Which {} words", wanted.len())), "{question}");
        assert!(wanted.iter().all(|word| answer.contains(word.as_str())), "{answer}");
    }
}

#[test]
fn a_document_has_the_fact_that_is_asked_for() {
    let (mut asked, mut documents) = (HashSet::new(), HashSet::new());
    for window in windows(Recall::Documents, 8) {
        let (told, question, answer, wanted) = read(&window);
        let (what, name) =
            question["Question: ".len()..].split('?').next().unwrap().split_once(" the ").unwrap();
        let about = format!("\nThe {name} was founded by ");
        let facts = after(&told, &about);
        assert!(facts.len() == 1 && told.matches("\n\nDocument ").count() >= 3, "{told}");
        let [by, rest] = facts[0].split_once(" in ").map(|(by, rest)| [by, rest]).unwrap();
        let (year, city) = rest.split_once(". It meets in ").unwrap();
        let right = match what {
            "Who founded" => by,
            "In which city meets" => city.split('.').next().unwrap(),
            "In which year began" => year,
            _ => panic!("{question}"),
        };
        assert!(wanted == [right] && answer == format!(" {right}"), "{question}{answer}");
        asked.insert(what.to_owned());
        documents.insert(told[..told.find(&about).unwrap()].matches("\n\nDocument ").count());
    }
    assert!(asked.len() == 3 && documents.len() > 1, "{asked:?} {documents:?}");
}

#[test]
fn a_call_has_the_arguments_of_the_schema() {
    for window in windows(Recall::Tools, 3) {
        let (told, question, answer, wanted) = read(&window);
        let (tool, values) = after(&question, "Call ")[0].split_once(" with ").unwrap();
        let schema = after(&told, &format!("{{\"name\": \"{tool}\", \"parameters\": "))[0];
        let names: Vec<_> =
            schema.split('"').skip(1).step_by(2).filter(|word| !["type", "integer"].contains(word)).collect();
        let values: Vec<_> = values
            .trim_end_matches('.')
            .split([',', ' '])
            .filter(|word| word.parse::<u32>().is_ok())
            .collect();
        let expected: Vec<_> =
            names.iter().zip(&values).map(|(name, value)| format!("{name}\": {value}")).collect();
        assert!(names.len() == 3 && values.len() == 3, "{schema} {question}");
        assert_eq!(wanted, expected);
        assert_eq!(answer, expected.join(", \""));
        let call = format!("{}{answer}}}}}", after(&question, "Assistant: ")[0]);
        assert!(serde_json::from_str::<serde_json::Value>(&call).is_ok(), "{call}");
        assert_eq!(told.matches("\"parameters\"").count(), 4, "{told}");
    }
}

#[test]
fn small_sums_are_right_and_unlike_each_other() {
    let [Window { tokens, scored, .. }] = &windows(Recall::Arithmetic, 1)[..] else { panic!("one window") };
    let text: String = tokens.iter().map(|byte| char::from(*byte as u8)).collect();
    let mut asked = HashSet::new();
    for span in scored {
        let (before, after) = text.split_at(span.start + 1);
        let sum = before.rsplit('\n').next().unwrap();
        let (one, other) = sum.trim_end_matches(" =").split_once(" + ").unwrap();
        let right: u32 = one.parse::<u32>().unwrap() + other.parse::<u32>().unwrap();
        assert_eq!(after[..span.len()], format!(" {right}"));
        asked.insert(sum);
    }
    assert_eq!((scored.len(), asked.len()), (12, 12));
}

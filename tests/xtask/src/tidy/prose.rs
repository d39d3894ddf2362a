//! The language of comments and documents: long sentences, riddles, rates without "per". All of it is reported,
//! and nothing fails.

use super::opt_out::Exceptions;
use super::tree::{Tree, read};

/// Longer sentences are read twice.
const WORDS: usize = 45;
/// Comments are held to the width of code.
const COLUMNS: usize = 110;
/// A sentence that begins with one of these has no subject, unless it asks a question.
const FIRST_WORDS: [&str; 2] = ["Whose", "Whether"];
/// Words that a reader has to look up.
const WORDS_OF_OLD: [&str; 22] = [
    "nought",
    "heed",
    "heeds",
    "dear",
    "dearer",
    "dearest",
    "lives",
    "whom",
    "thereof",
    "wherein",
    "lest",
    "hence",
    "for want of",
    "so called",
    "of no account",
    "said aloud",
    "by the word of",
    "who calls",
    "so many",
    "at hand",
    "nothing but",
    "as to",
];
/// Units of a rate, before "a" where "per" belongs.
const COUNTED: [&str; 28] = [
    "bytes",
    "byte",
    "bits",
    "bit",
    "values",
    "value",
    "tokens",
    "token",
    "instructions",
    "cycles",
    "seconds",
    "ns",
    "ms",
    "us",
    "nanoseconds",
    "milliseconds",
    "microseconds",
    "picoseconds",
    "ps",
    "MB",
    "GB",
    "KiB",
    "MiB",
    "scale",
    "loads",
    "products",
    "numbers",
    "levels",
];
/// Words that follow "per" in a rate.
const COUNTED_BY: [&str; 31] = [
    "token",
    "slot",
    "vector",
    "head",
    "value",
    "page",
    "layer",
    "row",
    "block",
    "second",
    "core",
    "group",
    "key",
    "step",
    "coordinate",
    "lane",
    "query",
    "call",
    "chunk",
    "sequence",
    "batch",
    "thread",
    "warp",
    "tile",
    "pair",
    "level",
    "codec",
    "file",
    "line",
    "column",
    "word",
];

/// What the prose of the tree is like.
pub(super) struct Prose {
    /// Sentences and their words.
    pub(super) sentences: usize,
    pub(super) words: usize,
    /// Lines that a reader may stumble over: file, line and what it is.
    pub(super) stumbles: Vec<String>,
    /// Comments wider than [`COLUMNS`].
    pub(super) wide: Vec<String>,
}

/// Reads all comments and documents.
pub(super) fn prose(tree: &Tree, exceptions: &Exceptions) -> Prose {
    let mut found = Prose { sentences: 0, words: 0, stumbles: Vec::new(), wide: Vec::new() };
    for path in tree.ending(".rs").chain(tree.ending(".md")).chain(tree.ending(".h")) {
        let text = read(path);
        for Sentence { line, text } in sentences(path, &text) {
            found.sentences += 1;
            found.words += text.split_whitespace().count();
            if exceptions.has(path, line, "prose") {
                continue;
            }
            let start: String = text.trim().chars().take(70).collect();
            let faults = faults_of(&text).into_iter();
            found.stumbles.extend(faults.map(|fault| format!("{path}:{line}: {fault}: {start}")));
        }
        for (number, line) in text.lines().enumerate() {
            let is_comment = !path.ends_with(".md") && line.trim_start().starts_with("//");
            if is_comment
                && line.chars().count() > COLUMNS
                && !exceptions.has(path, number + 1, "wide comment")
            {
                found.wide.push(format!("{path}:{}: {} columns", number + 1, line.chars().count()));
            }
        }
    }
    found
}

/// A sentence or an item of a list, with the number of its first line.
struct Sentence {
    line: usize,
    text: String,
}

/// Lines of prose, then the sentences in them.
#[derive(Default)]
struct Reader {
    sentences: Vec<Sentence>,
    fence: bool,
}

impl Reader {
    fn line(&mut self, number: usize, text: &str) {
        let text = text.trim();
        if text.starts_with("```") {
            self.fence = !self.fence;
            return self.end();
        }
        if self.fence || text.is_empty() || text.starts_with(['#', '|']) {
            return self.end();
        }
        let item = text.strip_prefix("* ").or(text.strip_prefix("- ")).or(text.strip_prefix("SAFETY: "));
        if item.is_some() {
            self.end();
        }
        for word in item.unwrap_or(text).split_whitespace() {
            if self.sentences.last().is_none_or(|sentence| is_whole(&sentence.text, word)) {
                self.sentences.push(Sentence { line: number, text: String::new() });
            }
            let sentence = self.sentences.last_mut().expect("one was begun");
            if !sentence.text.is_empty() {
                sentence.text.push(' ');
            }
            sentence.text.push_str(word);
        }
    }

    /// The next line begins a sentence.
    fn end(&mut self) {
        if let Some(last) = self.sentences.last_mut() {
            last.text.push('\n');
        }
    }
}

/// True if a text is a complete sentence before the next word.
fn is_whole(text: &str, next: &str) -> bool {
    let ended = text.trim_end_matches(['*', '_', ')', '"', '`']).ends_with(['.', '!', '?', ':']);
    let abbreviated = ["e.g.", "i.e.", "vs.", "cf."].iter().any(|short| text.ends_with(short));
    text.ends_with('\n') || (ended && !abbreviated && !next.starts_with(|c: char| c.is_lowercase()))
}

/// Sentences of a file: of its comments, if it is code.
fn sentences(path: &str, text: &str) -> Vec<Sentence> {
    let mut reader = Reader::default();
    let mut comment = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let prose = if path.ends_with(".md") {
            Some(line)
        } else if path.ends_with(".h") {
            comment = line.starts_with("/*") || (comment && line.starts_with('*'));
            comment.then(|| line.trim_start_matches(['/', '*']).trim_end_matches(['/', '*']))
        } else {
            let comment = line.strip_prefix("///").or(line.strip_prefix("//!")).or(line.strip_prefix("//"));
            comment.filter(|comment| !comment.starts_with('/'))
        };
        match prose {
            Some(prose) => reader.line(number + 1, prose),
            None => {
                reader.end();
                reader.fence &= path.ends_with(".md");
            }
        }
    }
    reader.sentences
}

fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric())
}

/// The faults of a sentence.
fn faults_of(sentence: &str) -> Vec<String> {
    let mut found = Vec::new();
    let sentence = sentence.trim();
    let words: Vec<&str> =
        sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).collect();
    let first = words.first().map_or("", |word| word.trim_start_matches(['*', '_', '(']));
    if FIRST_WORDS.contains(&first) && !sentence.ends_with('?') {
        found.push(format!("begins with \"{first}\""));
    }
    if words.len() > WORDS {
        found.push(format!("has {} words", words.len()));
    }
    let plain: Vec<&str> = words.iter().map(|word| bare(word)).collect();
    let joined = format!(" {} ", plain.join(" "));
    found.extend(
        WORDS_OF_OLD
            .iter()
            .filter(|old| joined.contains(&format!(" {old} ")))
            .map(|old| format!("has \"{old}\"")),
    );
    let rates = plain.windows(3).filter(|three| {
        COUNTED.contains(&three[0]) && ["a", "an"].contains(&three[1]) && COUNTED_BY.contains(&three[2])
    });
    found.extend(rates.map(|three| format!("has \"{}\" for \"per\"", three.join(" "))));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_find_what_they_forbid() {
        for (text, expected) in [
            ("Whose head it is.", "begins with \"Whose\""),
            ("It takes 66 bytes a token.", "has \"bytes a token\" for \"per\""),
            ("It is encoded for want of room.", "has \"for want of\""),
            (&*"word ".repeat(46), "has 46 words"),
        ] {
            assert_eq!(faults_of(text), [expected], "{text}");
        }
        for text in ["What is a page?", "It takes 66 bytes per token.", &*"word ".repeat(45)] {
            assert_eq!(faults_of(text), [""; 0], "{text}");
        }
        let text = "/// One. Two\n/// goes on.\n///\n/// * an item\n/// ```\n/// Of code\n/// ```\nfn f() {}\n// Three.\n";
        let found: Vec<_> =
            sentences("a.rs", text).into_iter().map(|s| (s.line, s.text.trim().to_owned())).collect();
        let expected = [(1, "One."), (1, "Two goes on."), (4, "an item"), (9, "Three.")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }
}

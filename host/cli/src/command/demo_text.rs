//! The text below the table of `tqkv demo`: the continuations, each marked where it leaves the first, and the
//! next steps.

use crate::policy::Name;

/// Lowest top-1 agreement at which a setting is recommended.
const KEPT: f64 = 0.99;

/// Marks the first word that differs from the first text.
const MARK: char = '»';

/// The first text, and the differing part of each other text.
pub(super) fn texts<'a>(mut rows: impl Iterator<Item = (&'a Name, &'a str)>) -> String {
    let Some((first_name, first)) = rows.next() else { return String::new() };
    let first = first.trim_end();
    let mut text = format!("\n\n[{first_name}]\n{first}");
    for (name, other) in rows {
        let other = other.trim_end();
        match departure(first, other) {
            None => text.push_str(&format!("\n\n[{name}] the same text")),
            Some(at) => {
                let (same, rest) = other.split_at(at);
                text.push_str(&format!("\n\n[{name}] other words from {MARK} on\n{same}{MARK}{rest}"));
            }
        }
    }
    text
}

/// Start of the word at which `other` leaves `first`; `None` if they are equal.
fn departure(first: &str, other: &str) -> Option<usize> {
    if first == other {
        return None;
    }
    let same = first.char_indices().zip(other.chars()).take_while(|((_, a), b)| a == b);
    let end = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    let word = other[..end]
        .rfind(char::is_whitespace)
        .map_or(0, |at| at + other[at..].chars().next().map_or(0, char::len_utf8));
    Some(word)
}

/// Cost and saving of a setting.
pub(super) struct Outcome<'a> {
    pub(super) name: &'a Name,
    /// Number of tokens in the memory of one f16 token.
    pub(super) ratio: f64,
    pub(super) kl: f64,
    pub(super) top1: f64,
}

/// The setting that holds the most tokens at little loss, and commands to try next.
pub(super) fn closing<'a>(outcomes: impl Iterator<Item = Outcome<'a>>) -> String {
    let kept = outcomes.filter(|outcome| outcome.top1 >= KEPT && outcome.ratio > 1.0);
    let best = kept.max_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let best = best.map_or_else(String::new, |Outcome { name, ratio, kl, top1 }| {
        format!(
            "\n\nOf the settings that keep the likeliest token at {:.0} % of positions, {} holds the most: {ratio:.2} times the \
             tokens of f16 in the same memory (KL {kl:.6}, {:.2} % kept).",
            100.0 * KEPT,
            name.label(),
            100.0 * top1
        )
    });
    let next = [
        ("tqkv generate --model model.gguf --prompt \"Once upon a time\"", "a model of your own"),
        ("tqkv eval --model model.gguf", "what each setting costs it"),
        ("tqkv plan --layers 32 --kv-heads 8 --head-dim 128 --memory 8GB", "what fits in memory"),
        ("tqkv codecs", "what else --kv takes"),
    ];
    let next: String = next.iter().map(|(command, what)| format!("\n  {command:<63} {what}")).collect();
    format!("{best}\n\nNext:{next}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_departs_where_its_first_other_word_begins() {
        for (first, other, at) in [
            ("one two", "one two", None),
            ("one two", "one tree", Some(4)),
            ("one two", "eleven", Some(0)),
            ("one", "one two", Some(0)),
            ("one ", "one two", Some(4)),
            ("grün ist", "grün war", Some(6)),
            ("größe", "größer", Some(0)),
            ("a b", "a", Some(0)),
            ("", "a", Some(0)),
        ] {
            assert_eq!(departure(first, other), at, "{first} and {other}");
        }
    }
}

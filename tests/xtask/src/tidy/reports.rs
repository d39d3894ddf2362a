//! What the source looks like, in numbers. They are printed, and nothing fails.

use super::opt_out::Exceptions;
use super::prose::{Prose, prose};
use super::tree::{Tree, read};
use super::{guide, surface};

/// Longer files often hold two ideas.
const LINES: usize = 400;

/// A line of the report, and what it counts.
pub(super) struct Report {
    pub(super) summary: String,
    pub(super) details: Vec<String>,
}

impl Report {
    fn new(summary: String, details: Vec<String>) -> Self {
        Self { summary, details }
    }
}

pub(super) fn all(tree: &Tree, exceptions: &Exceptions) -> Vec<Report> {
    let Prose { sentences, words, stumbles, wide } = prose(tree, exceptions);
    let items: Vec<String> =
        surface::counts().iter().map(|(name, count)| format!("{name} {count}")).collect();
    let additions = guide::additions(tree);
    let counts = counts_in_documents();
    let undated = undated_measurements();
    vec![
        lengths(tree, exceptions),
        Report::new(format!("{} lines in ARCHITECTURE.md", read("ARCHITECTURE.md").lines().count()), vec![]),
        Report::new(format!("public items: {}", items.join(", ")), vec![]),
        Report::new(
            format!(
                "{sentences} sentences in comments and documents, {:.1} words each; {} to look at",
                words as f64 / sentences.max(1) as f64,
                stumbles.len()
            ),
            stumbles,
        ),
        Report::new(format!("{} wide comments", wide.len()), wide),
        Report::new(format!("{} rows of \"I want to add\" differ from the tree", additions.len()), additions),
        Report::new(format!("{} counts in documents differ from the tree", counts.len()), counts),
        Report::new(format!("{} measurements without date or commit", undated.len()), undated),
    ]
}

/// The longest sources.
fn lengths(tree: &Tree, exceptions: &Exceptions) -> Report {
    let sources = tree.ending(".rs").filter(|path| !exceptions.has_file(path, "long file"));
    let mut long: Vec<(usize, &str)> =
        sources.map(|path| (read(path).lines().count(), path)).filter(|(lines, _)| *lines > LINES).collect();
    long.sort_by(|a, b| b.cmp(a));
    let longest =
        long.first().map_or(String::new(), |(lines, path)| format!(", the longest {path} with {lines}"));
    let summary = format!("{} sources have more than {LINES} lines{longest}", long.len());
    Report::new(summary, long.into_iter().map(|(lines, path)| format!("{lines:5} {path}")).collect())
}

/// Numbers of codes that documents give, and the tree does not have.
fn counts_in_documents() -> Vec<String> {
    let rows = read("core/src/code/list.rs");
    let is_trellis = |row: &&str| row.contains("] Trellis(&tables::") && !row.contains(" quarters ");
    let trellises = rows.lines().filter(is_trellis).count();
    let (document, says) =
        ("core/src/fixed/DESIGN.md", format!("all {trellises} trellis codes of one width"));
    let text = read(document).split_whitespace().collect::<Vec<_>>().join(" ");
    if text.contains(&says) { vec![] } else { vec![format!("{document} does not say '{says}'")] }
}

/// Seven or eight hexadecimal digits with at least one number among them.
fn is_commit(word: &str) -> bool {
    (7..=8).contains(&word.len())
        && word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
        && word.chars().any(|c| c.is_ascii_digit())
}

fn undated_measurements() -> Vec<String> {
    let text = read("MEASURED.md");
    let mut undated = Vec::new();
    for section in text.split("\n## M").skip(1) {
        let mut words = section.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let has_date =
            words.clone().any(|w| w.len() == 10 && w.starts_with("20") && w.matches('-').count() == 2);
        if !has_date || !words.any(is_commit) {
            undated.push(format!("M{}", section.lines().next().unwrap_or_default()));
        }
    }
    undated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_told_from_words() {
        assert!(is_commit("04a07b9") && !is_commit("default") && !is_commit("04a07b"));
    }
}

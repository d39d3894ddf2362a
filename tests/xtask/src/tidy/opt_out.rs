//! Exceptions from the reports, next to the line that they are about: a comment `tidy: RULE: reason`.
//!
//! An exception from `long file` stands anywhere in its file. One from `prose` or `wide comment` stands in the
//! line before the one that it is about.

use super::tree::{Tree, read};
use std::collections::BTreeSet;

/// What can be excepted.
const RULES: [&str; 3] = ["long file", "prose", "wide comment"];

/// The exceptions of the tree.
#[derive(Default)]
pub(super) struct Exceptions {
    /// File, line from 1 on, rule.
    lines: BTreeSet<(String, usize, String)>,
    /// Exceptions that are none: an unknown rule, or no reason.
    pub(super) faults: Vec<String>,
}

impl Exceptions {
    pub(super) fn of(tree: &Tree) -> Self {
        let mut found = Self::default();
        for path in tree.ending(".rs").chain(tree.ending(".md")).chain(tree.ending(".h")) {
            found.add(path, &read(path));
        }
        found
    }

    fn add(&mut self, path: &str, text: &str) {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let comment =
                line.strip_prefix("// ").or(line.strip_prefix("<!-- ")).or(line.strip_prefix("/* "));
            let Some(comment) = comment.and_then(|comment| comment.strip_prefix("tidy: ")) else { continue };
            let (rule, reason) = comment.split_once(": ").unwrap_or((comment, ""));
            let reason = reason.trim_end_matches("-->").trim_end_matches("*/").trim();
            if !RULES.contains(&rule) || reason.is_empty() {
                let expected = format!("expected 'tidy: RULE: reason' with a rule of {RULES:?}");
                self.faults.push(format!("{path}:{}: {expected}", number + 1));
            }
            self.lines.insert((path.to_string(), number + 1, rule.to_string()));
        }
    }

    /// True if the line before this one excepts it.
    pub(super) fn has(&self, path: &str, line: usize, rule: &str) -> bool {
        self.lines.contains(&(path.to_string(), line.wrapping_sub(1), rule.to_string()))
    }

    /// True if any line excepts the file.
    pub(super) fn has_file(&self, path: &str, rule: &str) -> bool {
        self.lines.iter().any(|(of, _, excepted)| of == path && excepted == rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_have_a_rule_and_a_reason() {
        let mut found = Exceptions::default();
        let text = "fn f() {}\n// tidy: prose: a quotation\n// Whose is it.\n// tidy: long file: one table\n";
        found.add("a.rs", text);
        assert!(
            found.has("a.rs", 3, "prose") && !found.has("a.rs", 4, "prose") && !found.has("b.rs", 3, "prose")
        );
        assert!(found.has_file("a.rs", "long file") && !found.has_file("b.rs", "long file"));
        assert_eq!(found.faults, [""; 0]);
        found.add("b.rs", "// tidy: prose\n// tidy: taste: none\n");
        assert_eq!(found.faults.len(), 2);
    }
}

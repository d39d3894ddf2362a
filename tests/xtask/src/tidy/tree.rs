//! The files of the repository, and how documents name them.

use std::collections::BTreeSet;
use std::path::Path;

/// The root of the repository.
pub(super) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the repository is above this crate")
}

/// Every file of the repository.
pub(super) struct Tree {
    /// Paths relative to the root, with `/` between folders and without build outputs.
    pub(super) paths: BTreeSet<String>,
}

impl Tree {
    pub(super) fn read() -> Self {
        let mut paths = BTreeSet::new();
        walk(root(), "", &mut paths);
        Self { paths }
    }

    /// Paths with this ending.
    pub(super) fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = &'a str> {
        self.paths.iter().map(String::as_str).filter(move |path| path.ends_with(end))
    }

    /// The documents about the current tree. The changelog is about earlier ones.
    pub(super) fn documents(&self) -> impl Iterator<Item = &str> {
        self.ending(".md").filter(|path| *path != "CHANGELOG.md")
    }

    /// Returns true if a file or folder has this path, or ends with it.
    pub(super) fn has(&self, path: &str) -> bool {
        let path = path.trim_start_matches("./").trim_end_matches('/');
        let (inner, below) = (format!("/{path}/"), format!("/{path}"));
        let is_it = |p: &String| p == path || p.ends_with(&below) || format!("/{p}").contains(&inner);
        self.paths.iter().any(is_it)
    }
}

fn walk(folder: &Path, prefix: &str, out: &mut BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_hidden = name.starts_with('.') && ![".cargo", ".ci", ".github"].contains(&name.as_str());
        // Folders with these names hold build outputs, downloads, or what fuzzing found.
        if is_hidden || ["target", "node_modules", "corpus", "__pycache__"].contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), &format!("{path}/"), out);
        } else {
            out.insert(path);
        }
    }
}

/// The text of a file; nothing if it is not there or not text.
pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Code spans of a line: the texts between single backticks.
pub(super) fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The rows of the table below a heading, without its head. Cells are trimmed.
pub(super) fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let section = text.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_default();
    let section = section.split("\n#").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
    rows.map(cells).collect()
}

/// Expands `a/{b,c}.rs` to two paths.
pub(super) fn expand(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?))) {
        None => vec![path.to_string()],
        Some((head, (middle, tail))) => {
            middle.split(',').flat_map(|part| expand(&format!("{head}{}{tail}", part.trim()))).collect()
        }
    }
}

/// Returns true for sources that are built into a product: no tests, no test helpers, no fuzz targets.
pub(super) fn is_source(path: &str) -> bool {
    path.ends_with(".rs")
        && path.split('/').any(|part| part == "src")
        && !path.split('/').skip(1).any(|part| part == "tests" || part == "tests.rs")
        && !path.starts_with("tests/src/")
        && !path.starts_with("fuzz/")
}

/// The code of a source, without comments and without the test module at its end.
pub(super) fn code(path: &str) -> String {
    let text = read(path);
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns true if `text` contains `word`, but not inside a longer name.
pub(super) fn names(text: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_found() {
        assert_eq!(expand("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
        let tree = Tree { paths: ["core/src/lib.rs".to_string()].into() };
        assert!(tree.has("core/src") && tree.has("lib.rs") && tree.has("src/lib.rs"));
        assert!(!tree.has("ib.rs") && !tree.has("core/lib.rs"));
        assert!(names("match id { S4 => 1 }", "S4") && !names("NS4 S45 S4_", "S4"));
    }
}

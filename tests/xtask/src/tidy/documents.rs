//! Documents name what exists: paths, links, numbers of decisions, tasks and tests.

use super::tree::{Tree, expand, read, root, spans};
use crate::needs::TASKS;
use std::collections::BTreeSet;
use std::path::Path;

/// Endings of files that documents name without a folder.
const ENDINGS: [&str; 9] = [".rs", ".md", ".toml", ".json", ".txt", ".ptx", ".py", ".h", ".safetensors"];
/// Words that look like paths and are not: files of a reader, names of benchmarks, words with a slash.
const NO_PATHS: [&str; 4] =
    ["config.json", "model.safetensors", "op/codec/dim/level/place", "cuda_std/cuda_builder"];

fn looks_like_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.{,}".contains(c);
    let folder = word.contains('/') && word.starts_with(|c: char| c.is_ascii_lowercase() || c == '.');
    !word.is_empty()
        && word.chars().all(plain)
        && (folder || ENDINGS.iter().any(|end| word.ends_with(end) && word.len() > end.len()))
        && !NO_PATHS.contains(&word)
        // What a build makes.
        && !word.starts_with("target/")
}

/// Every path that a document names exists.
pub(super) fn paths(tree: &Tree) -> Vec<String> {
    let mut missing = Vec::new();
    for document in tree.documents() {
        let mut fence = false;
        for (number, line) in read(document).lines().enumerate() {
            if line.starts_with("```") {
                fence = !fence;
                continue;
            }
            // In a diagram, spaces separate words. In a shell line only sources are checked.
            let words: Vec<&str> = if fence {
                line.split_whitespace()
                    .filter(|word| word.ends_with(".rs") || word.ends_with(".md"))
                    .collect()
            } else {
                spans(line).collect()
            };
            let paths = words.into_iter().filter(|word| looks_like_path(word)).flat_map(expand);
            let absent = paths.filter(|path| !tree.has(path));
            missing.extend(absent.map(|path| format!("{document}:{}: there is no {path}", number + 1)));
        }
    }
    missing
}

/// The name of a heading in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Every link to a file or heading leads there.
pub(super) fn links(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for document in tree.ending(".md") {
        let folder = Path::new(document).parent().unwrap_or(Path::new(""));
        for link in read(document).split("](").skip(1) {
            let target = link.split(')').next().unwrap_or_default();
            if target.starts_with("http") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { Path::new(document).to_path_buf() } else { folder.join(file) };
            let has_heading = || {
                let text = read(file.to_str().unwrap_or_default());
                text.lines().any(|l| l.starts_with('#') && anchor(l.trim_start_matches('#')) == heading)
            };
            if !root().join(&file).exists() || !(heading.is_empty() || has_heading()) {
                wrong.push(format!("{document}: the link {target} leads nowhere"));
            }
        }
    }
    wrong
}

/// The numbers of headings that begin with `letter` and a number, as `## M1 ..` and `### D1 ..` do.
fn numbered(document: &str, letter: char, wrong: &mut Vec<String>) -> BTreeSet<usize> {
    let text = read(document);
    let headings = text.lines().filter_map(|line| line.strip_prefix("##"));
    let words = headings.filter_map(|line| line.trim_start_matches('#').split_whitespace().next());
    let mut numbers = BTreeSet::new();
    for number in words.filter_map(|word| word.strip_prefix(letter)?.parse().ok()) {
        if !numbers.insert(number) {
            wrong.push(format!("{document}: two headings have the number {letter}{number}"));
        }
    }
    if numbers.is_empty() {
        wrong.push(format!("{document}: no heading begins with {letter} and a number"));
    }
    numbers
}

/// Numbers of decisions and measurements (`D45`, `M12`) that documents name exist.
pub(super) fn numbers(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    let known = [('D', "DECISIONS.md"), ('M', "MEASURED.md")]
        .map(|(letter, document)| (letter, document, numbered(document, letter, &mut wrong)));
    for document in tree.documents().filter(|document| *document != "SPEC.md") {
        for word in read(document).split(|c: char| !c.is_ascii_alphanumeric()) {
            for (letter, source, numbers) in &known {
                let number = word.strip_prefix(*letter).and_then(|number| number.parse::<usize>().ok());
                // M0, M7, M33 and others are processors, not measurements.
                let processor = *letter == 'M' && matches!(number, Some(0 | 7 | 33 | 52 | 55 | 85));
                if !processor && number.is_some_and(|number| !numbers.contains(&number)) {
                    wrong.push(format!("{document} names {word}, which {source} does not have"));
                }
            }
        }
    }
    wrong
}

/// Tasks that documents and CI name (`cargo xtask TASK`) exist, and so do steps of `.ci/full`.
pub(super) fn tasks(tree: &Tree) -> Vec<String> {
    // A test holds that each task has its row there.
    let rows = TASKS.iter().filter_map(|(row, _)| row.strip_prefix("cargo xtask ")?.split(' ').next());
    let tasks: BTreeSet<&str> = rows.chain(["doctor"]).collect();
    let steps = read(".ci/long-steps");
    let is_step = |name: &str| name == "programs" || steps.contains(&format!("\nlong_{name}() {{"));
    let mut wrong = Vec::new();
    let scripts = [".ci/run", ".ci/full", ".ci/short-steps", ".ci/long-steps", ".github/workflows/full.yml"];
    for document in tree.documents().chain(scripts) {
        let text = read(document);
        for rest in text.split("cargo xtask ").skip(1) {
            let task = rest.split(|c: char| !(c.is_ascii_lowercase() || c == '-')).next().unwrap_or_default();
            if !tasks.contains(task) {
                wrong.push(format!("{document} names cargo xtask {task}; there are {tasks:?}"));
            }
        }
        for rest in text.split("`.ci/full ").skip(1) {
            let names = rest.split('`').next().unwrap_or_default().split(' ');
            let absent = names.filter(|name| !is_step(name));
            wrong.extend(absent.map(|name| format!("{document} names .ci/full {name}: no such step")));
        }
    }
    wrong
}

/// README, CONTRIBUTING and a workflow have one command that runs all tests.
pub(super) fn test_command(_: &Tree) -> Vec<String> {
    let files = ["README.md", "CONTRIBUTING.md", ".github/workflows/test.yml"];
    let has_command = |file: &&str| {
        let text = read(file);
        let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        lines.any(|line| line.trim_start_matches("- run: ") == "cargo test --workspace")
    };
    let lacking = files.iter().filter(|file| !has_command(file));
    lacking.map(|file| format!("{file} has no line cargo test --workspace")).collect()
}

/// Lines "Test: `path` `name`" of the mathematics name test functions of their files, and each section has one.
pub(super) fn formulas(_: &Tree) -> Vec<String> {
    let text = read("docs/mathematics.md");
    let mut wrong = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("Test: ")) {
        let named: Vec<&str> = spans(line).collect();
        let [path, name] = named[..] else {
            wrong.push(format!("docs/mathematics.md: {line}: expected a path and a name"));
            continue;
        };
        let source = read(path);
        let is_test = source
            .match_indices(&format!("fn {name}("))
            .any(|(at, _)| source[..at].trim_end().rsplit('\n').take(3).any(|line| line.trim() == "#[test]"));
        if !is_test {
            wrong.push(format!("docs/mathematics.md: {path} has no test {name}"));
        }
    }
    for section in text.split("\n## ").skip(1).filter(|section| !section.contains("\nTest: ")) {
        let title = section.lines().next().unwrap_or_default();
        wrong.push(format!("docs/mathematics.md: {title}: no line names its test"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_find_what_they_look_for() {
        assert!(looks_like_path("core/src/lib.rs") && looks_like_path("simd/src/page/{keys,values}.rs"));
        assert!(!looks_like_path("K,V") && !looks_like_path("cargo xtask ptx") && !looks_like_path("1/32"));
        assert_eq!(anchor(" I want to add ..."), "i-want-to-add-");
    }
}

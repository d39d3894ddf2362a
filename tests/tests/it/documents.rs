//! Holds the documents to the tree: paths, tables and links.
//!
//! ARCHITECTURE.md has two tables that these tests read as data. "Unsafe inventory" lists in its first column
//! every source file with `unsafe` code. "I want to add" has words of the code that stand for an existing
//! example. It lists and counts every source file that contains one of the words. A new one must change these
//! files.

use std::collections::BTreeSet;
use std::path::Path;

/// The guide takes ten minutes to read.
const GUIDE_LINES: usize = 300;
/// Lines of prose and of pictures are not wider. Rows of tables are.
const GUIDE_COLUMNS: usize = 130;
/// Longer files hold two ideas.
const SOURCE_LINES: usize = 700;

/// Files that may contain `unsafe`: instruction sets (also of a benchmark), launches, C pointers, foreign
/// tensors, leaf files of the library, bare machines.
const MAY_BE_UNSAFE: [&str; 17] = [
    "simd/src/",
    "benches/src/q4_0.rs",
    "benches/src/read.rs",
    "gpu/src/",
    "gpu/kernels/src/",
    "gpu/rust-cuda/src/",
    "gpu/check/src/",
    "tests/cuda/src/",
    "host/capi/src/",
    "host/capi/fixed/src/",
    "host/python/src/dlpack.rs",
    "host/capi/lm/src/",
    "host/llama/src/",
    "host/src/matmul.rs",
    "host/src/mmap.rs",
    "host/src/reserve/",
    "tests/firmware/",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate")
}

/// Every file of the repository, relative to its root, with `/` between folders and without build outputs.
fn tree() -> BTreeSet<String> {
    fn walk(folder: &Path, prefix: &str, out: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let hidden = name.starts_with('.') && ![".cargo", ".ci", ".github"].contains(&name.as_str());
            if name == "target" || hidden {
                continue;
            }
            let path = format!("{prefix}{name}");
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &format!("{path}/"), out);
            } else {
                out.insert(path);
            }
        }
    }
    let mut out = BTreeSet::new();
    walk(root(), "", &mut out);
    assert!(out.len() > 200, "the tree was not found");
    out
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents about the current tree. The changelog is about earlier ones.
fn documents(tree: &BTreeSet<String>) -> Vec<&String> {
    let found: Vec<_> = tree.iter().filter(|p| p.ends_with(".md") && *p != "CHANGELOG.md").collect();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// Code spans of a line: the texts between single backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The rows of the table below a heading, without its head. Cells are trimmed.
fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let section = text.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|l| l.starts_with('|')).skip(2);
    let cells = |row: &str| row.trim_matches('|').split('|').map(|c| c.trim().to_string()).collect();
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(rows.len() > 3, "{heading} has no table");
    rows
}

/// Expands `a/{b,c}.rs` to two paths.
fn expand(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?))) {
        None => vec![path.to_string()],
        Some((head, (middle, tail))) => {
            middle.split(',').flat_map(|m| expand(&format!("{head}{}{tail}", m.trim()))).collect()
        }
    }
}

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
        && (folder || ENDINGS.iter().any(|e| word.ends_with(e) && word.len() > e.len()))
        && !NO_PATHS.contains(&word)
}

/// Returns true if a file or folder has this path, or ends with it.
fn exists(tree: &BTreeSet<String>, path: &str) -> bool {
    let path = path.trim_start_matches("./").trim_end_matches('/');
    let (inner, below) = (format!("/{path}/"), format!("/{path}"));
    tree.iter().any(|p| p == path || p.ends_with(&below) || format!("/{p}").contains(&inner))
}

#[test]
fn every_path_that_a_document_names_exists() {
    let tree = tree();
    let (mut seen, mut missing) = (0, Vec::new());
    for document in documents(&tree) {
        let mut fence = false;
        for (number, line) in read(document).lines().enumerate() {
            if line.starts_with("```") {
                fence = !fence;
                continue;
            }
            // In a diagram, spaces separate words. In a shell line only sources are checked.
            let words: Vec<&str> = if fence {
                line.split_whitespace().filter(|w| w.ends_with(".rs") || w.ends_with(".md")).collect()
            } else {
                spans(line).collect()
            };
            for word in words.into_iter().filter(|w| looks_like_path(w)) {
                for path in expand(word) {
                    seen += 1;
                    if !exists(&tree, &path) {
                        missing.push(format!("{document}:{}: {path}", number + 1));
                    }
                }
            }
        }
    }
    assert!(seen > 100, "only {seen} paths found");
    assert!(missing.is_empty(), "no such file or folder:\n{}", missing.join("\n"));
}

/// The name of a heading in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_link_resolves() {
    let tree = tree();
    let (mut seen, mut wrong) = (0, Vec::new());
    for document in tree.iter().filter(|p| p.ends_with(".md")) {
        let folder = Path::new(document).parent().unwrap();
        for link in read(document).split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if target.starts_with("http") {
                continue;
            }
            seen += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { Path::new(document).to_path_buf() } else { folder.join(file) };
            let has_heading = || {
                let text = read(file.to_str().unwrap());
                text.lines().any(|l| l.starts_with('#') && anchor(l.trim_start_matches('#')) == heading)
            };
            if !root().join(&file).exists() || !(heading.is_empty() || has_heading()) {
                wrong.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(seen > 20, "only {seen} links found");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn the_guide_is_short() {
    let guide = read("ARCHITECTURE.md");
    let lines = guide.lines().count();
    assert!(lines <= GUIDE_LINES, "ARCHITECTURE.md has {lines} lines of at most {GUIDE_LINES}");
    let wide = guide.lines().filter(|line| !line.starts_with('|') && line.chars().count() > GUIDE_COLUMNS);
    assert_eq!(wide.collect::<Vec<_>>(), [""; 0], "wider than {GUIDE_COLUMNS} columns");
}

/// The number of numbered headings of a document, `## D1 ...`, which count up from 1.
fn numbered(document: &str, letter: char) -> usize {
    let text = read(document);
    let numbers = text.lines().filter_map(|l| l.strip_prefix("## ")?.strip_prefix(letter));
    let numbers: Vec<usize> = numbers
        .map(|l| l.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{document}: {l}")))
        .collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "{document} counts from 1");
    assert!(!numbers.is_empty());
    numbers.len()
}

#[test]
fn numbers_of_decisions_and_measurements_exist() {
    let counts = [('D', numbered("DECISIONS.md", 'D')), ('M', numbered("MEASURED.md", 'M'))];
    let tree = tree();
    for document in documents(&tree).into_iter().filter(|d| d.as_str() != "SPEC.md") {
        for word in read(document).split(|c: char| !c.is_ascii_alphanumeric()) {
            for (letter, count) in counts {
                let number = word.strip_prefix(letter).and_then(|n| n.parse::<usize>().ok());
                // M0, M7, M33 and others are processors, not measurements.
                let processor = letter == 'M' && matches!(number, Some(0 | 7 | 33 | 52 | 55 | 85));
                assert!(
                    processor || number.is_none_or(|n| (1..=count).contains(&n)),
                    "{document} names {word}; {letter}1 to {letter}{count} exist"
                );
            }
        }
    }
}

/// Seven hexadecimal digits with at least one number among them.
fn is_commit(word: &str) -> bool {
    word.len() == 7
        && word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
        && word.chars().any(|c| c.is_ascii_digit())
}

#[test]
fn every_measured_table_has_a_date_and_a_commit() {
    let text = read("MEASURED.md");
    for section in text.split("\n## M").skip(1) {
        let title = section.lines().next().unwrap();
        let words: Vec<&str> = section.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
        assert!(words.iter().any(|w| is_commit(w)), "M{title}: no commit");
        assert!(
            words.iter().any(|w| w.len() == 10 && w.starts_with("20") && w.matches('-').count() == 2),
            "M{title}: no date"
        );
    }
}

#[test]
fn counts_in_documents_are_those_of_the_tree() {
    let kernels = read("gpu/ptx/sm_80.ptx").matches(".visible .entry ").count();
    let rows = read("core/src/code/list.rs");
    let trellises =
        rows.lines().filter(|row| row.contains("] Trellis(&tables::") && !row.contains(" quarters "));
    let trellises = trellises.count();
    for (document, says) in [
        ("gpu/DESIGN.md", format!("\n  all {kernels}.\n")),
        ("core/src/fixed/DESIGN.md", format!("all {trellises} trellis codes of one width")),
    ] {
        assert!(read(document).contains(&says), "{document} does not say '{}'", says.trim());
    }
}

/// Returns true for sources that are built into a product: no tests, no test helpers, no fuzz targets.
fn is_source(path: &str) -> bool {
    path.ends_with(".rs")
        && path.split('/').any(|part| part == "src")
        && !path.split('/').skip(1).any(|part| part == "tests" || part == "tests.rs")
        && !path.starts_with("tests/src/")
        && !path.starts_with("fuzz/")
}

/// The code of a source, without comments and without the test module at its end.
fn code(path: &str) -> String {
    let text = read(path);
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Returns true if `text` contains `word`, but not inside a longer name.
fn names(text: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + word.len()..].chars().next())
    })
}

/// Returns true if code has an unsafe block, function, trait or implementation. Attributes and lints do not
/// count.
fn is_unsafe(code: &str) -> bool {
    code.match_indices("unsafe").any(|(at, word)| {
        let rest = code[at + word.len()..].trim_start();
        !code[..at].ends_with(['_', '(', '"'])
            && ["{", "fn ", "impl", "trait ", "extern "].iter().any(|next| rest.starts_with(next))
    })
}

#[test]
fn the_unsafe_inventory_is_the_tree() {
    let listed: BTreeSet<String> = table(&read("ARCHITECTURE.md"), "Unsafe inventory")
        .iter()
        .flat_map(|row| spans(&row[0]).flat_map(expand).collect::<Vec<_>>())
        .collect();
    let tree = tree();
    let found: BTreeSet<String> =
        tree.iter().filter(|p| is_source(p) && is_unsafe(&code(p))).cloned().collect();
    assert!(found.len() > 10);
    for path in &found {
        let may = MAY_BE_UNSAFE.iter().any(|allowed| path.starts_with(allowed));
        assert!(may, "{path} has unsafe code, which only {MAY_BE_UNSAFE:?} may have");
    }
    assert_eq!(
        listed.difference(&found).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "ARCHITECTURE.md lists files without unsafe code"
    );
    assert_eq!(
        found.difference(&listed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "ARCHITECTURE.md lacks files with unsafe code"
    );
}

#[test]
fn every_crate_has_the_name_that_the_guide_gives_it() {
    let rows = table(&read("ARCHITECTURE.md"), "Crates");
    for row in &rows {
        let cell: Vec<&str> = spans(&row[0]).collect();
        let manifest = read(&format!("{}/Cargo.toml", cell[0]));
        for name in &cell[1..] {
            assert!(manifest.contains(&format!("\nname = \"{name}\"\n")), "{} is not {name}", cell[0]);
        }
    }
    let listed: BTreeSet<&str> = rows.iter().filter_map(|row| spans(&row[0]).next()).collect();
    for manifest in tree().iter().filter_map(|p| p.strip_suffix("/Cargo.toml")) {
        let inside = listed.iter().any(|folder| manifest == *folder);
        // Programs to copy are no crates of the project.
        let to_copy = manifest.starts_with("tests/") || manifest.contains("/examples/");
        assert!(inside || to_copy, "ARCHITECTURE.md lacks the crate {manifest}");
    }
}

#[test]
fn every_seam_is_where_the_guide_says() {
    for row in table(&read("ARCHITECTURE.md"), "The seams") {
        let code: String = spans(&row[1]).map(code).collect();
        for name in spans(&row[0]) {
            let defined =
                ["trait", "struct", "enum"].iter().any(|kind| names(&code, &format!("{kind} {name}")));
            assert!(defined, "{name} is not defined in {}", row[1]);
        }
    }
}

#[test]
fn every_row_of_i_want_to_add_names_the_files_that_it_touches() {
    let tree = tree();
    let sources: Vec<(&String, String)> =
        tree.iter().filter(|p| is_source(p)).map(|p| (p, code(p))).collect();
    let mut wrong = Vec::new();
    for row in table(&read("ARCHITECTURE.md"), "I want to add ...") {
        let (folders, words): (Vec<&str>, Vec<&str>) = spans(&row[1]).partition(|w| w.ends_with('/'));
        assert!(!words.is_empty(), "{}: no word of the code", row[0]);
        let listed: BTreeSet<String> = spans(&row[3]).flat_map(expand).collect();
        let found: BTreeSet<String> = sources
            .iter()
            .filter(|(path, _)| folders.is_empty() || folders.iter().any(|f| path.starts_with(f)))
            .filter(|(_, text)| words.iter().any(|word| names(text, word)))
            .map(|(path, _)| (*path).clone())
            .collect();
        if found.is_empty() || row[2] != found.len().to_string() {
            wrong.push(format!("{}: {} files name {words:?}, not {}", row[0], found.len(), row[2]));
        }
        for path in listed.difference(&found) {
            wrong.push(format!("{}: {path} does not name {words:?}", row[0]));
        }
        for path in found.difference(&listed) {
            wrong.push(format!("{}: {path} names {words:?} and is not listed", row[0]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Turns `GpuCheck` into `gpu-check`, its name on the command line.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

#[test]
fn every_task_that_a_document_names_exists() {
    let tree = tree();
    let main = tree.iter().find(|p| p.ends_with("xtask/src/main.rs")).expect("xtask");
    let code = code(main);
    let tasks = code.split("enum Task {").nth(1).unwrap().split("\n}").next().unwrap();
    let tasks: BTreeSet<String> =
        tasks.lines().filter_map(|l| l.trim().split_once('(')).map(|(name, _)| kebab(name)).collect();
    assert!(tasks.len() > 4, "{tasks:?}");
    let mut seen = 0;
    for document in documents(&tree)
        .into_iter()
        .cloned()
        .chain([".ci/short-steps".to_string(), ".ci/long-steps".to_string()])
    {
        for rest in read(&document).split("cargo xtask ").skip(1) {
            let task = rest.split(|c: char| !(c.is_ascii_lowercase() || c == '-')).next().unwrap();
            seen += 1;
            assert!(tasks.contains(task), "{document} names `cargo xtask {task}`; there are {tasks:?}");
        }
    }
    assert!(seen > 10, "only {seen} tasks found");
}

/// Lines "Test: `path` `name`" of the mathematics name test functions of their files.
#[test]
fn every_formula_names_tests_that_exist() {
    let text = read("docs/mathematics.md");
    let named: Vec<Vec<&str>> =
        text.lines().filter(|l| l.starts_with("Test: ")).map(|l| spans(l).collect()).collect();
    assert!(named.len() > 20, "only {} tests are named", named.len());
    for test in named {
        let [path, name] = test[..] else { panic!("{test:?} is not a path and a name") };
        let source = read(path);
        let found = source
            .match_indices(&format!("fn {name}("))
            .any(|(at, _)| source[..at].trim_end().rsplit('\n').take(3).any(|line| line.trim() == "#[test]"));
        assert!(found, "{path} has no test {name}");
    }
    for section in text.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap();
        assert!(section.contains("\nTest: "), "{title}: nothing holds it");
    }
}

#[test]
fn ci_runs_the_test_command_of_readme() {
    for file in ["README.md", "CONTRIBUTING.md", ".ci/short-steps"] {
        let text = read(file);
        let mut commands = text.lines().map(|line| line.split('#').next().unwrap().trim());
        assert!(commands.any(|command| command == "cargo test --workspace"), "{file}");
    }
}

#[test]
fn no_source_is_long() {
    for path in tree().iter().filter(|p| p.ends_with(".rs")) {
        let lines = read(path).lines().count();
        assert!(
            lines <= SOURCE_LINES,
            "{path} has {lines} lines of at most {SOURCE_LINES}: it holds two ideas"
        );
    }
}

#[test]
fn the_checks_find_what_they_look_for() {
    assert!(looks_like_path("core/src/lib.rs") && looks_like_path("simd/src/page/{keys,values}.rs"));
    assert!(!looks_like_path("K,V") && !looks_like_path("cargo xtask ptx") && !looks_like_path("1/32"));
    assert_eq!(expand("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
    let tree: BTreeSet<String> = ["core/src/lib.rs".to_string()].into();
    assert!(exists(&tree, "core/src") && exists(&tree, "lib.rs") && exists(&tree, "src/lib.rs"));
    assert!(!exists(&tree, "ib.rs") && !exists(&tree, "core/lib.rs"));
    assert!(names("match id { S4 => 1 }", "S4") && !names("NS4 S45 S4_", "S4"));
    assert!(
        is_unsafe("let x = unsafe { y }") && is_unsafe("pub unsafe fn f()") && is_unsafe("unsafe impl A")
    );
    assert!(!is_unsafe("#![forbid(unsafe_code)]") && !is_unsafe("#![deny(unsafe_op_in_unsafe_fn)]"));
    assert!(is_commit("04a07b9") && !is_commit("default") && !is_commit("04a07b"));
    assert_eq!(anchor(" I want to add ..."), "i-want-to-add-");
}

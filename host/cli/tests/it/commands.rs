//! The commands that documents and `--help` show are run, each in a folder of its own.
//!
//! A file that a command reads is made before it, with the shipped model in place of foreign ones. Options
//! that only say how much is measured become small. [`NOT_RUN`] lists what cannot run here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::commands_inputs::{Inputs, written};
use crate::{PROGRAM, support};

/// Beginnings of commands that are not run, and why. Each is of a document or a help text.
const NOT_RUN: [(&str, &str); 17] = [
    ("git log -3 | tqkv generate", "reads the history of the reader's repository"),
    ("python3 dump_keys.py | tqkv encode", "a program of the reader"),
    ("tqkv bench --model", "times a whole model"),
    ("tqkv bench --op scores --level avx2", "not every machine has AVX2"),
    ("tqkv demo", "times attention for half a minute; other tests run it"),
    ("tqkv doctor", "looks at engines and packages of the reader, with which something may be wrong"),
    ("tqkv eval --kv \"program=python3", "needs NumPy and the Python package"),
    ("tqkv gpu-check", "needs a GPU"),
    ("tqkv llama", "needs the library and a build of llama.cpp"),
    ("tqkv man | man", "not every machine has man"),
    ("tqkv session serve", "serves until it is ended, beside llama-server"),
    ("tqkv-lab compare s4@portable s4@avx2", "not every machine has AVX2"),
    ("tqkv-lab eval --model DIR --storage", "the basis made here is of a model with another name"),
    ("tqkv-lab picture docs/picture.svg", "draws nothing on a busy machine"),
    ("tqkv-lab picture picture.svg", "draws nothing on a busy machine"),
    ("tqkv-lab report", "takes a minute"),
    ("tqkv-lab sweep", "takes a minute"),
];

/// Options that say how much is measured, by command. They replace what is given, or are added.
fn small(command: &str, line: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "eval" if line.contains("--recall") => &[("--context", "1024")],
        "eval" if line.contains("--marks") => &[("--context", "192")],
        "bench" => &[("--seconds", "1")],
        "basis" => &[("--context", "512"), ("--windows", "2")],
        "tune" => &[("--kinds", "prose"), ("--text-tokens", "256"), ("--texts", "1")],
        "eval" => &[("--windows", "1"), ("--context", "192"), ("--from", "64")],
        "generate" | "chat" => &[("-n", "3")],
        "needle" => &[("--tokens", "2048")],
        "stats" => &[("--random", "500")],
        _ => &[],
    }
}

/// Columns of a help text without a terminal: a line ends where the next word does not fit.
const WIDTH: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn name() -> &'static str {
    Path::new(PROGRAM).file_stem().unwrap().to_str().unwrap()
}

/// Returns true if a part of the line is a command of the program under test.
fn is_ours(line: &str) -> bool {
    let starts = |part: &str| part.trim().strip_prefix(name()).is_some_and(|rest| rest.starts_with(' '));
    line.split("&&").flat_map(|part| part.split('|')).any(starts)
}

/// The documents about the current tree.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let skipped = name.starts_with('.') || ["target", "node_modules", "corpus"].contains(&&*name);
        if entry.file_type().unwrap().is_dir() && !skipped {
            documents(&entry.path(), found);
        } else if name.ends_with(".md") && !["CHANGELOG.md", "DECISIONS.md", "MEASURED.md"].contains(&&*name)
        {
            found.push(entry.path());
        }
    }
}

/// Returns true if a code span is a complete command, and not the name of one with some of its options.
fn is_whole(span: &str) -> bool {
    let words: Vec<_> = span.split_whitespace().skip(1).collect();
    let names = if words.first().is_some_and(|word| ["session", "weights"].contains(word)) { 2 } else { 1 };
    let given = words.iter().skip(names);
    let is_placeholder = |word: &&&str| word.chars().all(|c| c.is_ascii_uppercase());
    let left_open = given.clone().any(|word| word.contains("..") || is_placeholder(&word) && *word != "DIR");
    !left_open && given.clone().any(|word| !word.starts_with("--"))
}

/// Lines of shell blocks without their comments, and code between single backticks.
fn commands_in(text: &str) -> Vec<String> {
    let (mut found, mut fence) = (Vec::new(), None);
    for line in text.lines() {
        let mark = line.trim_start().strip_prefix("```");
        match (mark, fence) {
            (Some(_), Some(_)) => fence = None,
            (Some(language), None) => fence = Some(["sh", "console"].contains(&language)),
            (None, Some(true)) => found.push(line.split(" # ").next().unwrap().trim().to_owned()),
            (None, Some(false)) => {}
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2);
                found.extend(spans.filter(|span| is_whole(span)).map(str::to_owned));
            }
        }
    }
    found.retain(|line| is_ours(line));
    found
}

/// The lines of the paragraphs "Example" of a help text. A line that the terminal has broken is one again.
fn examples(help: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for paragraph in help.split("\n\n").filter(|paragraph| paragraph.trim_start().starts_with("Example")) {
        let mut before = 0;
        for line in paragraph.trim_start().lines() {
            let first = line.split_whitespace().next().map_or(0, str::len);
            match (line.strip_prefix("  "), found.last_mut()) {
                (Some(rest), Some(last)) if before + 1 + first > WIDTH => *last = format!("{last} {rest}"),
                (Some(command), _) => found.push(command.to_owned()),
                (None, _) => {}
            }
            before = if line.starts_with("  ") { line.len() } else { 0 };
        }
    }
    found.retain(|line| is_ours(line));
    found
}

/// Help texts of the program's commands and of theirs.
fn helps(words: &[&str], found: &mut Vec<(String, String)>) {
    let help = support::tqkv(&root(), &[words, &["--help"]].concat());
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).map_or("", |rest| rest.split("\n\n").next().unwrap());
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    for command in commands.lines().filter(is_name).filter_map(|line| line.split_whitespace().next()) {
        if command != "help" {
            helps(&[words, &[command]].concat(), found);
        }
    }
    found.push((format!("{} {} --help", name(), words.join(" ")), help));
}

/// The words of a command. A quoted one stays in one piece, with its quotes.
fn words(line: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == ' ' => {
                found.push(String::new());
                continue;
            }
            _ => {}
        }
        found.last_mut().unwrap().push(c);
    }
    found.retain(|word| !word.is_empty());
    found
}

/// The line with small options.
fn shortened(line: &str) -> String {
    let parts = line.split(" && ").map(|part| {
        let mut words = words(part);
        let Some(command) = words.iter().position(|word| word == name()).map(|at| words[at + 1].clone())
        else {
            return part.to_owned();
        };
        for (option, value) in small(&command, line) {
            // Random vectors are measured in place of an array.
            let reads =
                |word: &String| [".npy", ".safetensors", "--delta"].iter().any(|part| word.contains(part));
            // A short option is the beginning of the long one.
            let is_it = |word: &String| word == option || *option == "-n" && word == "--tokens";
            if let Some(at) = words.iter().position(is_it) {
                words[at + 1] = (*value).to_owned();
            } else if *option != "--random" || !words.iter().any(reads) {
                words.extend([*option, *value].map(str::to_owned));
            }
        }
        words.join(" ")
    });
    parts.collect::<Vec<_>>().join(" && ")
}

/// Runs a line in a shell, in a new folder with the files that it reads.
fn run(line: &str, inputs: &Inputs) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let line = shortened(line);
    let words = words(&line);
    let written = written(&words);
    for word in &words {
        if written.contains(word) {
            let path = folder.path().join(word.strip_prefix("~/").unwrap_or(word));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        } else {
            inputs.lay(folder.path(), &words, word);
        }
    }
    let path = std::env::join_paths(
        [Path::new(PROGRAM).parent().unwrap().to_path_buf()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(folder.path());
    // A reader has none of the variables of these tests, and the command refuses those that it does not know.
    let ours = std::env::vars_os().map(|(name, _)| name);
    ours.filter(|name| name.to_string_lossy().starts_with("TQKV_")).for_each(|name| {
        shell.env_remove(name);
    });
    shell.env_remove("COLUMNS").env("PATH", path.unwrap()).env("HOME", folder.path()).env("TQKV", root());
    shell.output().unwrap()
}

#[test]
fn every_command_of_a_document_runs() {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut paths = Vec::new();
    documents(&root(), &mut paths);
    for path in paths {
        // Others than ours may lie in a checkout, in any encoding.
        let commands = commands_in(&String::from_utf8_lossy(&fs::read(&path).unwrap()));
        found.extend(commands.into_iter().map(|command| (command, path.display().to_string())));
    }
    let mut texts = Vec::new();
    helps(&[], &mut texts);
    for (place, help) in texts {
        found.extend(examples(&help).into_iter().map(|command| (command, place.clone())));
    }
    // Without this feature there is no such command.
    let is_built = |start: &str| cfg!(feature = "cuda") || !start.contains("gpu-check");
    for (start, why) in NOT_RUN.iter().filter(|(start, _)| is_ours(&format!("{start} ")) && is_built(start)) {
        assert!(found.keys().any(|line| line.starts_with(start)), "no document has: {start} ({why})");
    }
    found.retain(|line, _| !NOT_RUN.iter().any(|(start, _)| line.starts_with(start)));
    assert!(found.len() > 15, "only {} commands", found.len());
    let inputs = Inputs::new();
    let failed = found.iter().filter_map(|(line, place)| {
        let output = run(line, &inputs);
        let said = String::from_utf8_lossy(&output.stderr);
        (!output.status.success()).then(|| format!("{place}: {line}\n    {said}"))
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), found.len(), failed.join("\n"));
}

#[test]
fn commands_are_found_in_texts() {
    let tool = name();
    let text = format!("`{tool} plan` `{tool} plan --ram 4KiB`\n```sh\nls | {tool} x  # y\n{tool}\n```\n");
    assert_eq!(commands_in(&text), [format!("{tool} plan --ram 4KiB"), format!("ls | {tool} x")]);
    let long = format!("{tool} {}", "a".repeat(WIDTH - 12));
    let help = format!("Usage: x\n\nExample: one\n  {long}\n  bbbbbbbb c\nExample: two\n  {tool} d\n  ls\n");
    assert_eq!(examples(&help), [format!("{long} bbbbbbbb c"), format!("{tool} d")]);
    let short = shortened(&format!("{tool} eval --windows 48 --kv s4"));
    assert!(short.contains("--windows 1 ") && short.contains("--context 192"), "{short}");
}

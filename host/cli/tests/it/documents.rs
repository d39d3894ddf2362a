//! The documents name commands and options that the program has, and ways to install it that work.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::tqkv;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Documents for users, by their paths.
fn documents() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("host/cli/README.md")];
    paths.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(paths.len() > 5);
    paths.into_iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect()
}

/// Commands in a text: lines of shell blocks, and code between single backticks.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let code = line.split(" # ").next().unwrap_or(line);
            found.extend(
                code.split("&&").map(str::trim).filter(|c| c.starts_with("tqkv ")).map(str::to_owned),
            );
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.filter(|span| span.starts_with("tqkv ")).map(str::to_owned));
        }
    }
    found
}

#[test]
fn every_command_in_a_document_exists_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let mut help = BTreeMap::new();
    let mut seen = 0;
    for (path, text) in documents() {
        for command in commands(&text) {
            let mut words = command.split_whitespace().skip(1);
            let name = words.next().unwrap();
            if name == "COMMAND" || name.starts_with('-') {
                continue;
            }
            if name == "gpu-check" && cfg!(not(feature = "cuda")) {
                let paragraph =
                    text.split("\n\n").find(|paragraph| paragraph.contains("tqkv gpu-check")).unwrap();
                assert!(paragraph.contains("`--features cuda` has"), "{path}: which build has {command}?");
                continue;
            }
            seen += 1;
            let nested = match name {
                "weights" => Some("compress"),
                "session" => words.clone().next(),
                _ => None,
            };
            let options = help.entry((name.to_owned(), nested.map(str::to_owned))).or_insert_with(|| {
                let args: Vec<_> = [Some(name), nested, Some("--help")].into_iter().flatten().collect();
                let output = tqkv(folder.path(), &args);
                assert!(output.status.success(), "{path}: {command}");
                String::from_utf8(output.stdout).unwrap()
            });
            for option in words.filter(|word| word.starts_with("--") && word.len() > 2) {
                let option = option.trim_end_matches([',', ')', '.']).split('=').next().unwrap();
                let has = |sign: char| options.contains(&format!("{option}{sign}"));
                assert!([' ', '\n', ']', ','].into_iter().any(has), "{path}: {command}: {option}");
            }
        }
    }
    assert!(seen > 30, "only {seen} commands found");
}

/// Nothing is published yet: what a registry would be asked for is not there.
#[test]
fn no_document_sends_readers_to_a_registry() {
    let mut paths: Vec<_> = documents();
    for folder in [
        "benches",
        "core",
        "gpu",
        "gpu/check",
        "gpu/kernels",
        "host",
        "host/model",
        "host/storage",
        "simd",
        "lm",
    ] {
        let path = root().join(folder).join("README.md");
        paths.push((path.display().to_string(), fs::read_to_string(&path).unwrap_or_default()));
    }
    for (path, text) in paths {
        for wrong in ["cargo install tqkv", "cargo add tqkv", "crates.io/crates/tqkv"] {
            assert!(!text.contains(wrong), "{path}: {wrong}");
        }
    }
}

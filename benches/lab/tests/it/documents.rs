//! Commands and options in the documents exist in `tqkv` and `tqkv-lab`, and the ways to install them work.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use tqkv_cli::Tqkv;

use crate::support::tqkv as lab;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Documents for users, by their paths.
fn documents() -> Vec<(String, String)> {
    let mut paths = ["README.md", "host/cli/README.md", "benches/lab/README.md", "host/reference/README.md"]
        .map(|path| root().join(path))
        .to_vec();
    paths.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(paths.len() > 5);
    paths.into_iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect()
}

fn is_command(code: &str) -> bool {
    code.starts_with("tqkv ") || code.starts_with("tqkv-lab ")
}

/// The help of one of the program's own commands.
fn help_of(program: &str, name: &str) -> Option<String> {
    if program == "tqkv-lab" {
        let output = lab(&root(), &[name, "--help"]);
        return output.status.success().then(|| String::from_utf8(output.stdout).unwrap());
    }
    let mut command = Tqkv::command();
    command.build();
    let command = command.find_subcommand_mut(name).filter(|command| !command.is_hide_set())?;
    let nested = command.get_subcommands().filter(|nested| nested.get_name() != "help");
    let nested: Vec<_> = nested.map(|nested| nested.clone().render_long_help().to_string()).collect();
    Some(format!("{}\n{}", command.render_long_help(), nested.join("\n")))
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
            found.extend(code.split("&&").map(str::trim).filter(|c| is_command(c)).map(str::to_owned));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.filter(|span| is_command(span)).map(str::to_owned));
        }
    }
    found
}

#[test]
fn every_command_in_a_document_exists_with_its_options() {
    let mut help = BTreeMap::new();
    let mut seen = 0;
    for (path, text) in documents() {
        for command in commands(&text) {
            let mut words = command.split_whitespace();
            let (program, name) = (words.next().unwrap(), words.next().unwrap());
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
            let options = help.entry(format!("{program} {name}")).or_insert_with(|| {
                help_of(program, name).unwrap_or_else(|| panic!("{path}: {command}: no such command"))
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

/// Nothing is published yet, so no document installs from a registry.
#[test]
fn no_document_sends_readers_to_a_registry() {
    let mut paths: Vec<_> = documents();
    for folder in
        ["benches", "core", "gpu", "gpu/kernels", "host", "host/model", "host/storage", "simd", "core/mcu/lm"]
    {
        let path = root().join(folder).join("README.md");
        paths.push((path.display().to_string(), fs::read_to_string(&path).unwrap_or_default()));
    }
    for (path, text) in paths {
        for wrong in ["cargo install tqkv", "cargo add tqkv", "crates.io/crates/tqkv"] {
            assert!(!text.contains(wrong), "{path}: {wrong}");
        }
    }
}

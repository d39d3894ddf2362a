//! What is published: versions, licences, the oldest toolchain, and size.

use super::metadata::{Metadata, cargo, text};
use super::tree::{Tree, read, root};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Licences that only require attribution.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The size limit of the registry.
const MAX_CRATE_BYTES: u64 = 10 << 20;

/// The README of a package.
fn readme(package: &Value) -> String {
    let file = Path::new(text(package, "manifest_path")).with_file_name("README.md");
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Every crate that goes to the registry says what it is, and depends on nothing that does not go there.
pub(super) fn introductions(_: &Tree) -> Vec<String> {
    let metadata = Metadata::read();
    let crates = metadata.published();
    let names: Vec<&str> = crates.iter().map(|package| text(package, "name")).collect();
    let mut wrong = Vec::new();
    for needed in ["tqkv-core", "tqkv-simd", "tqkv-gpu", "tqkv", "tqkv-model", "tqkv-cli"] {
        if !names.contains(&needed) {
            wrong.push(format!("{needed} is not published"));
        }
    }
    for package in crates {
        let name = text(package, "name");
        for key in ["description", "license", "readme", "rust_version"] {
            if text(package, key).is_empty() {
                wrong.push(format!("{name} has no {key}"));
            }
        }
        for key in ["keywords", "categories"] {
            if !(1..=5).contains(&package[key].as_array().map_or(0, Vec::len)) {
                wrong.push(format!("{name}: 1 to 5 {key}"));
            }
        }
        if !readme(package).starts_with(&format!("# {name}\n")) {
            wrong.push(format!("{name}: its README is not headed by its name"));
        }
        if package["features"].as_object().is_some_and(|features| !features.is_empty())
            && !package["metadata"]["docs"]["rs"].is_object()
        {
            wrong.push(format!("{name} has features and does not say which docs.rs describes"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_local = dependency["path"].is_string() && text(dependency, "kind") != "dev";
            let (on, version) = (text(dependency, "name"), text(dependency, "req"));
            if is_local && (version == "*" || !names.contains(&on)) {
                wrong.push(format!("{name} depends on {on}, which has no version or is not published"));
            }
        }
    }
    wrong
}

/// The last text in quotes on the first line of the file that begins with `key`.
fn quoted(file: &str, key: &str) -> String {
    let text = read(file);
    let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.rsplit('"').nth(1).unwrap_or_default().to_string()
}

/// The lines of a manifest that give a version to one of our packages, by their numbers.
fn versions(manifest: &str) -> Vec<(usize, &str)> {
    let mut is_package = false;
    let mut found = Vec::new();
    for (number, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            is_package = ["[package]", "[workspace.package]"].contains(&line);
        }
        let is_ours = line.contains("path = ") || (is_package && line.starts_with("version = "));
        if let Some((_, version)) = line.split_once("version = \"").filter(|_| is_ours) {
            found.push((number + 1, version.split('"').next().unwrap_or_default()));
        }
    }
    found
}

/// One version in every manifest, and in the names of archives and wheels that documents have.
pub(super) fn version(tree: &Tree) -> Vec<String> {
    let version = quoted("Cargo.toml", "version");
    let mut wrong = Vec::new();
    for path in tree.ending("Cargo.toml").filter(|path| !path.starts_with("fuzz/")) {
        let text = read(path);
        let others = versions(&text).into_iter().filter(|(_, other)| *other != version);
        wrong.extend(others.map(|(line, other)| format!("{path}:{line} has {other}, Cargo.toml {version}")));
    }
    for (path, key) in [
        ("host/npm/package.json", "  \"version\": "),
        (".ci/install.sh", "version="),
        ("host/jvm/src/tqkv/Native.java", "    static final String VERSION"),
    ] {
        let other = quoted(path, key);
        if other != version {
            wrong.push(format!("{path} has {other}, Cargo.toml {version}"));
        }
    }
    for document in tree.documents() {
        for name in ["tqkv-llama-", "tqkv_cache-", "tqkv-c-"] {
            let text = read(document);
            let rests =
                text.split(name).skip(1).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            if rests.into_iter().any(|rest| !rest.starts_with(&version)) {
                wrong.push(format!("{document} names a {name} of another version than {version}"));
            }
        }
    }
    wrong
}

/// One number in three places: the pinned, the promised and the documented toolchain.
pub(super) fn toolchain(_: &Tree) -> Vec<String> {
    let promised = quoted("Cargo.toml", "rust-version");
    let pinned = quoted("rust-toolchain.toml", "channel");
    let mut wrong = Vec::new();
    if pinned.rsplit_once('.').map(|(release, _)| release) != Some(promised.as_str()) {
        wrong.push(format!("rust-toolchain.toml has {pinned}, Cargo.toml {promised}"));
    }
    if !read("README.md").contains(&format!("Rust {promised}")) {
        wrong.push(format!("README.md does not name Rust {promised}"));
    }
    for package in Metadata::read().published() {
        let name = text(package, "name");
        let is_promised = text(package, "rust_version") == promised;
        if !is_promised || !readme(package).contains(&format!("Rust {promised} or newer")) {
            wrong.push(format!("{name} or its README does not promise Rust {promised} or newer"));
        }
    }
    wrong
}

/// Returns true if [`ACCEPTED`] licences alone allow the use of code under `expression`. It is an SPDX
/// expression or the older `A/B`.
fn is_accepted(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let accepted = any(&tokens, &mut at);
    accepted && at == tokens.len()
}

fn any(tokens: &[&str], at: &mut usize) -> bool {
    let mut accepted = all(tokens, at);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        accepted |= all(tokens, at);
    }
    accepted
}

fn all(tokens: &[&str], at: &mut usize) -> bool {
    let mut accepted = one(tokens, at);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        accepted &= one(tokens, at);
    }
    accepted
}

fn one(tokens: &[&str], at: &mut usize) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token == "(" {
        let accepted = any(tokens, at);
        let closed = tokens.get(*at) == Some(&")");
        *at += 1;
        return accepted && closed;
    }
    // An exception only allows more.
    if tokens.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    ACCEPTED.contains(token)
}

/// Every dependency of a published crate is under a licence of [`ACCEPTED`].
pub(super) fn licences(_: &Tree) -> Vec<String> {
    let metadata = Metadata::resolved();
    let packages: BTreeMap<&str, &Value> = metadata.packages().map(|p| (text(p, "id"), p)).collect();
    let nodes = metadata.0["resolve"]["nodes"].as_array().into_iter().flatten();
    let nodes: BTreeMap<&str, &Value> = nodes.map(|node| (text(node, "id"), node)).collect();
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    let mut waiting: Vec<&str> = metadata.published().iter().map(|package| text(package, "id")).collect();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let (Some(package), Some(node)) = (packages.get(id), nodes.get(id)) else {
            wrong.push(format!("{id} is not on this machine"));
            continue;
        };
        let (name, license) = (text(package, "name"), text(package, "license"));
        if !is_accepted(license) {
            wrong.push(format!("{name} is under '{license}', accepted are {ACCEPTED:?}"));
        }
        for dependency in node["deps"].as_array().into_iter().flatten() {
            let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            if kinds.any(|kind| kind["kind"] != "dev") {
                waiting.push(text(dependency, "pkg"));
            }
        }
    }
    if seen.len() < 100 {
        wrong.push(format!("only {} packages were seen", seen.len()));
    }
    wrong
}

/// Each crate with its README fits the registry, before compression, which only makes it smaller.
pub(super) fn sizes(_: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in Metadata::read().published() {
        let name = text(package, "name");
        let manifest = text(package, "manifest_path");
        let folder = Path::new(manifest).parent().unwrap_or(root());
        let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "--manifest-path", manifest]);
        // Files that cargo itself writes do not exist yet.
        let files = list.lines().filter_map(|file| std::fs::metadata(folder.join(file)).ok());
        let bytes: u64 = files.map(|metadata| metadata.len()).sum();
        if !(1000..MAX_CRATE_BYTES).contains(&bytes) {
            wrong.push(format!("{name} has {bytes} bytes, accepted are 1000 to {MAX_CRATE_BYTES}"));
        }
        for needed in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            if !list.lines().any(|file| file == needed) {
                wrong.push(format!("{name} goes without its {needed}"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_our_packages_are_found() {
        let manifest = "[package]\nversion = \"1.2.3\"\n[dependencies]\nhalf = { version = \"2\" }\n\
                        tqkv = { path = \"..\", version = \"1.2.4\" }\n[dependencies.zstd]\nversion = \"9\"\n";
        assert_eq!(versions(manifest), [(2, "1.2.3"), (5, "1.2.4")]);
    }

    #[test]
    fn expressions_of_licences_are_read() {
        for yes in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_accepted(yes), "{yes}");
        }
        for no in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND GPL-3.0", "(MIT", "MIT Apache-2.0"]
        {
            assert!(!is_accepted(no), "{no}");
        }
    }
}

//! Checks the published crates: versions, licences, the oldest toolchain, and size.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn cargo(args: &[&str]) -> String {
    run(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), args)
}

/// `cargo metadata` for this machine. Packages for other systems may be missing.
fn metadata() -> Value {
    let version = run("rustc", &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let text = cargo(&["metadata", "--format-version", "1", "--offline", "--filter-platform", host]);
    serde_json::from_str(&text).unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Packages of the workspace that go to the registry.
fn published(metadata: &Value) -> Vec<&Value> {
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.filter(|p| members.contains(text(p, "id")) && p["publish"].is_null()).collect()
}

#[test]
fn published_crates_introduce_themselves() {
    let metadata = metadata();
    let crates = published(&metadata);
    let names: Vec<&str> = crates.iter().map(|p| text(p, "name")).collect();
    for needed in ["tqkv-core", "tqkv-simd", "tqkv-gpu", "tqkv", "tqkv-model", "tqkv-cli"] {
        assert!(names.contains(&needed), "{needed} is not published, only {names:?}");
    }
    for package in crates {
        let name = text(package, "name");
        for key in ["description", "license", "readme", "rust_version"] {
            assert!(!text(package, key).is_empty(), "{name} has no {key}");
        }
        let count = |key: &str| package[key].as_array().map_or(0, Vec::len);
        assert!((1..=5).contains(&count("keywords")), "{name}: 1 to 5 keywords");
        assert!((1..=5).contains(&count("categories")), "{name}: 1 to 5 categories");
        let manifest = Path::new(text(package, "manifest_path"));
        let readme = read(manifest.with_file_name("README.md"));
        assert!(readme.starts_with(&format!("# {name}\n")), "{name}: its README is headed by its name");
        for dependency in package["dependencies"].as_array().unwrap() {
            let local = dependency["path"].is_string() && text(dependency, "kind") != "dev";
            let (on, version) = (text(dependency, "name"), text(dependency, "req"));
            assert!(!local || version != "*", "{name} depends on {on} by its path alone");
            assert!(!local || names.contains(&on), "{name} depends on {on}, which is not published");
        }
    }
}

/// One number in three places: the pinned, the promised and the documented toolchain.
#[test]
fn the_oldest_toolchain_is_the_pinned_one_everywhere() {
    let quoted = |file: &str, key: &str| -> String {
        let text = read(file);
        let line =
            text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key} in {file}"));
        line.split('"').nth(1).unwrap_or_default().to_string()
    };
    let promised = quoted("Cargo.toml", "rust-version");
    let pinned = quoted("rust-toolchain.toml", "channel");
    assert_eq!(pinned.rsplit_once('.').map(|(release, _)| release), Some(promised.as_str()));
    assert!(read("README.md").contains(&format!("Rust {promised}")), "README.md names another Rust");
    let metadata = metadata();
    for package in published(&metadata) {
        let name = text(package, "name");
        assert_eq!(text(package, "rust_version"), promised, "{name}");
        let readme = read(Path::new(text(package, "manifest_path")).with_file_name("README.md"));
        assert!(readme.contains(&format!("Rust {promised} or newer")), "the README of {name}");
    }
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
    for no in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND GPL-3.0", "(MIT", "MIT Apache-2.0"]
    {
        assert!(!is_accepted(no), "{no}");
    }
}

#[test]
fn everything_in_a_published_crate_may_be_used_freely() {
    let metadata = metadata();
    let packages: BTreeMap<&str, &Value> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (text(p, "id"), p)).collect();
    let nodes: BTreeMap<&str, &Value> =
        metadata["resolve"]["nodes"].as_array().unwrap().iter().map(|n| (text(n, "id"), n)).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut waiting: Vec<&str> = published(&metadata).iter().map(|p| text(p, "id")).collect();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let package = packages[id];
        let (name, license) = (text(package, "name"), text(package, "license"));
        assert!(is_accepted(license), "{name} is under '{license}', accepted are {ACCEPTED:?}");
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            let kinds = dependency["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|kind| kind["kind"] != "dev") {
                waiting.push(text(dependency, "pkg"));
            }
        }
    }
    assert!(seen.len() > 100, "the dependencies of all crates, not {}", seen.len());
}

/// The size before compression, which only makes it smaller.
#[test]
fn published_crates_fit_the_registry() {
    let metadata = metadata();
    for package in published(&metadata) {
        let (name, folder) =
            (text(package, "name"), Path::new(text(package, "manifest_path")).parent().unwrap());
        let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "-p", name]);
        let bytes: u64 = list
            .lines()
            // Files that cargo itself writes do not exist yet.
            .filter_map(|file| std::fs::metadata(folder.join(file)).ok())
            .map(|metadata| metadata.len())
            .sum();
        assert!(bytes > 1000 && bytes < MAX_CRATE_BYTES, "{name} has {bytes} bytes");
        let readme = list.lines().any(|file| file == "README.md");
        assert!(readme, "{name} goes without its README");
    }
}

//! The packages that the project was asked to use. Each is a dependency, and the source beside its manifest
//! names it. DECISIONS.md has those that nothing here links. "The card" in ARCHITECTURE.md names them all.

use std::path::{Path, PathBuf};

/// The packages of the card.
const PACKAGES: [&str; 9] =
    ["heapless", "libm", "half", "bytemuck", "defmt", "criterion", "proptest", "cuda_std", "cuda_builder"];

/// Packages that no build of this machine links, so a row of DECISIONS.md says what was tried.
const NOT_BUILT: [&str; 2] = ["cuda_std", "cuda_builder"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate")
}

/// Files of a folder and those below it that `keep` accepts by name.
fn files(folder: &Path, keep: &dyn Fn(&str) -> bool, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name == "target" || name.starts_with('.') {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), keep, out);
        } else if keep(&name) {
            out.push(entry.path());
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// True if a table of dependencies of the manifest names the package.
fn depends(manifest: &str, package: &str) -> bool {
    let mut in_dependencies = false;
    manifest.lines().any(|line| {
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        }
        let key = line.split(['=', '.']).next().unwrap_or_default().trim();
        in_dependencies && key == package
    })
}

/// The manifests of crates that depend on the package and name it in their source.
fn users(package: &str) -> Vec<PathBuf> {
    let mut manifests = Vec::new();
    files(root(), &|name| name == "Cargo.toml", &mut manifests);
    assert!(manifests.len() > 20, "the manifests were not found");
    let (path, import) = (format!("{package}::"), format!("use {package}"));
    manifests.retain(|manifest| {
        // The root has versions for all crates and no source of its own.
        let folder = manifest.parent().unwrap();
        if folder == root() || !depends(&read(manifest), package) {
            return false;
        }
        let mut sources = Vec::new();
        files(folder, &|name| name.ends_with(".rs"), &mut sources);
        sources.iter().any(|source| {
            let text = read(source);
            let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.any(|line| line.contains(&path) || line.trim_start().starts_with(&import))
        })
    });
    manifests
}

#[test]
fn each_package_of_the_card_is_in_use_or_in_decisions() {
    let decisions = read(&root().join("DECISIONS.md"));
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let card = architecture.split("\n## The card\n").nth(1).expect("a table of the card");
    let card = card.split("\n## ").next().unwrap();
    for package in PACKAGES {
        let name = format!("`{package}`");
        assert!(!users(package).is_empty(), "{package}: no crate depends on it and names it");
        assert!(card.contains(&name), "{package}: ARCHITECTURE.md, The card");
        if NOT_BUILT.contains(&package) {
            assert!(decisions.contains(&name), "{package}: DECISIONS.md");
        }
    }
}

#[test]
fn a_package_that_is_only_named_in_a_manifest_is_found_out() {
    assert!(depends("[dependencies]\nlibm = \"0.2\"", "libm"));
    assert!(depends("[target.'cfg(unix)'.dev-dependencies]\nlibm.workspace = true", "libm"));
    assert!(!depends("[package]\nlibm = 1\n[dependencies]\nlibmx = 1", "libm"));
    assert!(users("no_such_package").is_empty());
}

#[test]
fn the_top_level_has_the_folders_of_the_card() {
    let mut folders: Vec<String> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    folders.sort_unstable();
    assert_eq!(folders, ["benches", "core", "docs", "fuzz", "gpu", "host", "simd", "tests"]);
}

//! The arrows between crates, and what only some files may do.
#![allow(missing_docs, reason = "a test crate")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of the workspace crates that `package` depends on, tests and build scripts aside.
fn arrows(metadata: &Value, package: &str) -> Vec<String> {
    let packages = metadata["packages"].as_array().unwrap();
    let found =
        packages.iter().find(|p| p["name"] == package).unwrap_or_else(|| panic!("no crate {package}"));
    let normal = found["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"].is_null());
    let mut names: Vec<String> = normal
        .filter(|d| packages.iter().any(|p| p["name"] == d["name"]))
        .map(|d| d["name"].as_str().unwrap().to_string())
        .collect();
    names.sort();
    names
}

#[test]
fn dependency_arrows_point_one_way() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (package, allowed) in [
        ("tqkv-core", vec![]),
        ("tqkv-simd", vec!["tqkv-core"]),
        ("tqkv-gpu-kernels", vec!["tqkv-core"]),
        ("tqkv-gpu", vec!["tqkv-core", "tqkv-gpu-kernels"]),
        ("tqkv-benches", vec!["tqkv-core", "tqkv-simd"]),
        ("tqkv", vec!["tqkv-core", "tqkv-gpu", "tqkv-simd"]),
        ("tqkv-model", vec!["tqkv"]),
        ("tqkv-cli", vec!["tqkv", "tqkv-benches", "tqkv-core", "tqkv-gpu", "tqkv-model", "tqkv-simd"]),
    ] {
        assert_eq!(arrows(&metadata, package), allowed, "{package}");
    }
}

/// Every `.rs` file below `folder`.
fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn unsafe_stays_where_architecture_lists_it() {
    let allowed = ["matmul.rs", "mmap.rs"];
    let mut files = Vec::new();
    for folder in ["core/src", "host/src", "host/model/src", "host/cli/src"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 50);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let has = text.lines().any(|l| !l.trim_start().starts_with("//") && l.contains("unsafe {"));
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        assert!(!has || allowed.contains(&name.as_str()), "{} has an unsafe block", file.display());
    }
}

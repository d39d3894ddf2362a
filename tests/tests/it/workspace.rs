//! Checks the dependencies between crates.

use serde_json::Value;
use std::process::Command;

/// Names of the workspace crates on which `package` depends, without tests and build scripts.
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
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (package, allowed) in [
        ("tqkv-core", vec![]),
        ("tqkv-lm", vec!["tqkv-core"]),
        ("tqkv-simd", vec!["tqkv-core"]),
        ("tqkv-gpu-kernels", vec!["tqkv-core"]),
        ("tqkv-gpu", vec!["tqkv-core", "tqkv-gpu-kernels"]),
        ("tqkv-gpu-check", vec!["tqkv-core", "tqkv-gpu", "tqkv-gpu-kernels"]),
        ("tqkv-gpu-fake", vec!["tqkv-gpu-kernels"]),
        ("tqkv-benches", vec!["tqkv-core", "tqkv-simd"]),
        ("tqkv", vec!["tqkv-core", "tqkv-gpu", "tqkv-simd"]),
        ("tqkv-capi", vec!["tqkv", "tqkv-core", "tqkv-gpu", "tqkv-session", "tqkv-simd"]),
        ("tqkv-capi-lm", vec!["tqkv-core", "tqkv-lm", "tqkv-simd"]),
        ("tqkv-storage", vec!["tqkv", "tqkv-core", "tqkv-simd"]),
        ("tqkv-session", vec!["tqkv-core", "tqkv-simd", "tqkv-storage"]),
        ("tqkv-reference", vec!["tqkv", "tqkv-core"]),
        ("tqkv-model", vec!["tqkv", "tqkv-core", "tqkv-lm", "tqkv-simd", "tqkv-storage"]),
        ("tqkv-browser", vec!["tqkv", "tqkv-model"]),
        (
            "tqkv-cli",
            vec![
                "tqkv",
                "tqkv-benches",
                "tqkv-core",
                "tqkv-gpu",
                "tqkv-gpu-check",
                "tqkv-model",
                "tqkv-reference",
                "tqkv-session",
                "tqkv-simd",
                "tqkv-storage",
            ],
        ),
        (
            "tqkv-lab",
            vec![
                "tqkv",
                "tqkv-benches",
                "tqkv-cli",
                "tqkv-core",
                "tqkv-model",
                "tqkv-reference",
                "tqkv-simd",
                "tqkv-storage",
            ],
        ),
    ] {
        assert_eq!(arrows(&metadata, package), allowed, "{package}");
    }
}

/// Plots are the laboratory's: the command goes without what draws them, whatever its features.
#[test]
fn the_command_compiles_no_plots() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "-p", "tqkv-cli", "-e", "normal", "--all-features", "--prefix", "none", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && tree.contains("tqkv-model "), "{tree}");
    for foreign in ["plotters", "tqkv-lab"] {
        assert!(!tree.lines().any(|line| line.starts_with(foreign)), "tqkv-cli compiles {foreign}:\n{tree}");
    }
}

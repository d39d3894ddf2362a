//! The arrows between crates: what may depend on what.

use serde_json::Value;
use std::process::Command;

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
        ("tqkv-gpu-check", vec!["tqkv-core", "tqkv-gpu"]),
        ("tqkv-gpu-fake", vec!["tqkv-gpu-kernels"]),
        ("tqkv-benches", vec!["tqkv-core", "tqkv-simd"]),
        ("tqkv", vec!["tqkv-core", "tqkv-gpu", "tqkv-simd"]),
        ("tqkv-capi", vec!["tqkv", "tqkv-core", "tqkv-gpu", "tqkv-simd"]),
        ("tqkv-capi-lm", vec!["tqkv-core", "tqkv-lm", "tqkv-simd"]),
        ("tqkv-storage", vec!["tqkv", "tqkv-core", "tqkv-simd"]),
        ("tqkv-session", vec!["tqkv-core", "tqkv-simd"]),
        ("tqkv-reference", vec!["tqkv", "tqkv-core"]),
        ("tqkv-model", vec!["tqkv", "tqkv-core", "tqkv-lm", "tqkv-simd", "tqkv-storage"]),
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
    ] {
        assert_eq!(arrows(&metadata, package), allowed, "{package}");
    }
}

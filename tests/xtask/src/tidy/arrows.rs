//! Dependencies between crates point one way.

use super::metadata::{Metadata, cargo};
use super::tree::Tree;

/// The crates of this project on which a crate may depend, tests and build scripts aside.
const ALLOWED: &[(&str, &[&str])] = &[
    ("tqkv-core", &[]),
    ("tqkv-simd", &["tqkv-core"]),
    ("tqkv-gpu-kernels", &["tqkv-core"]),
    ("tqkv-gpu", &["tqkv-core", "tqkv-gpu-kernels"]),
    ("tqkv-gpu-fake", &["tqkv-gpu-kernels"]),
    ("tqkv-benches", &["tqkv-core", "tqkv-simd"]),
    ("tqkv", &["tqkv-core", "tqkv-gpu", "tqkv-simd"]),
    ("tqkv-capi", &["tqkv", "tqkv-core", "tqkv-gpu", "tqkv-session", "tqkv-simd"]),
    ("tqkv-storage", &["tqkv", "tqkv-core", "tqkv-simd"]),
    ("tqkv-session", &["tqkv", "tqkv-core", "tqkv-simd", "tqkv-storage"]),
    ("tqkv-reference", &["tqkv", "tqkv-core"]),
    ("tqkv-model", &["tqkv", "tqkv-core", "tqkv-simd", "tqkv-storage"]),
    (
        "tqkv-cli",
        &[
            "tqkv",
            "tqkv-benches",
            "tqkv-core",
            "tqkv-gpu",
            "tqkv-model",
            "tqkv-reference",
            "tqkv-session",
            "tqkv-simd",
            "tqkv-storage",
        ],
    ),
    ("tqkv-lm", &["tqkv-core"]),
    ("tqkv-capi-fixed", &["tqkv-core"]),
    ("tqkv-capi-lm", &["tqkv-core", "tqkv-lm", "tqkv-simd"]),
];

/// Each crate depends on the crates of this project that [`ALLOWED`] names, and on no others.
pub(super) fn between_crates(_: &Tree) -> Vec<String> {
    let metadata = Metadata::read();
    let mut wrong = Vec::new();
    for (package, allowed) in ALLOWED {
        let found = metadata.arrows(package);
        if found != *allowed {
            wrong.push(format!("{package} depends on {found:?}, not on {allowed:?}"));
        }
    }
    wrong
}

/// Plots are the laboratory's: the command goes without what draws them, whatever its features.
pub(super) fn no_plots_in_the_command(_: &Tree) -> Vec<String> {
    let only = ["tree", "-p", "tqkv-cli", "-e", "normal", "--all-features", "--prefix", "none", "--offline"];
    let tree = cargo(&only);
    let foreign = tree.lines().filter(|line| line.starts_with("plotters"));
    foreign.map(|line| format!("tqkv-cli compiles {line}")).collect()
}

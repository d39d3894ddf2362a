//! Modules of WebAssembly, for the page and for the package of npm.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of all of them. The standard library has a clock and random numbers there.
pub(crate) const TARGET: &str = "wasm32-wasip1";

/// Builds a release; returns the path of `file`, which it makes.
pub(crate) fn build<S: AsRef<OsStr>>(arguments: &[S], file: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut cargo = Command::new("cargo");
    cargo.args(["rustc", "--release", "--quiet", "--locked", "--target", TARGET]).args(arguments);
    // Vectors of 128 bits are in every browser since 2021.
    cargo.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", "-C target-feature=+simd128");
    let status = cargo.current_dir(&root).status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo cannot build {file}"));
    }
    Ok(target.join(TARGET).join("release").join(file))
}

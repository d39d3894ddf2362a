//! Copies the memory map and the linker scripts of the machine that QEMU emulates for each target.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let target = env::var("TARGET").unwrap();
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let small = if has("LM") { "rp2350/" } else { "" };
    let map = format!("memory/{small}{}.x", if has("M55") { "cortex-m55" } else { &target });
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-link-search={}", out.display());
    if fs::copy(&map, out.join("memory.x")).is_err() {
        // The library alone is also built for the host, which has no memory map.
        return;
    }
    let scripts: &[&str] = if target.starts_with("riscv") {
        &["-Tmemory.x", "-Tlink.x", "-Tdefmt.x"]
    } else {
        &["--nmagic", "-Tlink.x", "-Tdefmt.x"]
    };
    for script in scripts {
        println!("cargo:rustc-link-arg={script}");
    }
}

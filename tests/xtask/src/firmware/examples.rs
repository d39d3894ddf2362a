//! The projects that a firmware author copies, in Rust and in C: copied, built and run by the commands of their READMEs.

use super::image::Image;
use super::{Result, folder, output};
use std::path::{Path, PathBuf};
use std::process::Command;
use tqkv_core::code::{S3, S4};
use tqkv_lm::{LmError, Model};
use workload::lm::{LONG_TOKENS, NEW_TOKENS, PROMPT, bytes_for};

/// Where the crates are.
fn root() -> Result<PathBuf> {
    std::path::absolute(folder().join("../..")).map_err(|e| e.to_string())
}

/// Copies files of a project to where nothing of this repository is beside it, and the model with them.
fn copied(name: &str, files: &[&str], model: &[u8]) -> Result<PathBuf> {
    let (from, to) = (folder().join(name), folder().join("target").join(name));
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    std::fs::create_dir_all(&to).map_err(failed)?;
    for name in files {
        std::fs::copy(from.join(name), to.join(name)).map_err(failed)?;
    }
    std::fs::write(to.join("model.tqlm"), model).map_err(failed)?;
    Ok(to)
}

/// What both write: the prompt, and tokens that this machine draws.
fn expected(file: &[u8]) -> Result<Vec<u8>> {
    let wrong = |error: LmError| format!("the model on this machine: {error}");
    let mut written = [0; NEW_TOKENS];
    let mut memory = vec![0; bytes_for::<S4, S3>(LONG_TOKENS)];
    let mut work = vec![0; Model::load(file).map_err(wrong)?.shape().work_words()];
    workload::lm::example(file, &mut memory, &mut work, &mut written).map_err(wrong)?;
    Ok([PROMPT, &written].concat())
}

/// The project in Rust.
pub(super) fn rust(file: &[u8]) -> Result<()> {
    let to = copied("example", &["Cargo.toml", "build.rs", "main.rs", "memory.x"], file)?;
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    std::fs::create_dir_all(to.join(".cargo")).map_err(failed)?;
    let config = std::fs::read_to_string(folder().join("example/.cargo/config.toml")).map_err(failed)?;
    let config = config.replace("../../..", &root()?.display().to_string());
    std::fs::write(to.join(".cargo/config.toml"), config).map_err(failed)?;
    let mut run = Command::new("cargo");
    run.current_dir(&to)
        .args(["run", "--release", "--quiet"])
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR");
    let printed = output(&mut run)?;
    // Bytes are printed as characters.
    let expected: String = expected(file)?.into_iter().map(char::from).collect();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    if printed.trim_end() != expected.trim_end() {
        return Err(format!("the copied example wrote {printed:?}, the host {expected:?}"));
    }
    println!("the copied example: {printed}");
    Ok(())
}

/// The project in C: the same text; and with the likeliest tokens of the whole context, the same logits as the image of it.
pub(super) fn c(file: &[u8], long_crc: u32) -> Result<()> {
    let to = copied("example_c", &["Makefile", "main.c", "startup.c", "model.S", "link.ld"], file)?;
    let printed = make(&to, "")?;
    let expected = expected(file)?;
    if !printed.starts_with(&expected) {
        let (printed, expected) = (String::from_utf8_lossy(&printed), String::from_utf8_lossy(&expected));
        return Err(format!("the copied example in C wrote {printed:?}, the host {expected:?}"));
    }
    println!("the copied example in C: {}", String::from_utf8_lossy(&printed).trim_end());
    let tokens = LONG_TOKENS - PROMPT.len();
    let printed = make(&to, &format!("-DTEMPERATURE=0 -DNEW_TOKENS={tokens}"))?;
    let expected = format!("crc {long_crc:08x}");
    if !String::from_utf8_lossy(&printed).trim_end().ends_with(&expected) {
        let printed = String::from_utf8_lossy(&printed);
        return Err(format!("the copied example in C wrote {printed:?}, the host {expected}"));
    }
    println!("the copied example in C: {LONG_TOKENS} tokens, {expected} as on the host");
    // The library has a handler, which the linker drops where nothing panics.
    let handler = |path: &Path| Image::at(path.into()).names("rust_begin_unwind");
    let library = to.join("build/thumbv8m.main-none-eabihf/mcu/libtqkv_capi_lm.a");
    if !handler(&library)? || handler(&to.join("firmware.elf"))? {
        return Err("the copied example in C: a panic is reachable".to_owned());
    }
    println!("the copied example in C: no panic (its library has a handler)");
    Ok(())
}

/// Builds and runs it with definitions; what it printed, without what make did.
fn make(folder: &Path, definitions: &str) -> Result<Vec<u8>> {
    let mut make = Command::new("make");
    make.current_dir(folder).args(["--silent", "run"]).arg(format!("TQKV={}", root()?.display()));
    make.arg(format!("DEFINES={definitions}")).env_remove("MAKEFLAGS").env_remove("CARGO_BUILD_TARGET");
    Ok(output(&mut make)?.stdout)
}

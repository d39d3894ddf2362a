//! The projects that a firmware author copies, in Rust and in C. They are made, built and run by the commands
//! of their READMEs, in a folder outside of this repository.

use super::image::Image;
use super::machine::{Result, folder, output};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tqkv_core::code::{S3, S4};
use tqkv_lm::{LmError, Model};
use workload::lm::{LONG_TOKENS, Memory, NEW_TOKENS, PROMPT, bytes_for, exacts};

/// The root of this repository.
fn root() -> Result<PathBuf> {
    std::path::absolute(folder().join("../..")).map_err(|e| e.to_string())
}

/// The commands of a README. This checkout replaces the reader's, and the model is copied instead of
/// exported.
fn commands(readme: &str, root: &Path, model: &Path) -> Result<String> {
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut lines = block.ok_or("no commands in the README")?.lines();
    if lines.next().is_none_or(|first| !first.starts_with("TQKV=/path/to/tqkv ")) {
        return Err("the first command of the README does not say where the checkout is".to_owned());
    }
    let mut script = format!("TQKV='{}'\n", root.display());
    for line in lines {
        let exports = line.starts_with("tqkv export ") && line.ends_with(" model.tqlm");
        let copied = format!("cp '{}' model.tqlm", model.display());
        script += if exports { &copied } else { line };
        script.push('\n');
    }
    Ok(script)
}

/// Runs the commands of a project's README in a new folder. Returns the output and the folder, in which the
/// copy is called `firmware`.
fn follow(name: &str, model: &[u8], environment: &[(&str, PathBuf)]) -> Result<(Vec<u8>, TempDir)> {
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let place = tempfile::tempdir().map_err(failed)?;
    let file = place.path().join("exported.tqlm");
    std::fs::write(&file, model).map_err(failed)?;
    let readme = std::fs::read_to_string(folder().join(name).join("README.md")).map_err(failed)?;
    let mut sh = Command::new("sh");
    sh.arg("-ec").arg(commands(&readme, &root()?, &file)?).current_dir(place.path());
    // A reader does not have the variables of this cargo. Make must print only the output of the program.
    sh.env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_BUILD_TARGET")
        .env("MAKEFLAGS", "s");
    let printed = output(sh.envs(environment.iter().cloned()))?;
    Ok((printed.stdout, place))
}

/// The expected output of both projects: the prompt, and the tokens that this machine draws.
fn expected(file: &[u8]) -> Result<Vec<u8>> {
    let wrong = |error: LmError| format!("the model on this machine: {error}");
    let mut written = [0; NEW_TOKENS];
    let (codes, exact) = (&mut vec![0; bytes_for::<S4, S3>(LONG_TOKENS)], &mut exacts());
    let work = &mut vec![0; Model::load(file).map_err(wrong)?.shape().work_words()];
    workload::lm::example(file, Memory { codes, exact, work }, &mut written).map_err(wrong)?;
    Ok([PROMPT, &written].concat())
}

/// Checks the project in Rust.
pub(super) fn rust(file: &[u8]) -> Result<()> {
    // This reuses an earlier build.
    let (printed, _place) =
        follow("example", file, &[("CARGO_TARGET_DIR", folder().join("target/example"))])?;
    // The program prints bytes as characters.
    let expected: String = expected(file)?.into_iter().map(char::from).collect();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    if printed.trim_end() != expected.trim_end() {
        return Err(format!("the copied example wrote {printed:?}, the host {expected:?}"));
    }
    println!("the copied example: {printed}");
    Ok(())
}

/// Checks the project in C: the text is the same. With the likeliest tokens over the whole context, the
/// logits are the same as those of the image.
pub(super) fn c(file: &[u8], long_crc: u32) -> Result<()> {
    let (printed, place) = follow("example_c", file, &[])?;
    let to = place.path().join("firmware");
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
    // The library has a panic handler. The linker drops it if nothing panics.
    let handler = |path: &Path| Image::at(path.into()).names("rust_begin_unwind");
    let library = to.join("build/thumbv8m.main-none-eabihf/release/libtqkv_capi_lm.a");
    if !handler(&library)? || handler(&to.join("firmware.elf"))? {
        return Err("the copied example in C: a panic is reachable".to_owned());
    }
    println!("the copied example in C: no panic (its library has a handler)");
    Ok(())
}

/// Builds and runs the project with these definitions. Returns the program's output, without make's.
fn make(folder: &Path, definitions: &str) -> Result<Vec<u8>> {
    let mut make = Command::new("make");
    make.current_dir(folder).args(["--silent", "run"]).arg(format!("DEFINES={definitions}"));
    make.env_remove("MAKEFLAGS").env_remove("CARGO_BUILD_TARGET").env_remove("RUSTFLAGS");
    Ok(output(&mut make)?.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The project after the first commands of its README, in a folder outside of this repository.
    fn copied(name: &str) -> TempDir {
        let (place, root) = (tempfile::tempdir().unwrap(), root().unwrap());
        let readme = std::fs::read_to_string(folder().join(name).join("README.md")).unwrap();
        let script = commands(&readme, &root, Path::new("/no/model")).unwrap();
        let first: Vec<&str> = script.lines().take_while(|line| !line.ends_with(" model.tqlm")).collect();
        assert!(first.len() < script.lines().count() - 1, "{script}");
        output(Command::new("sh").arg("-ec").arg(first.join("\n")).current_dir(place.path())).unwrap();
        place
    }

    /// The crates that a copy names exist at the named paths.
    #[test]
    fn a_copy_finds_the_crates_by_the_commands_of_its_readme() {
        let place = copied("example");
        let config = std::fs::read_to_string(place.path().join("firmware/.cargo/config.toml")).unwrap();
        let paths: Vec<&str> =
            config.split("path = \"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(paths.len(), 3, "{config}");
        for path in paths {
            assert!(Path::new(path).is_absolute() && Path::new(path).join("Cargo.toml").exists(), "{path}");
        }
        let place = copied("example_c");
        let makefile = std::fs::read_to_string(place.path().join("firmware/Makefile")).unwrap();
        let path = makefile.lines().find_map(|line| line.strip_prefix("TQKV = ")).unwrap();
        assert!(
            Path::new(path).is_absolute() && Path::new(path).join("core/mcu/capi-lm/tqkv_lm.h").exists(),
            "{path}"
        );
    }
}

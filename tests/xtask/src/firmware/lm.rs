//! The shipped language model on microcontrollers: its text and logits against the host's, and what a token costs.

use super::image::Image;
use super::{MACHINES, Machine, Result, folder, output};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tqkv_core::Portable;
use tqkv_core::code::{Code, I8, S2, S3, S4, T2S8};
use tqkv_lm::{LmError, Model};
use workload::lm::{LONG_TOKENS, NEW_TOKENS, Written, bytes_for, short_tokens, write};

/// RAM of an RP2350, and flash on its usual boards.
const RAM: u64 = 520 * 1024;
const FLASH: u64 = 4 * 1024 * 1024;
/// Most instructions of a token on Cortex-M4 at 64 tokens of context, 8-bit weights and an `i8` cache.
const MOST_INSTRUCTIONS: u64 = 3_000_000;
/// Time of an instruction: the clock of Cortex-M wraps after 80 million of them.
const ICOUNT: &str = "shift=3";

/// The flat file.
fn model() -> PathBuf {
    folder().join("target/model.tqlm")
}

/// Everything.
pub(super) fn check() -> Result<()> {
    export()?;
    let file = std::fs::read(model()).map_err(|e| format!("{}: {e}", model().display()))?;
    let wrong = |error: LmError| format!("the model on this machine: {error}");
    let expected = expected(&file).map_err(wrong)?;
    for (name, written) in &expected {
        println!("host {name}: crc {:08x}, {:?}", written.crc, String::from_utf8_lossy(&written.text));
    }
    for machine in MACHINES.iter().filter(|machine| machine.holds_model()) {
        texts(machine, &expected)?;
    }
    let long = write_over::<S4, S3>(&file, LONG_TOKENS).map_err(wrong)?;
    long_context(&MACHINES[2], long.crc)?;
    for machine in MACHINES.iter().filter(|machine| machine.holds_model()) {
        costs(machine)?;
    }
    example(&file)
}

/// Writes the flat file by the command that users have.
fn export() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::create_dir_all(folder().join("target")).map_err(|e| e.to_string())?;
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args([
        "run",
        "--release",
        "--quiet",
        "--",
        "export",
        "--force",
        "--target",
        "mcu",
    ]);
    let printed = output(cargo.arg("host/model/shipped").arg(model()))?;
    print!("{}", String::from_utf8_lossy(&printed.stdout));
    Ok(())
}

fn write_over<K: Code, V: Code>(file: &[u8], tokens: usize) -> std::result::Result<Written, LmError> {
    let mut memory = vec![0; bytes_for::<K, V>(tokens)];
    let mut work = vec![0; Model::load(file)?.shape().work_words()];
    write::<K, V, _>(Portable, file, &mut memory, &mut work, tokens)
}

/// What this machine writes over each cache.
fn expected(file: &[u8]) -> std::result::Result<BTreeMap<&'static str, Written>, LmError> {
    let tokens = short_tokens();
    Ok(BTreeMap::from([
        ("i8", write_over::<I8, I8>(file, tokens)?),
        ("s4", write_over::<S4, S4>(file, tokens)?),
        ("t2s8", write_over::<T2S8, T2S8>(file, tokens)?),
        ("s2", write_over::<S2, S2>(file, tokens)?),
    ]))
}

/// Runs the image that writes, and compares.
fn texts(machine: &Machine, expected: &BTreeMap<&'static str, Written>) -> Result<()> {
    let image = Image::model(machine, "lm")?;
    let log = image.figures(machine, None)?;
    for (name, written) in expected {
        let (crc, text) = (log.get(&format!("crc_{name}")), log.get(&format!("text_{name}")));
        let want = (format!("{:08x}", written.crc), String::from_utf8_lossy(&written.text).into_owned());
        if (crc, text) != (Some(&want.0), Some(&want.1)) {
            return Err(format!("{}: over {name} {crc:?} {text:?}, the host {want:?}", machine.what));
        }
    }
    let sections = image.sections()?;
    if sections.flash > FLASH || sections.ram > RAM {
        return Err(format!("{}: {} bytes of flash, {} of RAM", machine.what, sections.flash, sections.ram));
    }
    let (flash, ram) = (sections.flash, sections.ram);
    println!(
        "{}: text and logits as on the host over four caches; flash {flash}, static RAM {ram}",
        machine.what
    );
    Ok(())
}

/// 1,024 tokens in the RAM of an RP2350.
fn long_context(machine: &Machine, expected: u32) -> Result<()> {
    let image = Image::model(machine, "lm_long")?;
    let log = image.figures(machine, None)?;
    if log.get("crc_long") != Some(&format!("{expected:08x}")) {
        return Err(format!("{}: {log:?}, the host {expected:08x}", machine.what));
    }
    let ram = image.sections()?.ram;
    println!(
        "{}: {LONG_TOKENS} tokens of context over s4,s3 in {ram} bytes of static RAM, of {RAM}",
        machine.what
    );
    Ok(())
}

/// Instructions and stack.
fn costs(machine: &Machine) -> Result<()> {
    let icount = if machine.qemu.ends_with("arm") { ICOUNT } else { machine.icount };
    let log = Image::model(machine, "lm_measure")?.figures(machine, Some(icount))?;
    for (what, figure) in &log {
        println!("{}: {what} {figure}", machine.what);
    }
    let number = |key: &str| log.get(key).and_then(|figure| figure.parse::<u64>().ok());
    let token = number("token_i8_64").ok_or(format!("{}: no figure of a token", machine.what))?;
    if machine.cpu == "cortex-m4" && token > MOST_INSTRUCTIONS {
        return Err(format!(
            "{}: a token takes {token} instructions, at most {MOST_INSTRUCTIONS}",
            machine.what
        ));
    }
    Ok(())
}

/// Copies the example project to where nothing of this repository is beside it, and runs it by the command of its README.
fn example(file: &[u8]) -> Result<()> {
    let (from, to) = (folder().join("example"), folder().join("target/example"));
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    std::fs::create_dir_all(to.join(".cargo")).map_err(failed)?;
    for name in ["Cargo.toml", "build.rs", "main.rs", "memory.x"] {
        std::fs::copy(from.join(name), to.join(name)).map_err(failed)?;
    }
    std::fs::write(to.join("model.tqlm"), file).map_err(failed)?;
    let root = std::path::absolute(folder().join("../..")).map_err(failed)?;
    let config = std::fs::read_to_string(from.join(".cargo/config.toml")).map_err(failed)?;
    let config = config.replace("../../..", &root.display().to_string());
    std::fs::write(to.join(".cargo/config.toml"), config).map_err(failed)?;
    let mut run = Command::new("cargo");
    run.current_dir(&to)
        .args(["run", "--release", "--quiet"])
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR");
    let printed = output(&mut run)?;
    let mut text = workload::lm::PROMPT.to_vec();
    let mut written = [0; NEW_TOKENS];
    let mut memory = vec![0; bytes_for::<S4, S3>(LONG_TOKENS)];
    let wrong = |error: LmError| format!("the model on this machine: {error}");
    let mut work = vec![0; Model::load(file).map_err(wrong)?.shape().work_words()];
    workload::lm::example(file, &mut memory, &mut work, &mut written).map_err(wrong)?;
    text.extend(written);
    // Bytes are printed as characters.
    let expected: String = text.into_iter().map(char::from).collect();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    if printed.trim_end() != expected.trim_end() {
        return Err(format!("the copied example wrote {printed:?}, the host {expected:?}"));
    }
    println!("the copied example: {printed}");
    Ok(())
}

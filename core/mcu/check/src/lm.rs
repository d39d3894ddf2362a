//! The shipped language model on microcontrollers: compares its text and logits with the host's, and measures
//! the cost per token.

use super::examples;
use super::image::Image;
use super::machine::{M55, MACHINES, Machine, Result, folder, output};
use std::collections::BTreeMap;
use std::process::Command;
use tqkv_core::Portable;
use tqkv_core::code::{Code, I8, S2, S3, S4, T2S8};
use tqkv_lm::{LmError, Model};
use workload::lm::{LONG_TOKENS, Memory, Written, bytes_for, exacts, short_tokens, write};

/// RAM of an RP2350; the next constant is the flash of its usual boards.
const RAM: u64 = 520 * 1024;
const FLASH: u64 = 4 * 1024 * 1024;
/// Most instructions per token on Cortex-M4 at 64 tokens of context, with 8-bit weights and an `i8` cache.
const MOST_INSTRUCTIONS: u64 = 3_000_000;
/// Time per instruction. It is short, because the clock of Cortex-M wraps after 80 million instructions.
const ICOUNT: &str = "shift=3";

/// A flat file of the shipped model.
struct ModelFile {
    bits: &'static str,
    file: &'static str,
    /// The feature of the images that contain this file.
    feature: &'static str,
}

const EIGHT: ModelFile = ModelFile { bits: "8", file: "model.tqlm", feature: "" };
const FOUR: ModelFile = ModelFile { bits: "4", file: "model4.tqlm", feature: "four" };

/// The machines with room for a model.
fn machines() -> impl Iterator<Item = &'static Machine> {
    MACHINES.iter().filter(|machine| machine.holds_model()).chain([&M55])
}

/// Runs all checks of the language model.
pub(super) fn check() -> Result<()> {
    let wrong = |error: LmError| format!("the model on this machine: {error}");
    let (eight, four) = (EIGHT.export()?, FOUR.export()?);
    for (weights, file) in [(&EIGHT, &eight), (&FOUR, &four)] {
        let expected = weights.expected(file).map_err(wrong)?;
        for (name, written) in &expected {
            let text = String::from_utf8_lossy(&written.text);
            println!("host, {} bits, {name}: crc {:08x}, {text:?}", weights.bits, written.crc);
        }
        for machine in machines() {
            weights.texts(machine, &expected)?;
        }
    }
    let long = write_over::<S4, S3>(&eight, LONG_TOKENS).map_err(wrong)?;
    long_context(&MACHINES[2], long.crc)?;
    for weights in [&EIGHT, &FOUR] {
        for machine in machines() {
            weights.costs(machine)?;
        }
    }
    examples::rust(&eight)?;
    examples::c(&eight, long.crc)
}

fn write_over<K: Code, V: Code>(file: &[u8], tokens: usize) -> std::result::Result<Written, LmError> {
    let (codes, exact) = (&mut vec![0; bytes_for::<K, V>(tokens)], &mut exacts());
    let work = &mut vec![0; Model::load(file)?.shape().work_words()];
    write::<K, V, _>(Portable, file, Memory { codes, exact, work }, tokens)
}

impl ModelFile {
    /// Writes the flat file with the same command as users, and reads it.
    fn export(&self) -> Result<Vec<u8>> {
        let (root, to) = (folder().join("../.."), folder().join("target").join(self.file));
        std::fs::create_dir_all(folder().join("target")).map_err(|e| e.to_string())?;
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["run", "--release", "--quiet", "--", "export", "--force"]);
        cargo.args(["--target", "mcu", "--bits", self.bits, "host/model/shipped"]);
        let printed = output(cargo.arg(&to))?;
        print!("{}", String::from_utf8_lossy(&printed.stdout));
        std::fs::read(&to).map_err(|e| format!("{}: {e}", to.display()))
    }

    /// The output of this machine over each cache; for 4-bit weights over one cache only.
    fn expected(&self, file: &[u8]) -> std::result::Result<BTreeMap<&'static str, Written>, LmError> {
        let tokens = short_tokens();
        let mut all = BTreeMap::from([("i8", write_over::<I8, I8>(file, tokens)?)]);
        if self.bits == EIGHT.bits {
            all.insert("s4", write_over::<S4, S4>(file, tokens)?);
            all.insert("t2s8", write_over::<T2S8, T2S8>(file, tokens)?);
            all.insert("s2", write_over::<S2, S2>(file, tokens)?);
        }
        Ok(all)
    }

    /// Runs the image that generates text, and compares the text.
    fn texts(&self, machine: &Machine, expected: &BTreeMap<&'static str, Written>) -> Result<()> {
        let image = Image::model(machine, "lm", self.feature)?;
        let log = image.figures(machine, None)?;
        for (name, written) in expected {
            let (crc, text) = (log.get(&format!("crc_{name}")), log.get(&format!("text_{name}")));
            let want = (format!("{:08x}", written.crc), String::from_utf8_lossy(&written.text).into_owned());
            if (crc, text) != (Some(&want.0), Some(&want.1)) {
                return Err(format!("{}: over {name} {crc:?} {text:?}, the host {want:?}", machine.what));
            }
        }
        let sections = image.sections()?;
        let (flash, ram) = (sections.flash, sections.ram);
        if flash > FLASH || ram > RAM {
            return Err(format!("{}: {flash} bytes of flash, {ram} of RAM", machine.what));
        }
        println!(
            "{}, {} bits: text and logits as on the host over {} caches; flash {flash}, static RAM {ram}",
            machine.what,
            self.bits,
            expected.len()
        );
        Ok(())
    }

    /// Measures instructions and stack.
    fn costs(&self, machine: &Machine) -> Result<()> {
        let icount = if machine.qemu.ends_with("arm") { ICOUNT } else { machine.icount };
        let log = Image::model(machine, "lm_measure", self.feature)?.figures(machine, Some(icount))?;
        for (what, figure) in &log {
            println!("{}, {} bits: {what} {figure}", machine.what, self.bits);
        }
        let number = |key: &str| log.get(key).and_then(|figure| figure.parse::<u64>().ok());
        let token = number("token_i8_64").ok_or(format!("{}: no figure of a token", machine.what))?;
        if machine.cpu == "cortex-m4" && self.bits == EIGHT.bits && token > MOST_INSTRUCTIONS {
            return Err(format!(
                "{}: a token takes {token} instructions, at most {MOST_INSTRUCTIONS}",
                machine.what
            ));
        }
        Ok(())
    }
}

/// Checks 1,024 tokens of context in the RAM of an RP2350.
fn long_context(machine: &Machine, expected: u32) -> Result<()> {
    let image = Image::model(machine, "lm_long", "")?;
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

//! One image: builds it, runs it, and inspects it.

use super::machine::{Machine, Result, cargo, folder, output};
use defmt_decoder::{DecodeError, Table};
use object::{Object, ObjectSection, SectionKind};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// An ELF file.
pub(super) struct Image {
    path: PathBuf,
}

/// Bytes of the sections in each memory.
pub(super) struct Sections {
    pub(super) flash: u64,
    pub(super) ram: u64,
    /// Bytes in both: memory that starts as a copy from flash.
    pub(super) data: u64,
}

impl Image {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Builds a binary of the package `firmware`.
    pub(super) fn build(machine: &Machine, bin: &str) -> Result<Self> {
        output(cargo().args([
            "build",
            "--release",
            "-p",
            "firmware",
            "--bin",
            bin,
            "--target",
            machine.target,
        ]))?;
        Ok(Self::at(machine.folder().join(bin)))
    }

    /// Builds a binary of the language model with one more feature.
    pub(super) fn model(machine: &Machine, bin: &str, feature: &str) -> Result<Self> {
        let features = format!("lm,{feature},{}", machine.feature.unwrap_or_default());
        let build = ["build", "--release", "-p", "firmware", "--features", &features, "--bin", bin];
        let mut cargo = cargo();
        if machine.feature.is_some() {
            cargo.env("CARGO_TARGET_DIR", machine.target_folder());
            cargo.env("RUSTFLAGS", format!("-C target-cpu={}", machine.cpu));
        }
        output(cargo.args(build).args(["--target", machine.target]))?;
        Ok(Self::at(machine.folder().join(bin)))
    }

    /// Builds an example of it with these features.
    pub(super) fn example(machine: &Machine, example: &str, features: &str) -> Result<Self> {
        let build =
            ["build", "--release", "-p", "firmware", "--example", example, "--target", machine.target];
        output(cargo().args(build).args(["--features", features]))?;
        Ok(Self::at(machine.folder().join("examples").join(example)))
    }

    /// Emulates the image for at most 60 seconds, with instructions as the clock.
    pub(super) fn emulate(&self, machine: &Machine) -> Result<Vec<u8>> {
        self.emulate_by(machine, Some(machine.icount), 60)
    }

    /// Emulates the image for at most `seconds` seconds. With `icount`, instructions are the clock, and it is
    /// the time per instruction.
    fn emulate_by(&self, machine: &Machine, icount: Option<&str>, seconds: u32) -> Result<Vec<u8>> {
        let mut command = Command::new("timeout");
        command.arg(seconds.to_string());
        command.args([machine.qemu, "-M", machine.name, "-display", "none", "-monitor", "none"]);
        command.args(["-serial", "none", "-semihosting-config", "enable=on,target=native"]);
        if let Some(icount) = icount {
            command.args(["-icount", &format!("{icount},align=off,sleep=off")]);
        }
        if machine.qemu.ends_with("riscv32") {
            command.args(["-bios", "none"]);
        }
        command.arg("-kernel").arg(&self.path);
        match output(&mut command) {
            Ok(output) => Ok(output.stdout),
            Err(message) => {
                // The log gives the reason: a failed assertion prints through defmt.
                let raw = command.output().map(|o| o.stdout).unwrap_or_default();
                let log = self.decode(&raw).unwrap_or_default().join("\n");
                Err(format!("{message}\n{log}"))
            }
        }
    }

    /// Emulates the image and returns the lines of its log.
    pub(super) fn run(&self, machine: &Machine) -> Result<Vec<String>> {
        self.decode(&self.emulate(machine)?)
    }

    /// Emulates a long-running image and returns the keys and values of its log.
    pub(super) fn figures(
        &self,
        machine: &Machine,
        icount: Option<&str>,
    ) -> Result<BTreeMap<String, String>> {
        let log = self.decode(&self.emulate_by(machine, icount, 300)?)?;
        let pairs = log.iter().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        fs::read(&self.path).map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Returns true if the image contains the name of a symbol.
    pub(super) fn names(&self, symbol: &str) -> Result<bool> {
        Ok(self.bytes()?.windows(symbol.len()).any(|bytes| bytes == symbol.as_bytes()))
    }

    fn decode(&self, log: &[u8]) -> Result<Vec<String>> {
        let table = Table::parse(&self.bytes()?).map_err(|e| e.to_string())?;
        let table = table.ok_or(format!("{}: no .defmt section", self.path.display()))?;
        let mut decoder = table.new_stream_decoder();
        decoder.received(log);
        let mut lines = Vec::new();
        loop {
            match decoder.decode() {
                Ok(frame) => lines.push(frame.display_message().to_string()),
                Err(DecodeError::UnexpectedEof) => return Ok(lines),
                Err(DecodeError::Malformed) => return Err(format!("{}: malformed log", self.path.display())),
            }
        }
    }

    pub(super) fn sections(&self) -> Result<Sections> {
        let bytes = self.bytes()?;
        let file = object::File::parse(&*bytes).map_err(|e| e.to_string())?;
        let (mut flash, mut ram, mut data) = (0, 0, 0);
        for section in file.sections() {
            match section.kind() {
                SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => {
                    flash += section.size();
                }
                SectionKind::Data => data += section.size(),
                SectionKind::UninitializedData if section.name().is_ok_and(|n| n.starts_with(".bss")) => {
                    ram += section.size();
                }
                _ => {}
            }
        }
        Ok(Sections { flash: flash + data, ram: ram + data, data })
    }

    /// Disassembles with the toolchain's own llvm-objdump, which must know the processor's extensions.
    pub(super) fn disassembly(&self, machine: &Machine) -> Result<String> {
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]).current_dir(folder()))?;
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let tool = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim())
            .join("lib/rustlib")
            .join(host)
            .join("bin/llvm-objdump");
        let text = output(
            Command::new(tool)
                .args(["-d", "--no-show-raw-insn", &format!("--mcpu={}", machine.cpu)])
                .arg(&self.path),
        )?;
        Ok(String::from_utf8_lossy(&text.stdout).into_owned())
    }
}

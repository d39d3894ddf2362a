//! The machines that images are built for, and how commands are run for them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A target and the machine that QEMU emulates for it.
pub(super) struct Machine {
    pub(super) target: &'static str,
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// LLVM's name of the CPU.
    pub(super) cpu: &'static str,
    pub(super) qemu: &'static str,
    pub(super) icount: &'static str,
    /// A feature that builds the images for this machine only, not for other machines of the target.
    pub(super) feature: Option<&'static str>,
}

pub(super) const MACHINES: [Machine; 4] = [
    machine("thumbv7em-none-eabihf", "mps2-an386", "Cortex-M4F", "cortex-m4", "qemu-system-arm", "shift=6"),
    machine("thumbv6m-none-eabi", "microbit", "Cortex-M0", "cortex-m0", "qemu-system-arm", "shift=6"),
    machine(
        "thumbv8m.main-none-eabihf",
        "mps2-an505",
        "Cortex-M33",
        "cortex-m33",
        "qemu-system-arm",
        "shift=6",
    ),
    machine(
        "riscv32imac-unknown-none-elf",
        "virt",
        "RV32IMAC",
        "generic-rv32",
        "qemu-system-riscv32",
        "shift=0",
    ),
];

/// Runs the language model only.
pub(super) const M55: Machine = Machine {
    feature: Some("m55"),
    ..machine(
        "thumbv8m.main-none-eabihf",
        "mps3-an547",
        "Cortex-M55",
        "cortex-m55",
        "qemu-system-arm",
        "shift=6",
    )
};

const fn machine(
    target: &'static str,
    name: &'static str,
    what: &'static str,
    cpu: &'static str,
    qemu: &'static str,
    icount: &'static str,
) -> Machine {
    Machine { target, name, what, cpu, qemu, icount, feature: None }
}

impl Machine {
    /// The build folder of this machine. It is separate if another machine has the same target.
    pub(super) fn target_folder(&self) -> PathBuf {
        folder().join("target").join(self.feature.unwrap_or_default())
    }

    /// Where its images are built.
    pub(super) fn folder(&self) -> PathBuf {
        self.target_folder().join(self.target).join("release")
    }

    /// Returns true if the worst costs of a ring are counted on it.
    pub(super) fn measures_worst(&self) -> bool {
        ["cortex-m0", "cortex-m4"].contains(&self.cpu)
    }

    /// Returns true if the example of tasks runs on it.
    pub(super) fn runs_tasks(&self) -> bool {
        self.cpu == "cortex-m4"
    }

    /// Returns true if its flash and RAM have room for the language model.
    pub(super) fn holds_model(&self) -> bool {
        self.name != "microbit"
    }
}

pub(super) type Result<T> = std::result::Result<T, String>;

/// The folder of the workspace for microcontrollers.
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command. Returns its output, or its errors if it failed.
pub(super) fn output(command: &mut Command) -> Result<Output> {
    let output = command.output().map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    if output.status.success() {
        Ok(output)
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?}: {}\n{errors}", output.status))
    }
}

/// `cargo` in that folder, without this cargo's environment variables.
pub(super) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(folder()).env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
    command.env("CARGO_TARGET_DIR", folder().join("target"));
    command
}

//! The needs of each task beyond the pinned toolchain. This one table serves `cargo xtask doctor`. It also
//! serves the error of a task that lacks something, so that the error comes before minutes of building.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something to install.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    pub(crate) name: &'static str,
    source: Source,
}

/// The origin of a need, which also tells how to check for it.
#[derive(Clone, Copy)]
enum Source {
    /// rustup: a component of the pinned toolchain.
    Component,
    /// rustup: the standard library of a target.
    Target,
    /// apt, with a program of the package.
    Program(&'static str),
    /// apt, with a file of the package.
    File(&'static str),
    /// Any other origin: a check, and instructions.
    Other(fn() -> bool, &'static str),
}

use Source::{Component, File, Other, Program, Target};

const fn need(name: &'static str, source: Source) -> Need {
    Need { name, source }
}

/// The rows: a command and its needs.
pub(crate) const TASKS: [(&str, &[Need]); 23] = [
    ("cargo xtask address", &[]),
    ("cargo fmt, cargo clippy", &[need("rustfmt", Component), need("clippy", Component)]),
    ("cargo xtask asm", &[need("an x86-64 machine", Other(is_x86_64, "run it on one"))]),
    ("cargo xtask codebooks", &[need("rustfmt", Component)]),
    (
        "cargo xtask firmware",
        &[
            need("thumbv6m-none-eabi", Target),
            need("thumbv7em-none-eabihf", Target),
            need("thumbv8m.main-none-eabihf", Target),
            need("riscv32imac-unknown-none-elf", Target),
            need("llvm-tools", Component),
            need("qemu-system-arm", Program("qemu-system-arm")),
            need("qemu-system-misc", Program("qemu-system-riscv32")),
            need("gcc-arm-none-eabi", Program("arm-none-eabi-gcc")),
            need("libnewlib-arm-none-eabi", File("/usr/lib/arm-none-eabi")),
            need("coreutils", Program("timeout")),
            need("make", Program("make")),
        ],
    ),
    ("cargo xtask gpu-bundle", &[]),
    (
        "cargo xtask gpu-check",
        &[need("an NVIDIA GPU", Other(has_gpu, "run it on a machine with one, and its driver"))],
    ),
    ("cargo xtask npm", &[need(crate::wasm::TARGET, Target)]),
    ("cargo xtask page", &[need(crate::wasm::TARGET, Target)]),
    (
        "cargo xtask ptx",
        &[
            need("rust-src", Component),
            need("llvm-tools", Component),
            need("llvm-bitcode-linker", Component),
            need(
                "ptxas",
                Other(
                    crate::ptx::has_ptxas,
                    "apt-get install -y python3-pip (fetches it), or name yours in TQKV_PTXAS",
                ),
            ),
        ],
    ),
    (
        "cargo xtask ptx --counts",
        &[need(
            "nvdisasm",
            Other(
                crate::disassemble::has_disassembler,
                "apt-get install -y python3-pip (fetches it), or name yours in TQKV_NVDISASM",
            ),
        )],
    ),
    (
        "cargo xtask real-model",
        &[need("pip", Other(crate::wheel::has_pip, "apt-get install -y python3-pip"))],
    ),
    ("cargo xtask sizes", &[]),
    ("cargo xtask tidy", &[]),
    ("cargo xtask trellis-search", &[]),
    ("cargo xtask vectors", &[]),
    (
        "CI: the core on every target",
        &[
            need("thumbv6m-none-eabi", Target),
            need("thumbv7em-none-eabihf", Target),
            need("thumbv8m.main-none-eabihf", Target),
            need("riscv32imac-unknown-none-elf", Target),
            need("aarch64-unknown-linux-gnu", Target),
            need("s390x-unknown-linux-gnu", Target),
            need("wasm32-unknown-unknown", Target),
            need("rust-src", Component),
        ],
    ),
    (
        "CI: NEON under emulation",
        &[
            need("aarch64-unknown-linux-gnu", Target),
            need("qemu-user", Program("qemu-aarch64")),
            need("gcc-aarch64-linux-gnu", Program("aarch64-linux-gnu-gcc")),
            need("libc6-dev-arm64-cross", File("/usr/aarch64-linux-gnu/include")),
        ],
    ),
    (
        "CI: golden bytes on a big-endian machine",
        &[
            need("s390x-unknown-linux-gnu", Target),
            need("qemu-user", Program("qemu-s390x")),
            need("gcc-s390x-linux-gnu", Program("s390x-linux-gnu-gcc")),
            need("libc6-dev-s390x-cross", File("/usr/s390x-linux-gnu/include")),
        ],
    ),
    (
        "CI: page kernels under Miri",
        &[need(
            "nightly with miri",
            Other(has_miri, "rustup toolchain install nightly --profile minimal --component miri,rust-src"),
        )],
    ),
    (
        "CI: the C interface",
        &[
            need("gcc", Program("gcc")),
            need("g++", Program("g++")),
            need("libc6-dev", File("/usr/include/stdio.h")),
            need("valgrind", Program("valgrind")),
        ],
    ),
    (
        "CI: the Python package",
        &[need("pip", Other(crate::wheel::has_pip, "apt-get install -y python3-pip python3-venv"))],
    ),
    (
        "cargo xtask fuzz",
        &[need("cargo-fuzz", Other(has_cargo_fuzz, "cargo install --locked cargo-fuzz@0.13.2"))],
    ),
];

impl Need {
    /// Returns true if the machine has it.
    pub(crate) fn is_there(&self) -> bool {
        match self.source {
            Component => components().lines().any(|line| {
                let host =
                    line.strip_prefix(self.name).map(|rest| rest.strip_prefix("-preview").unwrap_or(rest));
                host.is_some_and(|host| {
                    host.is_empty() || host.starts_with(&format!("-{}", env::consts::ARCH))
                })
            }),
            Target => sysroot().join("lib/rustlib").join(self.name).join("lib").exists(),
            Program(program) => on_path(program),
            File(file) => Path::new(file).exists(),
            Other(is_there, _) => is_there(),
        }
    }

    /// The command or the instructions to install it.
    pub(crate) fn how(&self) -> String {
        match self.source {
            Component => format!("rustup component add {}", self.name),
            Target => format!("rustup target add {}", self.name),
            Program(_) | File(_) => format!("apt-get install -y --no-install-recommends {}", self.name),
            Other(_, how) => how.to_owned(),
        }
    }
}

/// Checks that `cargo xtask task` can run here.
///
/// # Errors
/// One line that names everything that is missing.
pub(crate) fn check(task: &str) -> Result<(), String> {
    let name = format!("cargo xtask {task}");
    let needs = TASKS.iter().find(|(row, _)| *row == name).map_or(&[][..], |(_, needs)| needs);
    let missing: Vec<&Need> = needs.iter().filter(|need| !need.is_there()).collect();
    if missing.is_empty() { Ok(()) } else { Err(line(&missing)) }
}

fn line(missing: &[&Need]) -> String {
    let each: Vec<String> = missing.iter().map(|need| format!("{} ({})", need.name, need.how())).collect();
    format!("this machine lacks {}; cargo xtask doctor lists what every task needs", each.join(", "))
}

fn sysroot() -> PathBuf {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().into()).unwrap_or_default()
}

/// The list that rustup keeps: one component per line, with the host or a target after the name.
fn components() -> String {
    std::fs::read_to_string(sysroot().join("lib/rustlib/components")).unwrap_or_default()
}

fn on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn answers(command: &[&str]) -> bool {
    let [program, arguments @ ..] = command else { return false };
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn is_x86_64() -> bool {
    cfg!(target_arch = "x86_64")
}

fn has_gpu() -> bool {
    answers(&["nvidia-smi"])
}

fn has_miri() -> bool {
    answers(&["cargo", "+nightly", "miri", "--version"])
}

fn has_cargo_fuzz() -> bool {
    on_path("cargo-fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_how_to_get_it() {
        let absent = need("no-such-target", Target);
        assert!(!absent.is_there());
        assert!(!need("no-such-component", Component).is_there());
        assert!(!need("no-such-package", Program("no-such-program")).is_there());
        let other = need("the moon", Other(|| false, "go there"));
        let text = line(&[&absent, &other]);
        assert!(
            text.contains("no-such-target (rustup target add no-such-target), the moon (go there)"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn what_runs_this_test_is_there() {
        assert!(need("rustc", Component).is_there(), "{}", components());
        let version = Command::new("rustc").arg("-vV").output().unwrap().stdout;
        let version = String::from_utf8(version).unwrap();
        let host: &'static str =
            version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned().leak();
        assert!(need(host, Target).is_there());
        assert!(need("shell", Program("sh")).is_there());
    }

    /// `doctor` knows everything that CI installs.
    #[test]
    fn the_table_holds_what_ci_installs() {
        let script =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/tools")).unwrap();
        for list in ["packages=(", "targets=(", "components=("] {
            let words = script.split(list).nth(1).and_then(|rest| rest.split(')').next()).unwrap();
            assert!(words.split_whitespace().count() > 1, "{list}");
            for word in words.split_whitespace() {
                let known = TASKS.iter().flat_map(|(_, needs)| needs.iter()).any(|need| need.name == word);
                assert!(known, "{word} of {list} has no row");
            }
        }
    }
}

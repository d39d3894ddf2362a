//! `cargo xtask firmware`: runs `core/mcu/check`, which is a package of another workspace.

use std::path::Path;
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Options of the check: --lm, --json, --update-budget
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/mcu"));
    cargo.args(["run", "--quiet", "--locked", "-p", "tqkv-mcu-check", "--"]).args(&args.options);
    match cargo.status() {
        Ok(status) => ExitCode::from(u8::from(!status.success())),
        Err(error) => {
            eprintln!("xtask firmware: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

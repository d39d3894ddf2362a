//! Forwards commands and options of `tqkv-lab` to that program.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process;

use crate::error::CliError;
use crate::program::CommonArgs;

/// Below the help of `tqkv`.
pub(crate) const HELP: &str = "Experiments are commands of another program, tqkv-lab: report, stats, needle, compare, codebook, \
sweep, and eval on variants of a model. `cargo install --path benches/lab` installs it; then `tqkv report` runs it too.";

/// How to build `tqkv-lab`.
const BUILD: &str = "`cargo install --path benches/lab --locked` in a checkout builds it";

/// The arguments of a command of `tqkv-lab`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// Arguments of the command.
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Replaces this process with `tqkv-lab NAME`, if that program is found.
pub(crate) fn run(name: &str, args: &Args, common: CommonArgs) -> Result<(), CliError> {
    let Some(lab) = find() else {
        return Err(CliError::bad_input(format_args!(
            "{name} is a command of tqkv-lab, which is neither next to this program nor on PATH: {BUILD}"
        )));
    };
    let mut command = process::Command::new(&lab);
    command.arg(name).args(&args.words);
    if common.json {
        command.arg("--json");
    }
    if let Some(threads) = common.threads {
        command.args(["--threads".to_owned(), threads.to_string()]);
    }
    Err(replace(command, &lab))
}

/// Finds `tqkv-lab` next to this program, or on `PATH`.
fn find() -> Option<PathBuf> {
    let name = format!("tqkv-lab{}", env::consts::EXE_SUFFIX);
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let paths = env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(env::split_paths(&paths));
    folders.map(|folder| folder.join(&name)).find(|program| program.is_file())
}

/// Replaces this process with `command`. It returns only on failure, with the reason.
#[cfg(unix)]
fn replace(mut command: process::Command, lab: &std::path::Path) -> CliError {
    use std::os::unix::process::CommandExt as _;
    CliError::io(lab, &command.exec())
}

/// Runs `command` and exits with its exit code. It returns only on failure, with the reason.
#[cfg(not(unix))]
fn replace(mut command: process::Command, lab: &std::path::Path) -> CliError {
    match command.status() {
        Ok(status) => process::exit(status.code().unwrap_or(1)),
        Err(error) => CliError::io(lab, &error),
    }
}

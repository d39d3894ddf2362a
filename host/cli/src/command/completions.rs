//! The command `completions`: a shell script that completes commands and options.

use clap_complete::Shell;
use serde::Serialize;

use crate::error::CliError;
use crate::output::Output;
use crate::program::{Program, command_line};

/// The shells, so that an error without one lists them.
const SHELLS: &str = "bash|elvish|fish|powershell|zsh";

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv completions bash > ~/.local/share/bash-completion/completions/tqkv
  tqkv completions fish > ~/.config/fish/completions/tqkv.fish")]
pub struct Args {
    /// Shell that reads the script.
    #[arg(value_enum, value_name = SHELLS)]
    shell: Shell,
}

#[derive(Serialize)]
struct Completions {
    shell: String,
    script: String,
}

pub fn run<P: Program>(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line::<P>(), P::NAME, &mut script);
    let script = String::from_utf8_lossy(&script).trim_end().to_owned();
    out.print(&Completions { shell: args.shell.to_string(), script }, |made| made.script.clone())
}

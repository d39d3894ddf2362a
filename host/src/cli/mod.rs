//! The `tqkv` command: arguments, output and exit codes. One file per subcommand; what they do is in
//! the library.

mod args;
mod codebook;
mod decode;
mod encode;
mod error;
mod inspect;
mod output;
mod plan;
mod stats;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::CliError;
use output::Output;

/// Compress the key/value cache of a transformer, and measure what that costs and saves.
#[derive(Debug, Parser)]
#[command(name = "tqkv", version, max_term_width = 100, arg_required_else_help = false)]
struct Cli {
    /// Print one JSON object on stdout and nothing else.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Encode(encode::Args),
    Decode(decode::Args),
    Inspect(inspect::Args),
    Stats(stats::Args),
    Codebook(codebook::Args),
    Plan(plan::Args),
}

/// Runs the command that the process was started with.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return report(&CliError::usage(&error)),
        // `--help` and `--version`.
        Err(error) => {
            return match error.print() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => report(&CliError::from(error)),
            };
        }
    };
    let mut out = Output::new(cli.json);
    match cli.command.run(&mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

impl Command {
    fn run(&self, out: &mut Output) -> Result<(), CliError> {
        match self {
            Self::Encode(args) => encode::run(args, out),
            Self::Decode(args) => decode::run(args, out),
            Self::Inspect(args) => inspect::run(args, out),
            Self::Stats(args) => stats::run(args, out),
            Self::Codebook(args) => codebook::run(args, out),
            Self::Plan(args) => plan::run(args, out),
        }
    }
}

fn report(error: &CliError) -> ExitCode {
    // A reader that went away (`tqkv .. | head`) is not worth a message.
    if !error.is_broken_pipe() {
        let _ = writeln!(io::stderr(), "tqkv: {error}");
    }
    error.exit_code()
}

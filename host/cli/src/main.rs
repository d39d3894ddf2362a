//! The `tqkv` command: arguments, output and exit codes. One file a command in `command/`; beside it what commands
//! share, and what has no other user: figures of codecs ([`stats`]), sizes of caches ([`plan`]), names of codec pairs
//! ([`preset`]) and arrays on disk ([`array`]). Caches and files are the library's, models are `tqkv-model`'s.
#![forbid(unsafe_code)]

mod args;
mod array;
mod cache_args;
mod command;
mod compare;
mod device;
mod error;
mod help;
mod input;
mod memory;
mod names;
mod output;
mod plan;
mod policy;
mod preset;
mod report;
mod signals;
mod stats;
mod target;
mod threads;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use clap::{CommandFactory, FromArgMatches, Parser};

use command::Command;
use error::CliError;
use output::Output;

/// Compress the key/value cache of a transformer, and measure what that costs and saves. Without a command,
/// demo runs.
#[derive(Debug, Parser)]
#[command(name = "tqkv", version, max_term_width = 100, arg_required_else_help = false)]
struct Cli {
    /// Print one JSON object on stdout and nothing else.
    #[arg(long, global = true, display_order = 900)]
    json: bool,
    /// Threads to work with [default: RAYON_NUM_THREADS, or else one a processor]. Texts and figures do not depend on it.
    #[arg(long, global = true, display_order = 901, value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    threads: Option<usize>,
    /// What to do; without one, demo.
    #[command(subcommand)]
    command: Option<Command>,
}

/// All commands and options, for texts about them.
fn command_line() -> clap::Command {
    help::laid_out(Cli::command())
}

/// What `words` ask for, the program's name first.
fn parse_line<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    let mut command = command_line();
    let matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The command of a line without the program's name.
fn parse(words: &[&str]) -> Result<Command, CliError> {
    let line = parse_line(std::iter::once(&"tqkv").chain(words)).map_err(|e| CliError::usage(&e))?;
    line.command.map_or_else(Command::demo, Ok)
}

fn main() -> ExitCode {
    let cli = match parse_line(std::env::args_os()) {
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
    signals::watch();
    let mut out = Output::new(cli.json);
    let command = cli.command.map_or_else(Command::demo, Ok);
    match command
        .and_then(|command| threads::with_threads(cli.threads, || command.run(command_line, &mut out)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &CliError) -> ExitCode {
    if error.is_closed_pipe() {
        signals::end_as_by_closed_pipe();
    }
    if !error.is_silent() {
        output::note(error);
    }
    error.exit_code()
}

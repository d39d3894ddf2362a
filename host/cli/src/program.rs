//! A program of commands: reads the command line, runs what it asks for, and ends with an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::RangedU64ValueParser;

use crate::error::CliError;
use crate::output::{self, Output};
use crate::{help, signals, threads};

/// Options of all commands.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(skip)]
pub struct CommonArgs {
    /// Print one JSON object on stdout and nothing else.
    #[arg(long, global = true, display_order = 900)]
    pub json: bool,
    /// Threads to work with [default: RAYON_NUM_THREADS, or else one a processor]. Texts and figures do not
    /// depend on it.
    #[arg(long, global = true, display_order = 901, value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads: Option<usize>,
}

/// The commands of a program.
pub trait Program: Parser + Sync {
    /// As a shell calls it.
    const NAME: &'static str;

    fn common(&self) -> CommonArgs;

    /// Runs the command that was asked for.
    ///
    /// # Errors
    /// What the command says.
    fn run(&self, out: &mut Output) -> Result<(), CliError>;
}

/// All commands and options, for texts about them.
pub fn command_line<P: Program>() -> clap::Command {
    help::laid_out(P::command())
}

/// What `words` ask for, the program's name first.
fn parse_line<P: Program>(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<P, clap::Error> {
    let mut command = command_line::<P>();
    let matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// What a line without the program's name asks for.
///
/// # Errors
/// A line that the program refuses.
pub fn parse<P: Program>(words: &[&str]) -> Result<P, CliError> {
    parse_line(std::iter::once(&P::NAME).chain(words)).map_err(|e| CliError::usage(&e))
}

/// Runs the program on the process's own command line.
pub fn main<P: Program>() -> ExitCode {
    output::name_program(P::NAME);
    let program = match parse_line::<P>(std::env::args_os()) {
        Ok(program) => program,
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
    let CommonArgs { json, threads } = program.common();
    let mut out = Output::new(json);
    match threads::with_threads(threads, || program.run(&mut out)) {
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

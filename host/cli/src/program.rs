//! A program of commands: parses the command line, runs the command and returns the exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::RangedU64ValueParser;

use crate::error::CliError;
use crate::output::{self, Output};
use crate::{environment, help, signals, threads};

/// Options of all commands.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(skip)]
pub struct CommonArgs {
    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true, display_order = 900)]
    pub json: bool,
    /// Number of threads [default: RAYON_NUM_THREADS, or one per processor]. Texts and figures do not depend
    /// on it.
    #[arg(long, global = true, display_order = 901, value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads: Option<usize>,
}

/// The commands of a program.
pub trait Program: Parser + Sync {
    /// Name of the program in a shell.
    const NAME: &'static str;

    fn common(&self) -> CommonArgs;

    /// Runs the parsed command.
    ///
    /// # Errors
    /// The errors of that command.
    fn run(&self, out: &mut Output) -> Result<(), CliError>;
}

/// The command line with all commands and options, for help texts.
pub fn command_line<P: Program>() -> clap::Command {
    help::laid_out(P::command())
}

/// Parses `words`, which begin with the program's name.
fn parse_line<P: Program>(words: Vec<OsString>) -> Result<P, clap::Error> {
    let mut command = help::with_exit_codes(command_line::<P>());
    let words = help::without_help_of_help(&command, words);
    let matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Parses a command line without the program's name.
///
/// # Errors
/// A command line that is not valid.
pub fn parse<P: Program>(words: &[&str]) -> Result<P, CliError> {
    let words = std::iter::once(&P::NAME).chain(words).map(OsString::from);
    parse_line(words.collect()).map_err(|e| CliError::usage(&e))
}

/// Runs the program on the command line of the process.
pub fn main<P: Program>() -> ExitCode {
    ExitCode::from(run::<P>(std::env::args_os()))
}

/// Runs the program on `words`, which begin with the program's name. Returns the exit code.
pub fn run<P: Program>(words: impl IntoIterator<Item = OsString>) -> u8 {
    output::name_program(P::NAME);
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some(text) = help::topic(&words) {
        let printed = Output::new(false).write_text(&text);
        return printed.map_or_else(|error| report(&CliError::from(error)), |()| 0);
    }
    let program = match parse_line::<P>(words) {
        Ok(program) => program,
        Err(error) if error.use_stderr() => return report(&CliError::usage(&error)),
        // The texts of `--help` and `--version`.
        Err(error) => {
            return match error.print() {
                Ok(()) => 0,
                Err(error) => report(&CliError::from(error)),
            };
        }
    };
    signals::watch();
    let CommonArgs { json, threads } = program.common();
    let mut out = Output::new(json);
    if let Err(error) = environment::check() {
        return report(&error);
    }
    match threads::with_threads(threads, || program.run(&mut out)) {
        Ok(()) => 0,
        Err(error) => report(&error),
    }
}

fn report(error: &CliError) -> u8 {
    if error.is_closed_pipe() {
        signals::end_as_by_closed_pipe();
    }
    if !error.is_silent() {
        output::note(error);
    }
    error.exit_code()
}

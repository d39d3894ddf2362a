//! The `tqkv` command: arguments, output and exit codes. One file per subcommand; what they do is in
//! the library.

mod args;
mod bench;
mod cache_args;
mod codebook;
mod decode;
mod demo;
mod demo_speed;
mod device;
mod encode;
mod error;
mod eval;
mod generate;
mod inspect;
mod output;
mod plan;
mod stats;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::CliError;
use output::Output;

/// Compress the key/value cache of a transformer, and measure what that costs and saves. Without a command,
/// demo runs.
#[derive(Debug, Parser)]
#[command(name = "tqkv", version, max_term_width = 100, arg_required_else_help = false)]
struct Cli {
    /// Print one JSON object on stdout and nothing else.
    #[arg(long, global = true)]
    json: bool,
    /// What to do; without one, demo.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Generate(generate::Args),
    Eval(eval::Args),
    Encode(encode::Args),
    Decode(decode::Args),
    Inspect(inspect::Args),
    Stats(stats::Args),
    Codebook(codebook::Args),
    Plan(plan::Args),
    Bench(bench::Args),
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
    let command = cli.command.map_or_else(|| demo::Args::defaults().map(Command::Demo), Ok);
    match command.and_then(|command| command.run(&mut out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

impl Command {
    fn run(&self, out: &mut Output) -> Result<(), CliError> {
        match self {
            Self::Demo(args) => demo::run(args, out),
            Self::Generate(args) => generate::run(args, out),
            Self::Eval(args) => eval::run(args, out),
            Self::Encode(args) => encode::run(args, out),
            Self::Decode(args) => decode::run(args, out),
            Self::Inspect(args) => inspect::run(args, out),
            Self::Stats(args) => stats::run(args, out),
            Self::Codebook(args) => codebook::run(args, out),
            Self::Plan(args) => plan::run(args, out),
            Self::Bench(args) => bench::run(args, out),
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

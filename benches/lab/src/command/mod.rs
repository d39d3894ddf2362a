//! The commands, each in its own file, and their list.

mod codebook;
mod compare;
mod eval;
mod growth;
mod needle;
mod needle_data;
mod picture;
mod picture_bars;
mod picture_table;
mod report;
mod stats;
mod stats_delta;
mod stored;
mod sweep;

use clap::Subcommand;
use tqkv_cli::command::{completions, man};
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::program::Program;

/// One command with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Report(report::Args),
    Eval(eval::Args),
    Needle(needle::Args),
    Stats(stats::Args),
    Compare(compare::Args),
    Codebook(codebook::Args),
    Sweep(sweep::Args),
    Picture(picture::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Runs the command, as one of the program `P`.
    pub(crate) fn run<P: Program>(&self, out: &mut Output) -> Result<(), CliError> {
        match self {
            Self::Report(args) => report::run::<P>(args, out),
            Self::Eval(args) => eval::run(args, out),
            Self::Needle(args) => needle::run(args, out),
            Self::Stats(args) => stats::run(args, out),
            Self::Compare(args) => compare::run(args, out),
            Self::Codebook(args) => codebook::run(args, out),
            Self::Sweep(args) => sweep::run(args, out),
            Self::Picture(args) => picture::run::<P>(args, out),
            Self::Completions(args) => completions::run::<P>(args, out),
            Self::Man(args) => man::run::<P>(args, out),
        }
    }
}

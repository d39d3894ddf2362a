//! `tqkv-lab`: experiments around the cache, which no user of the cache needs.
//!
//! Each command has a file in `command/`. The other modules compute figures of codecs ([`stats`]),
//! comparisons of files and runs ([`compare`]) and the page of plots ([`report`]). Arguments, errors and
//! output come from `tqkv`.
#![forbid(unsafe_code)]

mod command;
mod compare;
mod report;
mod stats;

use std::process::ExitCode;

use clap::Parser;
use command::Command;
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::program::{self, CommonArgs, Program};

/// Experiments with compressed key/value caches: plots, distortion, retrieval, comparisons, and variants of
/// models.
#[derive(Debug, Parser)]
#[command(name = "tqkv-lab", version, max_term_width = 100)]
struct Lab {
    #[command(flatten)]
    common: CommonArgs,
    /// The command to run.
    #[command(subcommand)]
    command: Command,
}

impl Program for Lab {
    const NAME: &'static str = "tqkv-lab";

    fn common(&self) -> CommonArgs {
        self.common
    }

    fn run(&self, out: &mut Output) -> Result<(), CliError> {
        self.command.run::<Self>(out)
    }
}

fn main() -> ExitCode {
    program::main::<Lab>()
}

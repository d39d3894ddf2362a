//! The program `tqkv` as a library, for the code that `tqkv-lab` shares with it.
//!
//! The interface is not stable: names change with the program. Caches and files come from the library
//! (`tqkv`), models from `tqkv-model`. Each command has a file in [`command`]. The other modules are shared
//! by the commands: arguments, errors, output, sizes of caches ([`plan`]), names of codec pairs ([`preset`])
//! and arrays on disk ([`mod@array`]). [`program`] runs a program of such commands.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "fields of arguments say in their help what they are, for two programs of this project"
)]

pub mod args;
pub mod array;
pub mod cache_args;
pub mod command;
pub mod device;
mod door;
mod environment;
pub mod error;
mod help;
pub mod input;
mod lab_options;
mod memory;
pub mod names;
pub mod output;
mod plain;
pub mod plan;
pub mod policy;
pub mod preset;
pub mod program;
mod signals;
mod slots;
pub mod target;
mod threads;

use clap::Parser;

use command::Command;
use error::CliError;
use output::Output;
use program::{CommonArgs, Program};

/// Compress the key/value cache of a transformer, and measure the cost and the saving. `tqkv` without a
/// command runs `demo`.
#[derive(Debug, Parser)]
#[command(name = "tqkv", version, max_term_width = 100, arg_required_else_help = false, after_help = door::HELP)]
pub struct Tqkv {
    #[command(flatten)]
    common: CommonArgs,
    /// The command to run [default: demo].
    #[command(subcommand)]
    command: Option<Command>,
}

impl Program for Tqkv {
    const NAME: &'static str = "tqkv";

    fn common(&self) -> CommonArgs {
        self.common
    }

    fn run(&self, out: &mut Output) -> Result<(), CliError> {
        match &self.command {
            Some(command) => command.run::<Self>(self.common, out),
            None => Command::demo()?.run::<Self>(self.common, out),
        }
    }
}

//! The commands, each in its own file, and their list.

mod basis;
pub mod bench;
mod bench_model;
mod chat;
mod codecs;
pub mod completions;
mod decode;
pub mod demo;
pub mod demo_speed;
mod demo_text;
mod doctor;
mod encode;
pub mod eval;
mod eval_markdown;
mod eval_recall;
mod eval_scores;
mod eval_subject;
mod eval_texts;
mod export;
mod generate;
mod generate_many;
mod generate_window;
#[cfg(feature = "cuda")]
mod gpu_check;
mod inspect;
mod llama;
pub mod man;
mod plan;
mod plan_loading;
mod plan_ram;
mod plan_table;
mod session;
mod session_codes;
mod session_serve;
mod stored;
mod tune;
mod weights;

use clap::Subcommand;

use crate::door;
use crate::error::CliError;
use crate::output::Output;
use crate::program::{CommonArgs, Program};

/// One command with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Args),
    Generate(generate::Args),
    Chat(chat::Args),
    Eval(eval::Args),
    Basis(basis::Args),
    Encode(encode::Args),
    Decode(decode::Args),
    Inspect(inspect::Args),
    Codecs(codecs::Args),
    Plan(plan::Args),
    Tune(tune::Args),
    Weights(weights::Args),
    Session(session::Args),
    Export(export::Args),
    Llama(llama::Args),
    Bench(bench::Args),
    Doctor(doctor::Args),
    #[cfg(feature = "cuda")]
    GpuCheck(gpu_check::Args),
    Completions(completions::Args),
    Man(man::Args),
    /// Write one page of plots and tables (a command of tqkv-lab).
    #[command(hide = true)]
    Report(door::Args),
    /// Measure the errors of codecs on vectors (a command of tqkv-lab).
    #[command(hide = true)]
    Stats(door::Args),
    /// Search for one token among a million (a command of tqkv-lab).
    #[command(hide = true)]
    Needle(door::Args),
    /// Compare two files, snapshots or runs (a command of tqkv-lab).
    #[command(hide = true)]
    Compare(door::Args),
    /// Print the levels of a scalar code (a command of tqkv-lab).
    #[command(hide = true)]
    Codebook(door::Args),
}

impl Command {
    /// The command that runs if none is given.
    pub(crate) fn demo() -> Result<Self, CliError> {
        demo::Args::defaults().map(Self::Demo)
    }

    /// Runs the command, as one of the program `P`.
    pub(crate) fn run<P: Program>(&self, common: CommonArgs, out: &mut Output) -> Result<(), CliError> {
        match self {
            Self::Demo(args) => demo::run(args, out),
            Self::Generate(args) => generate::run(args, out),
            Self::Chat(args) => chat::run(args, out),
            Self::Eval(args) => eval::run(args, out),
            Self::Basis(args) => basis::run(args, out),
            Self::Encode(args) => encode::run(args, out),
            Self::Decode(args) => decode::run(args, out),
            Self::Inspect(args) => inspect::run(args, out),
            Self::Codecs(args) => codecs::run(args, out),
            Self::Plan(args) => plan::run(args, out),
            Self::Tune(args) => tune::run(args, out),
            Self::Weights(args) => weights::run(args, out),
            Self::Session(args) => session::run(args, out),
            Self::Export(args) => export::run(args, out),
            Self::Llama(args) => llama::run(args, out),
            Self::Bench(args) => bench::run(args, out),
            Self::Doctor(args) => doctor::run(args, out),
            #[cfg(feature = "cuda")]
            Self::GpuCheck(args) => gpu_check::run(args, out),
            Self::Completions(args) => completions::run::<P>(args, out),
            Self::Man(args) => man::run::<P>(args, out),
            Self::Report(args) => door::run("report", args, common),
            Self::Stats(args) => door::run("stats", args, common),
            Self::Needle(args) => door::run("needle", args, common),
            Self::Compare(args) => door::run("compare", args, common),
            Self::Codebook(args) => door::run("codebook", args, common),
        }
    }
}

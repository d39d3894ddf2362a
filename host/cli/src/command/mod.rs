//! The commands: a file each, and their list.

mod basis;
mod bench;
mod bench_growth;
mod codebook;
mod codecs;
mod compare;
mod completions;
mod decode;
pub(crate) mod demo;
pub(crate) mod demo_speed;
mod demo_text;
mod encode;
mod eval;
mod eval_scores;
mod eval_storage;
mod export;
mod generate;
mod generate_many;
mod generate_window;
#[cfg(feature = "cuda")]
mod gpu_check;
mod inspect;
mod man;
mod needle;
mod needle_data;
mod plan;
mod plan_ram;
mod plan_table;
mod report;
mod session;
mod stats;
mod stats_delta;
mod stored;
mod weights;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// One command, with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Args),
    Generate(generate::Args),
    Eval(eval::Args),
    Basis(basis::Args),
    Needle(needle::Args),
    Encode(encode::Args),
    Decode(decode::Args),
    Inspect(inspect::Args),
    Stats(stats::Args),
    Codecs(codecs::Args),
    Codebook(codebook::Args),
    Compare(compare::Args),
    Plan(plan::Args),
    Report(report::Args),
    Weights(weights::Args),
    Session(session::Args),
    Export(export::Args),
    Bench(bench::Args),
    #[cfg(feature = "cuda")]
    GpuCheck(gpu_check::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// What runs without a command.
    pub(crate) fn demo() -> Result<Self, CliError> {
        demo::Args::defaults().map(Self::Demo)
    }

    /// Does it.
    pub(crate) fn run(&self, out: &mut Output) -> Result<(), CliError> {
        match self {
            Self::Demo(args) => demo::run(args, out),
            Self::Generate(args) => generate::run(args, out),
            Self::Eval(args) => eval::run(args, out),
            Self::Basis(args) => basis::run(args, out),
            Self::Needle(args) => needle::run(args, out),
            Self::Encode(args) => encode::run(args, out),
            Self::Decode(args) => decode::run(args, out),
            Self::Inspect(args) => inspect::run(args, out),
            Self::Stats(args) => stats::run(args, out),
            Self::Codecs(args) => codecs::run(args, out),
            Self::Codebook(args) => codebook::run(args, out),
            Self::Compare(args) => compare::run(args, out),
            Self::Plan(args) => plan::run(args, out),
            Self::Report(args) => report::run(args, out),
            Self::Weights(args) => weights::run(args, out),
            Self::Session(args) => session::run(args, out),
            Self::Export(args) => export::run(args, out),
            Self::Bench(args) => bench::run(args, out),
            #[cfg(feature = "cuda")]
            Self::GpuCheck(args) => gpu_check::run(args, out),
            Self::Completions(args) => completions::run(args, out),
            Self::Man(args) => man::run(args, out),
        }
    }
}

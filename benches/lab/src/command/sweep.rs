//! `tqkv-lab sweep`: plots the time of attention against the length of the cache.

use std::path::PathBuf;

use tqkv_benches::{Data, Op};
use tqkv_cli::command::bench::{self, KernelArgs};
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::target::{TargetArgs, yield_stdout};
use tqkv_core::Effort;

use super::growth;

/// Measure attention over caches of 1,024 to 1,048,576 tokens and plot it; needs at least 2 GB of memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv-lab sweep --codec s4,t4 --query-heads 4 growth.svg

The measurement is the same as in `tqkv bench --op attend`.")]
pub(crate) struct Args {
    #[command(flatten)]
    kernels: KernelArgs,
    #[command(flatten)]
    target: TargetArgs,
    /// Plot to write.
    #[arg(value_name = "OUT.svg")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    // The output is checked before the measurement.
    let file = args.target.create_new(&args.output)?;
    let lengths = growth::LENGTHS.map(Data::Tokens);
    let measured = args.kernels.measure((&[Op::Attend], &lengths, &[Effort::Default]), out)?;
    growth::plot(&measured.report, &args.output, file)?;
    yield_stdout(&[&args.output], out);
    bench::print(&measured, out)
}

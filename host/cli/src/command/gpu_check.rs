//! `tqkv gpu-check`: whether the GPU of this machine computes what the CPU does, and how fast.

use crate::error::CliError;
use crate::output::Output;

/// Check the kernels on this machine's GPU and measure them beside f16 and the bandwidth of its memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: all, as JSON, an object a line
  tqkv gpu-check --json > check.jsonl

One sequence of 32,768 tokens, 8 KV heads of 4 query heads, head dim 128
  tqkv gpu-check --speed --shape 1x32768x8x4x128 --codec s4,s2

A line is printed as soon as it is measured. Times are of the GPU's own events. Exit code 3: no GPU that can; \
1: codes or attention are wrong.")]
pub(crate) struct Args {
    #[command(flatten)]
    check: tqkv_gpu_check::CheckArgs,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let device = tqkv_gpu_check::open(&args.check)
        .map_err(|error| CliError::lacking(format_args!("{error}; nothing was checked")))?;
    let json = out.is_json();
    match tqkv_gpu_check::run(&device, &args.check, json, &mut |text| out.write_text(text)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CliError::failure("codes or attention differ from the CPU's; see above")),
        Err(tqkv_gpu_check::CheckError::Write(error)) => Err(error.into()),
        Err(tqkv_gpu_check::CheckError::Ptx(path, error)) => Err(CliError::io(&path, &error)),
        Err(error) => Err(CliError::failure(error)),
    }
}

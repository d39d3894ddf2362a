//! `tqkv gpu-check`: compares the GPU of this machine with the CPU, and measures its speed.

use crate::error::CliError;
use crate::output::Output;

/// Check the kernels on the GPU of this machine, and compare their speed with f16 and its memory bandwidth.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: all checks as JSON, one object per line
  tqkv gpu-check --json > check.jsonl
Example: one sequence of 32,768 tokens, 8 KV heads with 4 query heads each, head dim 128
  tqkv gpu-check --speed --shape 1x32768x8x4x128 --codec s4,s2

Each line appears as soon as it is measured. Times come from the GPU's own events. Exit code 3: no usable GPU; \
1: codes or attention are wrong.")]
pub(crate) struct Args {
    #[command(flatten)]
    check: tqkv_gpu::check::CheckArgs,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let device = tqkv_gpu::check::open(&args.check)
        .map_err(|error| CliError::lacking(format_args!("{error}; nothing was checked")))?;
    let json = out.is_json();
    match tqkv_gpu::check::run(&device, &args.check, json, &mut |text| out.write_text(text)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CliError::failure("codes or attention differ from the CPU's; see above")),
        Err(tqkv_gpu::check::CheckError::Write(error)) => Err(error.into()),
        Err(tqkv_gpu::check::CheckError::Ptx(path, error)) => Err(CliError::io(&path, &error)),
        Err(error) => Err(CliError::failure(error)),
    }
}

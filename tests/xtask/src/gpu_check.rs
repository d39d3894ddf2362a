//! `cargo xtask gpu-check`: the same as `tqkv gpu-check`, without the program.

use std::io::Write;
use std::process::ExitCode;
use tqkv_gpu::check::CheckArgs;

/// Exit code if this machine has no GPU.
const NO_GPU: u8 = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per line on stdout and nothing else
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    check: CheckArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let device = match tqkv_gpu::check::open(&args.check) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu-check: {error}; nothing was checked");
            return ExitCode::from(NO_GPU);
        }
    };
    let mut write = |text: &str| {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    };
    match tqkv_gpu::check::run(&device, &args.check, args.json, &mut write) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("gpu-check: a row is wrong");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("gpu-check: {error}");
            ExitCode::FAILURE
        }
    }
}

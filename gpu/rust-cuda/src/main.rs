//! Builds this package's library to PTX: `cargo run --features build -- FILE`. README.md says what that
//! needs.

use cuda_builder::{CudaBuilder, NvvmArch};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("say where the PTX goes: cargo run --features build -- kernels.ptx");
        return ExitCode::FAILURE;
    };
    // Codes are the CPU's to the bit: nothing fused, nothing flushed to zero, divisions and roots as IEEE has
    // them.
    let built = CudaBuilder::new(env!("CARGO_MANIFEST_DIR"))
        .arch(NvvmArch::Compute80)
        .fma_contraction(false)
        .ftz(false)
        .fast_sqrt(false)
        .fast_div(false)
        .copy_to(path)
        .build();
    match built {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

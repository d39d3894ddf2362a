//! Builds this package's library to PTX: `cargo run --features build -- FILE`. README.md lists the
//! requirements.

use cuda_builder::{CudaBuilder, NvvmArch};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("say where the PTX goes: cargo run --features build -- kernels.ptx");
        return ExitCode::FAILURE;
    };
    // Codes must equal the CPU's to the bit. So nothing is fused or flushed to zero, and divisions and roots
    // round as in IEEE 754.
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

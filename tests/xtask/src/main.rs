//! Task runner: `cargo xtask TASK`.

mod asm;
mod firmware;
mod gpu_check;
mod ptx;
mod trellis_search;
mod vectors;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tasks of the tqkv workspace")]
enum Task {
    /// Check that the hot loops of the release assembly hold no calls and no bounds checks
    Asm(asm::Args),
    /// Build the firmware images, run them in QEMU, and compare their costs with the budget
    Firmware(firmware::Args),
    /// Check the GPU kernels on this machine's GPU, and measure them; exits 3 without one
    GpuCheck(gpu_check::Args),
    /// Build the GPU kernels, or compare them with the committed PTX, and audit them
    Ptx(ptx::Args),
    /// Find the generators and levels of the trellis codes from scratch and print their table
    TrellisSearch(trellis_search::Args),
    /// Write the golden block file, or compare with it
    Vectors(vectors::Args),
}

fn main() -> ExitCode {
    match Task::parse() {
        Task::Asm(args) => asm::run(&args),
        Task::Firmware(args) => firmware::run(&args),
        Task::GpuCheck(args) => gpu_check::run(&args),
        Task::Ptx(args) => ptx::run(&args),
        Task::TrellisSearch(args) => {
            trellis_search::run(&args);
            ExitCode::SUCCESS
        }
        Task::Vectors(args) => vectors::run(&args),
    }
}

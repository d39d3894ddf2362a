//! Task runner: `cargo xtask TASK`.

mod asm;
mod firmware;
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
    /// Find the generators and levels of the trellis codes from scratch and print their table
    TrellisSearch(trellis_search::Args),
    /// Write the golden block file, or compare with it
    Vectors(vectors::Args),
}

fn main() -> ExitCode {
    match Task::parse() {
        Task::Asm(args) => asm::run(&args),
        Task::Firmware(args) => firmware::run(&args),
        Task::TrellisSearch(args) => {
            trellis_search::run(&args);
            ExitCode::SUCCESS
        }
        Task::Vectors(args) => vectors::run(&args),
    }
}

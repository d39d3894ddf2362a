//! Task runner: `cargo xtask TASK`.

mod address;
mod asm;
mod codebooks;
mod cost;
mod counts;
mod disassemble;
mod doctor;
mod firmware;
mod fuzz;
mod gpu_bundle;
mod gpu_check;
mod needs;
mod npm;
mod page;
mod ptx;
mod real_model;
mod sass;
mod simulate;
mod sizes;
mod tidy;
mod timing;
mod trellis_search;
mod vectors;
mod wasm;
mod wheel;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tasks of the tqkv workspace")]
enum Task {
    /// Write the address of the repository into every manifest, or check it
    Address(address::Args),
    /// Check that the hot loops of the release assembly hold no calls and no bounds checks
    Asm(asm::Args),
    /// Solve the codebooks and write their file, or compare with it
    Codebooks(codebooks::Args),
    /// List what each task needs on this machine, and how to install what is missing
    Doctor(doctor::Args),
    /// Build the firmware images, run them in QEMU, and compare their costs with the budget
    Firmware(firmware::Args),
    /// Run the fuzz targets for a time, and print a table of executions, corpus and crashes
    Fuzz(fuzz::Args),
    /// Write programs and scripts for a machine with a GPU and no compiler
    GpuBundle(gpu_bundle::Args),
    /// Check the GPU kernels on this machine's GPU, and measure them; exits 3 without one
    GpuCheck(gpu_check::Args),
    /// Build the module of the package for JavaScript
    Npm,
    /// Build the page for browsers: the shipped model over several caches, in one file
    Page(page::Args),
    /// Build the GPU kernels, or compare them with the committed PTX, and audit them
    Ptx(ptx::Args),
    /// Measure caches on a published model, next to llama.cpp's caches; or check the runner on it
    RealModel(real_model::Args),
    /// Print bytes of what is built here, and lines of each package
    Sizes(sizes::Args),
    /// Check the rules of the source that no compiler checks, and report what it looks like
    Tidy(tidy::Args),
    /// Find the generators and levels of the trellis codes from scratch and print their table
    TrellisSearch(trellis_search::Args),
    /// Write the golden block file, or compare with it
    Vectors(vectors::Args),
}

fn main() -> ExitCode {
    match Task::parse() {
        Task::Address(args) => address::run(&args),
        Task::Asm(args) => when_ready("asm", || asm::run(&args)),
        Task::Codebooks(args) => when_ready("codebooks", || codebooks::run(&args)),
        Task::Doctor(args) => doctor::run(&args),
        Task::Firmware(args) => when_ready("firmware", || firmware::run(&args)),
        Task::Fuzz(args) => when_ready("fuzz", || fuzz::run(&args)),
        Task::GpuBundle(args) => when_ready("gpu-bundle", || gpu_bundle::run(&args)),
        // This task reports a missing GPU itself, with its own exit code.
        Task::GpuCheck(args) => gpu_check::run(&args),
        Task::Npm => when_ready("npm", npm::run),
        Task::Page(args) => when_ready("page", || page::run(&args)),
        Task::Ptx(args) => when_ready("ptx", || ptx::run(&args)),
        Task::RealModel(args) => when_ready("real-model", || real_model::run(&args)),
        Task::Sizes(args) => sizes::run(&args),
        Task::Tidy(args) => tidy::run(&args),
        Task::TrellisSearch(args) => {
            trellis_search::run(&args);
            ExitCode::SUCCESS
        }
        Task::Vectors(args) => vectors::run(&args),
    }
}

/// Runs a task if the machine has what it needs; otherwise prints one line about what is missing.
fn when_ready(task: &str, run: impl FnOnce() -> ExitCode) -> ExitCode {
    match needs::check(task) {
        Ok(()) => run(),
        Err(lacks) => {
            eprintln!("xtask {task}: {lacks}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn doctor_knows_every_task() {
        for task in Task::command().get_subcommands().map(clap::Command::get_name) {
            let name = format!("cargo xtask {task}");
            assert!(
                task == "doctor" || needs::TASKS.iter().any(|(row, _)| *row == name),
                "{name} has no row"
            );
        }
    }
}

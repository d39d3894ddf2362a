//! Task runner: `cargo xtask TASK`.

mod vectors;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tasks of the tqkv workspace")]
enum Task {
    /// Write the golden block file, or compare with it
    Vectors(vectors::Args),
}

fn main() -> ExitCode {
    match Task::parse() {
        Task::Vectors(args) => vectors::run(&args),
    }
}

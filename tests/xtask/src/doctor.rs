//! `cargo xtask doctor`: lists the needs of each task, shows which are met here, and how to install the rest.

use crate::needs::TASKS;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> ExitCode {
    let mut missing = 0;
    for (task, needs) in TASKS {
        println!("{task}{}", if needs.is_empty() { ": nothing" } else { "" });
        for need in needs {
            if need.is_there() {
                println!("  there    {}", need.name);
            } else {
                println!("  MISSING  {:<29} {}", need.name, need.how());
                missing += 1;
            }
        }
    }
    if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! The `tqkv` command: what it prints, writes, reads and refuses.

mod arrays;
mod cli;
mod door;
mod figures;
mod files;
#[cfg(unix)]
mod kill;
#[cfg(unix)]
mod kills;
#[cfg(unix)]
mod llama;
mod model_commands;
mod plans;
mod shell;
mod storage;
mod support;
mod usage;

/// What the tests run.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tqkv");

//! The `tqkv` command: its output, its files, its input and its errors.

mod arrays;
#[cfg(unix)]
mod chat;
mod cli;
#[cfg(unix)]
mod commands;
#[cfg(unix)]
mod commands_inputs;
#[cfg(unix)]
mod doctor;
mod door;
mod families;
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
mod printed;
mod recall;
#[cfg(unix)]
mod serve_clients;
#[cfg(unix)]
mod serve_files;
mod serving;
mod session;
mod session_serve;
mod shell;
mod storage;
mod support;
mod tune;
mod usage;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tqkv");

//! The command `tqkv`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use tqkv_cli::{Tqkv, program};

fn main() -> ExitCode {
    program::main::<Tqkv>()
}

//! The command `tqkv`, so that an installed package has it.

use pyo3::prelude::{Python, pyfunction};
use std::ffi::OsString;
use tqkv_cli::{Tqkv, program};

/// Runs the command on `words`, which begin with the program's name. Returns the exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| program::run::<Tqkv>(words))
}

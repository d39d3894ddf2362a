//! Inputs by name: a file, or `-` for standard input.
//!
//! What is read whole is bounded, so that a device without an end is an error. Arrays are mapped, or read as
//! far as their header says: [`crate::array`].

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::CliError;

/// Longest text that is read whole: more than any model's context by far.
const MOST: u64 = 256 << 20;

/// Whether `path` stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The bytes of `path` one after the other.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, CliError> {
    if is_stdin(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|e| CliError::io(path, &e))?;
    Ok(Box::new(file))
}

/// All bytes of a text.
pub fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    open(path)?.take(MOST + 1).read_to_end(&mut bytes).map_err(|e| CliError::io(path, &e))?;
    if bytes.len() as u64 > MOST {
        let path = path.display();
        return Err(CliError::bad_input(format_args!("{path}: too long, accepted are {MOST} bytes")));
    }
    Ok(bytes)
}

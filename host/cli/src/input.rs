//! Named inputs: a file, or `-` for standard input.
//!
//! Inputs that are read whole have a size limit, so that an endless device is an error. Arrays are mapped, or
//! read up to the length in their header: [`crate::array`].

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::CliError;

/// Size limit in bytes of a text; far more than the context of any model.
const MOST: u64 = 256 << 20;

/// Returns true if `path` stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens `path` for reading.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, CliError> {
    if is_stdin(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|e| CliError::io(path, &e))?;
    Ok(Box::new(file))
}

/// Reads all bytes of a text.
pub fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    open(path)?.take(MOST + 1).read_to_end(&mut bytes).map_err(|e| CliError::io(path, &e))?;
    if bytes.len() as u64 > MOST {
        let path = path.display();
        return Err(CliError::bad_input(format_args!("{path}: too long: expected at most {MOST} bytes")));
    }
    Ok(bytes)
}

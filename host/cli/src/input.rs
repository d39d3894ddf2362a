//! Named inputs: a file, or `-` for standard input.
//!
//! Inputs that are read in full have a size limit, so that an endless device is an error. Arrays are mapped,
//! or read up to the length in their header: [`crate::array`].

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::error::CliError;
use crate::output::note;

/// Time after which the wait for a pipe's writer is said.
const WAIT: Duration = Duration::from_secs(1);

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
    // Opening a pipe waits for its writer.
    let (opened, wait) = mpsc::channel::<()>();
    let name = path.display().to_string();
    let say = move || {
        if wait.recv_timeout(WAIT) == Err(RecvTimeoutError::Timeout) {
            note(format_args!("{name}: a pipe; waits for its writer"));
        }
    };
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        // Without a thread it waits all the same.
        let _ = thread::Builder::new().spawn(say);
    }
    let file = File::open(path).map_err(|e| CliError::io(path, &e))?;
    drop(opened);
    Ok(Box::new(file))
}

/// Opens a file that is read at several places, or that others put there: no pipe, which would wait for its
/// writer, and no device.
///
/// # Errors
/// `InvalidInput` for what is no regular file, otherwise those of opening.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Checked by name first, because opening a pipe waits.
    if fs::metadata(path)?.is_file() {
        let file = File::open(path)?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"))
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

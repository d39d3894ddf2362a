//! The file that a command writes: never its own input, and another file's place only when told to.

use std::io;
use std::path::Path;

use same_file::is_same_file;
use tqkv::file::{AtomicFile, Existing};

use crate::error::CliError;

/// Whether an existing output may be replaced.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// Replace the output if it exists; it keeps its permissions. The input itself is never replaced.
    #[arg(long)]
    force: bool,
}

impl TargetArgs {
    /// Starts the file that will be `output`, made of `input`.
    pub(crate) fn create(self, output: &Path, input: &Path) -> Result<AtomicFile, CliError> {
        self.create_beside(output, &[input])
    }

    /// The same, made of several files.
    pub(crate) fn create_beside(self, output: &Path, inputs: &[&Path]) -> Result<AtomicFile, CliError> {
        // By identity, not by name: links and hard links too. What cannot be compared is not there.
        if inputs.iter().any(|input| is_same_file(input, output).unwrap_or(false)) {
            return Err(CliError::bad_input(format_args!(
                "{}: is the input itself, accepted is another file",
                output.display()
            )));
        }
        self.create_new(output)
    }

    /// Starts the file that will be `output`, made of nothing that is a file.
    pub(crate) fn create_new(self, output: &Path) -> Result<AtomicFile, CliError> {
        let existing = if self.force { Existing::Replace } else { Existing::Refuse };
        AtomicFile::create(output, existing).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                CliError::bad_input(format_args!("{}: exists, --force replaces it", output.display()))
            }
            _ => CliError::io(output, &error),
        })
    }
}

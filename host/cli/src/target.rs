//! The file that a command writes: never its own input, and another file's place only when told to.

use std::fs;
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
    /// Starts the file that will be `output`, made of `input`; a new one is its owner's alone.
    pub(crate) fn create(self, output: &Path, input: &Path) -> Result<AtomicFile, CliError> {
        self.create_beside(output, &[input])
    }

    /// The same, made of several files.
    pub(crate) fn create_beside(self, output: &Path, inputs: &[&Path]) -> Result<AtomicFile, CliError> {
        refuse_input(output, inputs)?;
        refusing(output, AtomicFile::create(output, self.existing()))
    }

    /// Starts the file that will be `output`, made of a model, for others to read.
    pub(crate) fn create_of_model(self, output: &Path, model: &Path) -> Result<AtomicFile, CliError> {
        refuse_input(output, &[model])?;
        self.create_new(output)
    }

    /// Starts the file that will be `output`, made of nothing that is a file, for others to read.
    pub(crate) fn create_new(self, output: &Path) -> Result<AtomicFile, CliError> {
        refusing(output, AtomicFile::create_shared(output, self.existing()))
    }

    fn existing(self) -> Existing {
        if self.force { Existing::Replace } else { Existing::Refuse }
    }
}

fn refusing(output: &Path, file: io::Result<AtomicFile>) -> Result<AtomicFile, CliError> {
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            CliError::bad_input(format_args!("{}: exists, --force replaces it", output.display()))
        }
        _ => CliError::io(output, &error),
    })
}

fn refuse_input(output: &Path, inputs: &[&Path]) -> Result<(), CliError> {
    if inputs.iter().any(|input| is_same(input, output)) {
        let output = output.display();
        return Err(CliError::bad_input(format_args!(
            "{output}: is the input itself, accepted is another file"
        )));
    }
    Ok(())
}

/// Whether two names are of one file: links and hard links too. Only files are opened: to open a pipe waits for its other end.
fn is_same(input: &Path, output: &Path) -> bool {
    let is_file = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file());
    // What cannot be compared is not there.
    is_file(input) && is_file(output) && is_same_file(input, output).unwrap_or(false)
}

//! The file that a command writes: never its own input, and another file's place only when told to. `-` is
//! standard output.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use same_file::is_same_file;
use tqkv::file::{AtomicFile, Existing};

use crate::error::CliError;
use crate::input::is_stdin;
use crate::output::Output;

/// Whether `path` stands for standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    is_stdin(path)
}

/// The output of a command. It appears whole, when committed, or not at all.
#[derive(Debug)]
pub enum Target {
    /// A file.
    File(AtomicFile),
    /// A file that is copied to standard output, which cannot be sought in.
    Stdout(File),
}

impl Target {
    /// Puts it where it belongs; the result is its length in bytes.
    pub fn commit(self) -> io::Result<u64> {
        match self {
            Self::File(mut file) => {
                let len = file.seek(SeekFrom::End(0))?;
                file.commit()?;
                Ok(len)
            }
            Self::Stdout(mut file) => {
                file.rewind()?;
                let mut stdout = io::stdout().lock();
                let len = io::copy(&mut file, &mut stdout)?;
                stdout.flush()?;
                Ok(len)
            }
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stdout(file) => file.flush(),
        }
    }
}

impl Seek for Target {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(to),
            Self::Stdout(file) => file.seek(to),
        }
    }
}

/// Leaves standard output to what is written to one of `paths`: the command's report goes to standard error
/// then.
pub fn yield_stdout(paths: &[&Path], out: &mut Output) {
    if paths.iter().any(|path| is_stdout(path)) {
        out.report_on_stderr();
    }
}

/// Whether an existing output may be replaced.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TargetArgs {
    /// Replace the output if it exists; it keeps its permissions. The input itself is never replaced.
    #[arg(long)]
    force: bool,
}

impl TargetArgs {
    /// Starts the file that will be `output`, made of `input`; a new one is its owner's alone.
    pub(crate) fn create(self, output: &Path, input: &Path) -> Result<Target, CliError> {
        self.create_beside(output, &[input])
    }

    /// The same, made of several files.
    pub(crate) fn create_beside(self, output: &Path, inputs: &[&Path]) -> Result<Target, CliError> {
        refuse_input(output, inputs)?;
        self.start(output, AtomicFile::create)
    }

    /// Starts the file that will be `output`, made of a model, for others to read.
    pub(crate) fn create_of_model(self, output: &Path, model: &Path) -> Result<Target, CliError> {
        refuse_input(output, &[model])?;
        self.create_new(output)
    }

    /// Starts the file that will be `output`, made of nothing that is a file, for others to read.
    pub fn create_new(self, output: &Path) -> Result<Target, CliError> {
        self.start(output, AtomicFile::create_shared)
    }

    fn start(
        self,
        output: &Path,
        create: impl FnOnce(&Path, Existing) -> io::Result<AtomicFile>,
    ) -> Result<Target, CliError> {
        if is_stdout(output) {
            return tempfile::tempfile().map(Target::Stdout).map_err(|error| CliError::io(output, &error));
        }
        let existing = if self.force { Existing::Replace } else { Existing::Refuse };
        create(output, existing).map(Target::File).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                CliError::bad_input(format_args!("{}: exists, --force replaces it", output.display()))
            }
            _ => CliError::io(output, &error),
        })
    }
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

/// True if two names are of one file, links included. Only files are opened, because opening a pipe waits for
/// its other end.
fn is_same(input: &Path, output: &Path) -> bool {
    let is_file = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file());
    // A file that cannot be compared is not there.
    is_file(input) && is_file(output) && is_same_file(input, output).unwrap_or(false)
}

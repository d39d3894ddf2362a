//! The output file of a command. It is never the input, and replaces an existing file only with `--force`.
//! `-` is standard output.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use same_file::is_same_file;
use tqkv::file::{AtomicFile, Existing};

use crate::error::CliError;
use crate::input::is_stdin;
use crate::output::Output;

/// Returns true if `path` stands for standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    is_stdin(path)
}

/// The output of a command. It appears complete at the commit, or not at all.
#[derive(Debug)]
pub enum Target {
    /// A file.
    File(AtomicFile),
    /// A temporary file that is copied to standard output at the commit, because standard output cannot seek.
    Stdout(File),
}

impl Target {
    /// Puts the output in its place. Returns its length in bytes.
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

/// Sends the report of the command to standard error if one of `paths` is standard output.
pub fn yield_stdout(paths: &[&Path], out: &mut Output) {
    if paths.iter().any(|path| is_stdout(path)) {
        out.report_on_stderr();
    }
}

/// Permission to replace an existing output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TargetArgs {
    /// Replace an existing output; it keeps its permissions. The input itself is never replaced.
    #[arg(long)]
    force: bool,
}

impl TargetArgs {
    /// Starts the file `output`, made from `input`. Only its owner can read a new file.
    pub(crate) fn create(self, output: &Path, input: &Path) -> Result<Target, CliError> {
        self.create_beside(output, &[input])
    }

    /// Starts the file `output`, made from several files.
    pub(crate) fn create_beside(self, output: &Path, inputs: &[&Path]) -> Result<Target, CliError> {
        refuse_input(output, inputs)?;
        self.start(output, |path, existing| AtomicFile::create(path, existing))
    }

    /// Starts the file `output`, made from a model. Others may read it.
    pub(crate) fn create_of_model(self, output: &Path, model: &Path) -> Result<Target, CliError> {
        refuse_input(output, &[model])?;
        self.create_new(output)
    }

    /// Starts the file `output`, made without an input file. Others may read it.
    pub fn create_new(self, output: &Path) -> Result<Target, CliError> {
        self.start(output, |path, existing| AtomicFile::create_shared(path, existing))
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
            "{output}: is the input itself: expected another file"
        )));
    }
    Ok(())
}

/// Returns true if both names lead to one file, links included. It opens regular files only, because opening
/// a pipe waits for its other end.
fn is_same(input: &Path, output: &Path) -> bool {
    let is_file = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file());
    // A file that cannot be compared does not exist.
    is_file(input) && is_file(output) && is_same_file(input, output).unwrap_or(false)
}

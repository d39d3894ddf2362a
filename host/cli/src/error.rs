//! Errors of the command line: one line on stderr, 2 for bad input, 1 for a failure, 3 for want of a GPU to
//! check.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::num::{IntErrorKind, ParseIntError};
use std::path::Path;
use std::process::ExitCode;

use crate::array::ArrayError;
use crate::door;
use crate::preset::Kv;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use tqkv::file::FileError;
use tqkv_core::{CodecId, ShapeError};
use tqkv_model::ModelError;
use tqkv_storage::StorageError;

/// A message and the exit code that goes with it.
#[derive(Debug)]
pub struct CliError {
    message: String,
    code: u8,
    is_silent: bool,
    is_closed_pipe: bool,
}

const BAD_INPUT: u8 = 2;
/// As `cargo xtask gpu-check` says it too.
#[cfg(feature = "cuda")]
const LACKING: u8 = 3;
/// What a shell says of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// The exit code that a shell gives a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 141;
const FAILURE: u8 = 1;

impl CliError {
    /// The caller gave something that cannot be used.
    pub fn bad_input(message: impl fmt::Display) -> Self {
        Self::new(message, BAD_INPUT)
    }

    /// Something failed that other input would not mend.
    pub fn failure(message: impl fmt::Display) -> Self {
        Self::new(message, FAILURE)
    }

    /// The machine has not what the command is about.
    #[cfg(feature = "cuda")]
    pub(crate) fn lacking(message: impl fmt::Display) -> Self {
        Self::new(message, LACKING)
    }

    /// Ctrl-C ended the command early, which has said all that there is to say.
    pub(crate) fn interrupted() -> Self {
        Self { is_silent: true, ..Self::new("", INTERRUPTED) }
    }

    fn new(message: impl fmt::Display, code: u8) -> Self {
        // Some libraries' messages span lines.
        let message = message.to_string();
        let lines: Vec<_> = message.split_whitespace().collect();
        Self { message: lines.join(" "), code, is_silent: false, is_closed_pipe: false }
    }

    /// Something wrong with the file at `path`.
    pub fn file(path: &Path, error: &FileError) -> Self {
        match error {
            FileError::Io(error) => Self::io(path, error),
            error => Self::bad_input(format_args!("{}: {error}", path.display())),
        }
    }

    /// Something wrong with the array that `spec` names.
    pub fn array(spec: &str, error: &ArrayError) -> Self {
        match error {
            ArrayError::Io(error) => Self::io(Path::new(spec), error),
            error => Self::bad_input(format_args!("{spec}: {error}")),
        }
    }

    /// Something wrong with the storage file at `path`.
    pub fn storage(path: &Path, error: &StorageError) -> Self {
        match error {
            StorageError::Io(error) => Self::io(path, error),
            error => Self::bad_input(format_args!("{}: {error}", path.display())),
        }
    }

    /// Something wrong with the model at `path` (`None`: with the shipped one), or with what it was to do.
    pub fn model(path: Option<&Path>, error: &ModelError) -> Self {
        match (error, path) {
            (ModelError::Io { path, source }, _) => Self::io(path, source),
            (ModelError::NoModel { .. }, _) => Self::bad_input(error),
            // Of a file the error has the name.
            (error, Some(folder)) if folder.join("config.json").exists() => {
                Self::bad_input(format_args!("{}: {error}", folder.display()))
            }
            (error, _) => Self::bad_input(error),
        }
    }

    /// A codec that has no blocks of the head dim.
    pub fn shape(codec: CodecId, dim: usize, error: ShapeError) -> Self {
        Self::bad_input(format_args!("codec {} at head dim {dim}: {error}", codec.name()))
    }

    /// Formats that no cache stores, asked of `what`.
    pub fn not_stored(what: &str, kv: Kv) -> Self {
        Self::bad_input(format_args!(
            "{what}: no cache stores {kv}; formats of the reference are for stats, eval and generate"
        ))
    }

    /// The system failed on `path`: bad input where another path would do, a failure otherwise.
    pub fn io(path: &Path, error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let code = match error.kind() {
            Kind::NotFound
            | Kind::PermissionDenied
            | Kind::IsADirectory
            | Kind::NotADirectory
            | Kind::InvalidInput
            | Kind::InvalidData
            | Kind::AlreadyExists
            | Kind::InvalidFilename
            | Kind::ReadOnlyFilesystem => BAD_INPUT,
            _ => FAILURE,
        };
        Self::new(format_args!("{}: {error}", path.display()), code)
    }

    /// A command line that clap refuses: its message without the usage text, on one line.
    pub(crate) fn usage(error: &clap::Error) -> Self {
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let end = ["\nUsage:", "\nFor more information"].iter().filter_map(|marker| text.find(marker)).min();
        let message = &text[..end.unwrap_or(text.len())];
        let number = refused_number(error);
        let owner = match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) => door::owner_of(option),
            _ => None,
        };
        if let Some(owner) = owner {
            // Without what clap takes for a similar name.
            let message = message.split("\n\n").next().unwrap_or(message);
            return Self::bad_input(format_args!("{message}; {owner} has it"));
        }
        Self::bad_input(format_args!("{} (see --help)", number.as_deref().unwrap_or(message)))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// True if the reader of stdout went away.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.is_closed_pipe
    }

    /// Whether nobody is to read the message.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Writing to stdout.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        // A reader that went away (`tqkv .. | head`) is not worth a message.
        let closed = error.kind() == io::ErrorKind::BrokenPipe;
        let code = if closed { CLOSED_PIPE } else { FAILURE };
        Self { is_silent: closed, is_closed_pipe: closed, ..Self::new(format_args!("stdout: {error}"), code) }
    }
}

/// The fault of a number in plain words, where clap has a programmer's.
fn refused_number(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (option, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let cause = error.source()?;
    let why = match cause.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "too large".to_owned(),
        Some(_) if value.starts_with('-') => "negative, accepted are whole numbers that are not".to_owned(),
        Some(_) => "not a whole number, which it must be".to_owned(),
        None => accepted_range(&cause.to_string())?,
    };
    Some(format!("{option}: '{value}' is {why}"))
}

/// `-5 is not in 1..18446744073709551615` for people.
fn accepted_range(clap: &str) -> Option<String> {
    let (_, range) = clap.split_once(" is not in ")?;
    let (from, to) = range.split_once("..")?;
    let to = to.trim_start_matches('=');
    let to = if to == u64::MAX.to_string() { "and more".to_owned() } else { format!("to {to}") };
    Some(format!("out of range, accepted are {from} {to}"))
}

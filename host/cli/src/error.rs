//! Errors of the command line: one line on stderr, and an exit code.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::num::{IntErrorKind, ParseIntError};
use std::path::Path;

use crate::array::ArrayError;
use crate::lab_options;
use crate::plain::plain;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use tqkv::file::FileError;
use tqkv::unstable::cache::OPTIONS;
use tqkv_core::{CodecId, ShapeError};
use tqkv_model::ModelError;
use tqkv_session::SessionError;
use tqkv_storage::StorageError;

/// A message with its exit code.
#[derive(Debug)]
pub struct CliError {
    message: String,
    code: u8,
    is_silent: bool,
    is_closed_pipe: bool,
}

const BAD_INPUT: u8 = 2;
/// The same exit code as in `cargo xtask gpu-check`.
const LACKING: u8 = 3;
/// The exit code that a shell reports for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// The exit code that a shell reports for a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 141;
const FAILURE: u8 = 1;

/// Exit codes and what they mean, for help texts and manual pages.
pub(crate) const EXIT_CODES: [(u8, &str); 6] = [
    (0, "all went well"),
    (FAILURE, "a failure that no other input would avoid, or doctor found a fault"),
    (BAD_INPUT, "the command line or a file is not usable"),
    (LACKING, "there is no GPU to check"),
    (INTERRUPTED, "Ctrl-C ended it early; what was printed is complete"),
    (CLOSED_PIPE, "the reader of its output went away"),
];

impl CliError {
    /// The caller's input is not usable.
    pub fn bad_input(message: impl fmt::Display) -> Self {
        Self::new(message, BAD_INPUT)
    }

    /// A failure that no other input would avoid.
    pub fn failure(message: impl fmt::Display) -> Self {
        Self::new(message, FAILURE)
    }

    /// The machine lacks what the command needs.
    #[cfg(feature = "cuda")]
    pub(crate) fn lacking(message: impl fmt::Display) -> Self {
        Self::new(message, LACKING)
    }

    /// Ctrl-C ended the command early. Its output is complete, so there is no message.
    pub(crate) fn interrupted() -> Self {
        Self { is_silent: true, ..Self::new("", INTERRUPTED) }
    }

    /// A failure whose reasons stand in the output of the command.
    pub(crate) fn said() -> Self {
        Self { is_silent: true, ..Self::new("", FAILURE) }
    }

    fn new(message: impl fmt::Display, code: u8) -> Self {
        // Some libraries write messages of several lines.
        let message = message.to_string();
        let lines: Vec<_> = message.split_whitespace().collect();
        let message = plain(&lines.join(" ")).into_owned();
        Self { message, code, is_silent: false, is_closed_pipe: false }
    }

    /// An error in the file at `path`.
    pub fn file(path: &Path, error: &FileError) -> Self {
        match error {
            FileError::Io(error) => Self::io(path, error),
            error => Self::bad_input(format_args!("{}: {error}", path.display())),
        }
    }

    /// An error in the array that `spec` names.
    pub fn array(spec: &str, error: &ArrayError) -> Self {
        match error {
            ArrayError::Io(error) => Self::io(Path::new(spec), error),
            error => Self::bad_input(format_args!("{spec}: {error}")),
        }
    }

    /// An error in the storage file at `path`.
    pub fn storage(path: &Path, error: &StorageError) -> Self {
        match error {
            StorageError::Io(error) => Self::io(path, error),
            error => Self::bad_input(format_args!("{}: {error}", path.display())),
        }
    }

    /// An error in the state or the pack at `path`.
    pub fn session(path: &Path, error: &SessionError) -> Self {
        match error {
            SessionError::Io(error) => Self::io(path, error),
            error => Self::bad_input(format_args!("{}: {error}", path.display())),
        }
    }

    /// An error in the model at `path` (`None`: the shipped model), or in its use.
    pub fn model(path: Option<&Path>, error: &ModelError) -> Self {
        match (error, path) {
            (ModelError::Io { path, source }, _) => Self::io(path, source),
            (ModelError::NoModel { .. }, _) => Self::bad_input(error),
            // For a single file the error itself names the path.
            (error, Some(folder)) if folder.join("config.json").exists() => {
                Self::bad_input(format_args!("{}: {error}", folder.display()))
            }
            (error, _) => Self::bad_input(error),
        }
    }

    /// A codec without blocks of this head dim.
    pub fn shape(codec: CodecId, dim: usize, error: ShapeError) -> Self {
        Self::bad_input(format_args!("codec {} at head dim {dim}: {error}", codec.name()))
    }

    /// `what` needs a cache, and no cache stores the pair.
    pub fn not_stored(what: &str, name: &dyn fmt::Display) -> Self {
        Self::bad_input(format_args!(
            "{what}: no cache stores {name}; formats of the reference are for stats, eval and generate"
        ))
    }

    /// An I/O error on `path`: bad input if another path could help, otherwise a failure.
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

    /// An error of clap: its message on one line, without the usage text.
    pub(crate) fn usage(error: &clap::Error) -> Self {
        if let Some(missing) = missing_command(error) {
            return Self::bad_input(missing);
        }
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let end = ["\nUsage:", "\nFor more information"].iter().filter_map(|marker| text.find(marker)).min();
        let message = &text[..end.unwrap_or(text.len())];
        let plain = refused_number(error).or_else(|| refused_value(error));
        let owner = match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) => owner_of(option),
            _ => None,
        };
        // Without clap's guess of a similar name.
        let first = message.split("\n\n").next().unwrap_or(message).trim_end();
        match (owner, plain, similar(error)) {
            (Some(owner), _, _) => Self::bad_input(format_args!("{first}; {owner}")),
            (None, Some(plain), _) => Self::bad_input(plain),
            (None, None, Some(name)) => Self::bad_input(format_args!("{first}: did you mean {name}?")),
            (None, None, None) => Self::bad_input(format_args!("{first} (see --help)")),
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }

    /// Returns true if the reader of stdout is gone.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.is_closed_pipe
    }

    /// Returns true if the error has no message for the user.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error on stdout.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        // A reader that closes the pipe (`tqkv .. | head`) needs no message.
        let closed = error.kind() == io::ErrorKind::BrokenPipe;
        let code = if closed { CLOSED_PIPE } else { FAILURE };
        Self { is_silent: closed, is_closed_pipe: closed, ..Self::new(format_args!("stdout: {error}"), code) }
    }
}

/// Where an option is that a command does not have. A property of the cache is a part of `--kv`.
fn owner_of(option: &str) -> Option<String> {
    let of_cache = || {
        let row = OPTIONS.iter().find(|row| option.strip_prefix("--") == Some(row.name))?;
        Some(format!("caches have it in --kv: --kv \"s4 {}={}\"", row.name, row.example))
    };
    lab_options::owner_of(option).map(|owner| format!("{owner} has it")).or_else(of_cache)
}

/// The error of a command of commands that stands alone.
fn missing_command(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::ValidSubcommand) else { return None };
    let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let names: Vec<_> = names.iter().filter(|name| *name != "help").map(String::as_str).collect();
    let (last, others) = names.split_last()?;
    let expected =
        if others.is_empty() { (*last).to_owned() } else { format!("{} or {last}", others.join(", ")) };
    let is_missing = error.kind() == ErrorKind::MissingSubcommand;
    is_missing.then(|| format!("{command} needs a command: expected {expected} (see {command} --help)"))
}

/// The name of an option or a command that is like one that does not exist.
fn similar(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand))? {
        ContextValue::String(name) => Some(name),
        ContextValue::Strings(names) => names.first().map(String::as_str),
        _ => None,
    }
}

/// The error of a number in plain words, in place of clap's technical text.
fn refused_number(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (option, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let cause = error.source()?;
    let why = match cause.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "too large".to_owned(),
        Some(_) if value.starts_with('-') => "negative: expected a whole number without a sign".to_owned(),
        Some(_) => "not a whole number".to_owned(),
        None => expected_range(&cause.to_string())?,
    };
    Some(format!("{option}: '{value}' is {why}"))
}

/// The error of a value whose own text says that it is not valid: clap would say it a second time.
fn refused_value(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let why = error.source()?.to_string();
    why.contains(" is not valid: ").then(|| format!("{option}: {why}"))
}

/// Rewrites `-5 is not in 1..18446744073709551615` for people.
fn expected_range(clap: &str) -> Option<String> {
    let (_, range) = clap.split_once(" is not in ")?;
    let (from, to) = range.split_once("..")?;
    let to = to.trim_start_matches('=');
    let to = if to == u64::MAX.to_string() { "or more".to_owned() } else { format!("to {to}") };
    Some(format!("out of range: expected {from} {to}"))
}

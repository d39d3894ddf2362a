//! Errors that Python sees: one line each.

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::fmt::Display;
use std::path::Path;
use tqkv::error::CacheError;
use tqkv::file::FileError;

create_exception!(
    tqkv,
    TqkvError,
    PyValueError,
    "What tqkv refuses: one line that says what was wrong and what is accepted."
);

/// An exception on its way to Python.
pub(crate) struct Failure(PyErr);

/// An error with this text.
pub(crate) fn refused(text: impl Into<String>) -> Failure {
    Failure(TqkvError::new_err(text.into()))
}

/// An error of one argument.
pub(crate) fn refused_in(what: &str, error: impl Display) -> Failure {
    refused(format!("{what}: {error}"))
}

/// An error of a file, with its path. Errors of the system become an `OSError`.
pub(crate) fn in_file(path: &Path, error: FileError) -> Failure {
    match error {
        FileError::Io(error) => {
            let text = format!("{}: {error}", path.display());
            Failure(std::io::Error::new(error.kind(), text).into())
        }
        error => refused_in(&path.display().to_string(), error),
    }
}

impl From<CacheError> for Failure {
    fn from(error: CacheError) -> Self {
        refused(error.to_string())
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

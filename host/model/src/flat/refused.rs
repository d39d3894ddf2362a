//! The error for a model that cannot be a flat file, with the reason.

use crate::ModelError;
use tqkv_core::fixed::flat::FileError;

pub(super) fn refused(what: impl Into<String>) -> ModelError {
    ModelError::Export(what.into())
}

impl From<FileError> for ModelError {
    fn from(error: FileError) -> Self {
        refused(error.to_string())
    }
}

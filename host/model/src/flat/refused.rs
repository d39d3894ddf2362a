//! The error for a model that cannot be a flat file, with the reason.

use crate::ModelError;
use tqkv_lm::LmError;

pub(super) fn refused(what: impl Into<String>) -> ModelError {
    ModelError::Export(what.into())
}

impl From<LmError> for ModelError {
    fn from(error: LmError) -> Self {
        refused(error.to_string())
    }
}

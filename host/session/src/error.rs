//! Everything that can be wrong with a state or a pack.

use std::io;

/// Why a state is not packed, or a pack not unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The bytes are no state of llama.cpp, or a damaged one.
    #[error("state, byte {at}: {why}")]
    State {
        /// Offset of the field that is wrong.
        at: u64,
        /// The fault.
        why: String,
    },
    /// The bytes are no pack, or a damaged one.
    #[error("pack: {0}")]
    Pack(String),
    /// The codec or the head dim does not fit the rows.
    #[error("{0}")]
    Codec(String),
    /// The basis is missing, is another one, or does not fit the state.
    #[error("basis: {0}")]
    Basis(String),
    /// The system failed to read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl SessionError {
    pub(crate) fn state(at: u64, why: impl Into<String>) -> Self {
        Self::State { at, why: why.into() }
    }

    pub(crate) fn pack(why: impl Into<String>) -> Self {
        Self::Pack(why.into())
    }
}

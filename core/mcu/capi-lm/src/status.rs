//! Statuses of calls.

use core::ffi::CStr;
use tqkv_lm::{FileError, LmError};

/// The status of a call. With any status but TQKV_LM_OK nothing was written, unless the status says
/// otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvLmStatus {
    /// The call succeeded.
    TqkvLmOk = 0,
    /// A pointer is null.
    TqkvLmNullPointer = 1,
    /// A pointer is not aligned to its type, or the memory not to TQKV_LM_ALIGN.
    TqkvLmMisaligned = 2,
    /// The bytes are not a flat model file: they do not begin with TQLM, or end within the header.
    TqkvLmNotAModel = 3,
    /// The flat model file has a version that this library does not read.
    TqkvLmVersion = 4,
    /// A field of the flat model file is out of range.
    TqkvLmField = 5,
    /// The length differs from the one in the header, or a list is empty or larger than memory.
    TqkvLmLength = 6,
    /// The checksum of the flat model file is wrong, so the file is damaged.
    TqkvLmChecksum = 7,
    /// An exponent of the flat model file is out of range.
    TqkvLmExponent = 8,
    /// The cache has another head dim than the model.
    TqkvLmHeadDim = 9,
    /// The context has no tokens, or more than memory can hold.
    TqkvLmContext = 10,
    /// The memory is smaller than `tqkv_lm_memory` says.
    TqkvLmMemory = 11,
    /// The memory and the model overlap.
    TqkvLmOverlap = 12,
    /// The handle was not opened, or something else has written its memory.
    TqkvLmNotOpen = 13,
    /// A token is not in the vocabulary.
    TqkvLmToken = 14,
    /// A key or value is above 65504, so the weights are damaged. Clear the handle.
    TqkvLmEncode = 15,
    /// A cached scale is not finite, so something else has written its memory. Clear the handle.
    TqkvLmDecode = 16,
}

use TqkvLmStatus::*;

/// Returns the status of a call.
pub(crate) fn of(run: impl FnOnce() -> Result<(), TqkvLmStatus>) -> TqkvLmStatus {
    run().err().unwrap_or(TqkvLmOk)
}

impl From<LmError> for TqkvLmStatus {
    fn from(error: LmError) -> Self {
        match error {
            LmError::File(FileError::NotAModel) => TqkvLmNotAModel,
            LmError::File(FileError::Version { .. }) => TqkvLmVersion,
            LmError::File(FileError::Field { .. }) => TqkvLmField,
            LmError::File(FileError::Length { .. }) => TqkvLmLength,
            LmError::File(FileError::Checksum) => TqkvLmChecksum,
            LmError::File(FileError::Exponent) => TqkvLmExponent,
            LmError::HeadDim { .. } => TqkvLmHeadDim,
            LmError::Token { .. } => TqkvLmToken,
            LmError::Encode => TqkvLmEncode,
            LmError::Decode => TqkvLmDecode,
            // This library plans caches and work memory, so no other error occurs.
            _ => TqkvLmMemory,
        }
    }
}

/// The text of a status.
pub(crate) const fn text(status: u32) -> &'static CStr {
    const LINES: [&CStr; 17] = [
        c"no error",
        c"a pointer is null",
        c"a pointer is not aligned to its type, or the memory not to 8 bytes",
        c"not a flat model file: it must begin with TQLM and a whole header",
        c"the version of the flat model file is not supported: expected 1",
        c"a field of the flat model file is out of range",
        c"the length differs from the one in the header, or a list is empty or too long",
        c"the checksum of the flat model file is wrong: the file is damaged",
        c"an exponent of the flat model file is out of range: expected -64 to 64",
        c"the cache has another head dim than the model",
        c"the context has no tokens, or more than memory can hold",
        c"the memory is smaller than tqkv_lm_memory says",
        c"the memory and the model overlap",
        c"the handle was not opened, or its memory was overwritten",
        c"a token is not in the vocabulary",
        c"a key or value is above 65504: the weights are damaged",
        c"a cached scale is not finite: its memory was overwritten",
    ];
    if (status as usize) < LINES.len() { LINES[status as usize] } else { c"unknown status" }
}

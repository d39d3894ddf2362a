//! The error codes of the driver.

/// The `CUresult` of a failed driver function.
pub(crate) type Failure = i32;
pub(crate) const INVALID_VALUE: Failure = 1;
pub(crate) const OUT_OF_MEMORY: Failure = 2;
pub(crate) const INVALID_DEVICE: Failure = 101;
pub(crate) const INVALID_CONTEXT: Failure = 201;
pub(crate) const UNSUPPORTED_PTX: Failure = 222;
pub(crate) const INVALID_HANDLE: Failure = 400;
pub(crate) const NOT_FOUND: Failure = 500;
pub(crate) const ILLEGAL_ADDRESS: Failure = 700;
pub(crate) const CAPTURE_UNSUPPORTED: Failure = 900;

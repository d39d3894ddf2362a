//! Why a check ends early.

use crate::GpuError;
use std::io;
use std::path::PathBuf;

/// Why a check ended early.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The device failed, or it does not accept a shape.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The file of kernels could not be read.
    #[error("{}: {}", .0.display(), .1)]
    Ptx(PathBuf, #[source] io::Error),
    /// The rows could not be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

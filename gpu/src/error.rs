//! Errors of the crate. Each message says what is wrong and what is accepted.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use tqkv_core::KvError;

/// Why a device or a cache on it cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The machine has no CUDA driver.
    #[error("no CUDA driver is installed (libcuda was not found)")]
    NoDriver,
    /// The driver knows no device of that number.
    #[error("there is no CUDA device {ordinal}: the driver reports {found}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: usize,
        /// Number of devices that the driver reports.
        found: usize,
    },
    /// The device is older than the kernels.
    #[error("{name} has compute capability {major}.{minor}; the kernels need 8.0 or newer")]
    UnsupportedArchitecture {
        /// The device.
        name: String,
        /// Major number of the compute capability.
        major: i32,
        /// Minor number of the compute capability.
        minor: i32,
    },
    /// The driver lacks functions that this crate calls.
    #[error("the driver (CUDA {cuda}) is not valid: expected {needs} or newer")]
    OldDriver {
        /// The CUDA version of the driver.
        cuda: String,
        /// The oldest driver that has the functions.
        needs: &'static str,
    },
    /// The driver cannot compile the kernels.
    #[error("the driver (CUDA {cuda}) refuses the kernels: {reason}; they need driver {needs} or newer{}", said(.log))]
    KernelsRefused {
        /// The driver's name for the error.
        reason: String,
        /// The oldest driver that can read the kernels.
        needs: &'static str,
        /// The CUDA version of the driver.
        cuda: String,
        /// The log of the driver's compiler; may be empty.
        log: String,
    },
    /// Memory or a stream belongs to another device or context, so a kernel cannot use it.
    #[error("{what} belongs to another context than this cache's device, number {ordinal}")]
    OtherContext {
        /// The name of the argument.
        what: &'static str,
        /// The device that was expected.
        ordinal: usize,
    },
    /// The device has too little free memory.
    #[error("the device has no room for {bytes} more bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A shape or codec for which there are no kernels.
    #[error("{0}")]
    BadSpec(String),
    /// Slices or a layer that do not fit the shape, or a query that is not finite.
    #[error(transparent)]
    Shape(#[from] KvError),
    /// No such layer.
    #[error("layer {layer} is out of range: the cache has {num_layers} layers")]
    LayerOutOfRange {
        /// The layer asked for.
        layer: usize,
        /// Number of layers of the cache.
        num_layers: usize,
    },
    /// No such sequence.
    #[error("sequence {sequence} is out of range: the cache has {num_sequences} sequences")]
    SequenceOutOfRange {
        /// The sequence asked for.
        sequence: usize,
        /// Number of sequences of the cache.
        num_sequences: usize,
    },
    /// A slice of the wrong length.
    #[error("{what} has {got} values, expected {expected}")]
    WrongLength {
        /// The name of the argument.
        what: &'static str,
        /// Values given.
        got: usize,
        /// Values expected.
        expected: usize,
    },
    /// A sequence would grow past its limit.
    #[error("sequence {sequence} is full: it holds at most {max_tokens} tokens")]
    SequenceFull {
        /// The sequence.
        sequence: usize,
        /// Its limit.
        max_tokens: usize,
    },
    /// All pages of the pool are in use.
    #[error("all {pages} pages are taken")]
    PoolFull {
        /// Pages of the pool.
        pages: usize,
    },
    /// A sequence that must be empty holds tokens.
    #[error("sequence {sequence} has {tokens} tokens; it must be empty to become the copy of another")]
    NotEmpty {
        /// The sequence.
        sequence: usize,
        /// Its tokens.
        tokens: usize,
    },
    /// A step over layers of different lengths, or a call that needs a step without one.
    #[error("{0}")]
    BadStep(String),
    /// A vector that cannot be encoded.
    #[error("{what} of layer {layer}, token {token}, KV head {kv_head} {reason}")]
    BadVector {
        /// Its layer.
        layer: usize,
        /// "key" or "value".
        what: &'static str,
        /// Index of the token in the call.
        token: usize,
        /// KV head.
        kv_head: usize,
        /// The reason why it cannot be encoded.
        reason: &'static str,
    },
    /// Any other error of the driver, by the driver's name for it.
    #[error("the CUDA driver reports {0}")]
    Driver(String),
}

/// The compiler's log as the end of a message.
fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; it says: {log}") }
}

impl GpuError {
    /// The error of a call that began with token `first` of another.
    pub(crate) fn behind(mut self, first: usize) -> Self {
        if let Self::BadVector { token, .. } = &mut self {
            *token += first;
        }
        self
    }

    /// The error for a failed allocation of `bytes` bytes.
    pub(crate) fn from_allocation(error: DriverError, bytes: usize) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory { bytes },
            _ => error.into(),
        }
    }
}

impl From<DriverError> for GpuError {
    fn from(error: DriverError) -> Self {
        Self::Driver(format!("{:?}", error.0))
    }
}

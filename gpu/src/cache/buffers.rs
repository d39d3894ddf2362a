//! [`Buffers`]: what a call fills on the device. Steps have buffers of their own, because a captured graph
//! keeps their addresses.

use super::tokens::WordBuffer;
use crate::GpuError;
use crate::device::Device;
use crate::paged::attention::Work;
use cudarc::driver::CudaSlice;

/// The calls that share buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Calls that stand alone. Their buffers grow.
    Alone,
    /// Steps. After `reserve_scratch` their buffers neither move nor grow.
    Steps,
}

/// Buffers of one [`Use`].
#[derive(Debug)]
pub(super) struct Buffers {
    /// Control words of the newest call's tokens.
    pub(super) tokens: WordBuffer,
    /// Outcomes of encoding: a word that is not 0 if a vector was refused, then `[layers of the call, keys
    /// and values, vectors]`.
    pub(super) outcomes: CudaSlice<u32>,
    pub(super) work: Work,
}

impl Buffers {
    pub(super) fn new(device: &Device) -> Result<Self, GpuError> {
        Ok(Self { tokens: WordBuffer::new(device, 1)?, outcomes: device.zeros(1)?, work: Work::new(device)? })
    }
}

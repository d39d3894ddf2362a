//! [`Rows`]: head vectors, on the host or on the device.

use crate::attention::Queries;
use cudarc::driver::CudaSlice;
use tqkv_gpu_kernels::encode::element;

/// Head vectors as they come from a model, `[.., heads, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// f32 in host memory; copied through page-locked memory.
    Host(&'a [f32]),
    /// f32 on the device.
    F32(&'a CudaSlice<f32>),
    /// Bits of f16 on the device.
    F16(&'a CudaSlice<u16>),
    /// Bits of bf16 on the device.
    Bf16(&'a CudaSlice<u16>),
}

impl Rows<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(rows) => rows.len(),
            Self::F32(rows) => rows.len(),
            Self::F16(rows) | Self::Bf16(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [f32]> for Rows<'a> {
    fn from(rows: &'a [f32]) -> Self {
        Self::Host(rows)
    }
}

/// The kernels' number for the type of `rows`.
pub(super) fn element_of(rows: Rows<'_>) -> u32 {
    match rows {
        Rows::Host(_) | Rows::F32(_) => element::F32,
        Rows::F16(_) => element::F16,
        Rows::Bf16(_) => element::BF16,
    }
}

/// Rows on the device; those of the host were copied to `copied`.
pub(super) fn on_device<'a>(rows: Rows<'a>, copied: &'a CudaSlice<f32>) -> Queries<'a> {
    match rows {
        Rows::Host(_) => Queries::Floats(copied),
        Rows::F32(rows) => Queries::Floats(rows),
        Rows::F16(rows) => Queries::Halves(rows, element::F16),
        Rows::Bf16(rows) => Queries::Halves(rows, element::BF16),
    }
}

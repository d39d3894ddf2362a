//! [`Rows`] and [`Out`] of a [`Side`]: input vectors and results, on the host or on the device.

use crate::device::Device;
use crate::launch::Memory;
use crate::{GpuError, GpuSpec};
use cudarc::driver::CudaSlice;
use cudarc::driver::sys::CUdeviceptr;
use std::ops::Range;
use tqkv_core::KvError;
use tqkv_gpu_kernels::encode::element;

/// One of the two tensors of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// The storage type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floats.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// The kernels' number for the type.
    fn number(self) -> u32 {
        match self {
            Self::F32 => element::F32,
            Self::F16 => element::F16,
            Self::Bf16 => element::BF16,
        }
    }
}

/// Device memory that another library owns: its address, length and element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw {
    address: CUdeviceptr,
    len: usize,
    element: Element,
}

impl Raw {
    /// Describes `len` values at `address`, in order and without gaps.
    ///
    /// # Safety
    /// All of this must hold until the device has finished the work that uses the values:
    ///
    /// * The values are in memory of the device's context, and `address` is a multiple of their size.
    /// * Nothing frees them.
    /// * Nothing else writes them, except in the order of the device's stream. If they are results, nothing
    ///   else reads them either.
    pub unsafe fn new(address: CUdeviceptr, len: usize, element: Element) -> Self {
        Self { address, len, element }
    }

    /// The address of `expected` values of f32.
    pub(crate) fn floats(self, what: &'static str, expected: usize) -> Result<CUdeviceptr, GpuError> {
        if self.element != Element::F32 {
            return Err(GpuError::BadSpec(format!("{what} in half precision is not valid: expected f32")));
        }
        check_len(what, self.len, expected)?;
        Ok(self.address)
    }

    /// The address of value `first`.
    pub(crate) fn place(self, first: usize) -> CUdeviceptr {
        self.address + first as CUdeviceptr * CUdeviceptr::from(element::bytes(self.element.number()))
    }
}

/// Head vectors of a model, `[.., heads, head_dim]`.
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
    /// Device memory that another library owns.
    Raw(Raw),
}

impl<'a> Rows<'a> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(rows) => rows.len(),
            Self::F32(rows) => rows.len(),
            Self::F16(rows) | Self::Bf16(rows) => rows.len(),
            Self::Raw(raw) => raw.len,
        }
    }

    /// Returns true if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that these are `expected` values that the device can read.
    pub(crate) fn check(&self, device: &Device, what: &'static str, expected: usize) -> Result<(), GpuError> {
        check_len(what, self.len(), expected)?;
        match self {
            Self::Host(_) | Self::Raw(_) => Ok(()),
            Self::F32(rows) => device.check_context(what, rows.context()),
            Self::F16(rows) | Self::Bf16(rows) => device.check_context(what, rows.context()),
        }
    }

    /// Checks that these are the queries of `tokens` tokens. Queries of the host must be finite; those of the
    /// device are not read here.
    pub(crate) fn check_queries(
        &self,
        device: &Device,
        spec: &GpuSpec,
        layer: usize,
        tokens: usize,
    ) -> Result<(), GpuError> {
        self.check(device, "queries", tokens * spec.num_heads * spec.head_dim)?;
        let Self::Host(queries) = self else { return Ok(()) };
        let is_bad = |query: &[f32]| !query.iter().all(|value| value.is_finite());
        match queries.chunks_exact(spec.head_dim).position(is_bad) {
            Some(i) => {
                let (token, head) = (i / spec.num_heads, i % spec.num_heads);
                Err(KvError::Query { layer, token, head }.into())
            }
            None => Ok(()),
        }
    }

    /// The kernels' number for the type of the values.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Host(_) | Self::F32(_) => element::F32,
            Self::F16(_) => element::F16,
            Self::Bf16(_) => element::BF16,
            Self::Raw(raw) => raw.element.number(),
        }
    }

    /// A range of the values on the device. Values of the host were copied to `copied` before.
    pub(crate) fn memory(&self, copied: &'a CudaSlice<f32>, values: Range<usize>) -> Memory<'a> {
        match self {
            Self::Host(_) => copied.slice(values).into(),
            Self::F32(rows) => rows.slice(values).into(),
            Self::F16(rows) | Self::Bf16(rows) => rows.slice(values).into(),
            Self::Raw(raw) => Memory::Raw(raw.place(values.start)),
        }
    }
}

impl<'a> From<&'a [f32]> for Rows<'a> {
    fn from(rows: &'a [f32]) -> Self {
        Self::Host(rows)
    }
}

/// Device memory for results, `[.., heads, head_dim]`. Memory after the results stays as it is.
#[derive(Debug)]
pub enum Out<'a> {
    /// f32 values.
    F32(&'a mut CudaSlice<f32>),
    /// Bits of f16.
    F16(&'a mut CudaSlice<u16>),
    /// Bits of bf16.
    Bf16(&'a mut CudaSlice<u16>),
    /// Device memory that another library owns.
    Raw(Raw),
}

impl<'a> Out<'a> {
    /// Memory for `expected` values, and the kernels' number for their type.
    pub(crate) fn memory(self, device: &Device, expected: usize) -> Result<(Memory<'a>, u32), GpuError> {
        let what = "out";
        let got = match &self {
            Self::F32(out) => out.len(),
            Self::F16(out) | Self::Bf16(out) => out.len(),
            Self::Raw(raw) => raw.len,
        };
        if got < expected {
            return Err(GpuError::WrongLength { what, got, expected });
        }
        match self {
            Self::F32(out) => {
                device.check_context(what, out.context())?;
                Ok((out.into(), element::F32))
            }
            Self::F16(out) => {
                device.check_context(what, out.context())?;
                Ok((out.into(), element::F16))
            }
            Self::Bf16(out) => {
                device.check_context(what, out.context())?;
                Ok((out.into(), element::BF16))
            }
            Self::Raw(raw) => Ok((Memory::Raw(raw.address), raw.element.number())),
        }
    }
}

impl<'a> From<&'a mut CudaSlice<f32>> for Out<'a> {
    fn from(out: &'a mut CudaSlice<f32>) -> Self {
        Self::F32(out)
    }
}

impl From<Raw> for Out<'_> {
    fn from(raw: Raw) -> Self {
        Self::Raw(raw)
    }
}

pub(crate) fn check_len(what: &'static str, got: usize, expected: usize) -> Result<(), GpuError> {
    if got == expected { Ok(()) } else { Err(GpuError::WrongLength { what, got, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_another_library_lie_as_far_apart_as_they_are_large() {
        let place = |element, first| {
            // SAFETY: the memory is never read or written.
            unsafe { Raw::new(1 << 40, 10, element) }.place(first)
        };
        assert_eq!(place(Element::F32, 3), (1 << 40) + 12);
        assert_eq!([Element::F16, Element::Bf16].map(|element| place(element, 3)), [(1 << 40) + 6; 2]);
        assert_eq!(place(Element::F32, 1 << 33), (1 << 40) + (1 << 35));
    }
}

//! [`Coder`]: a codec on the device.

use super::Layout;
use super::attention::Pool;
use crate::GpuError;
use crate::device::Device;
use crate::launch::Memory;
use cudarc::driver::{CudaFunction, CudaSlice};
use tqkv_core::{AnyCodec, CodecId};
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::tables::tables;

/// A codec on the device.
#[derive(Debug)]
pub(crate) struct Coder {
    pub(crate) codec: AnyCodec,
    pub(crate) signs: CudaSlice<u32>,
    levels: CudaSlice<u32>,
    pub(super) decode: CudaFunction,
    pub(crate) scores: CudaFunction,
}

/// The name of a kernel for a codec and a head dim.
pub(super) fn name(kernel: &str, id: CodecId, layout: &Layout) -> String {
    format!("{kernel}_{}_d{}", id.name(), layout.head_dim)
}

impl Coder {
    pub(super) fn new(device: &Device, layout: &Layout, id: CodecId) -> Result<Self, GpuError> {
        let codec = AnyCodec::new(id, layout.head_dim, layout.options)
            .map_err(|error| GpuError::BadSpec(error.to_string()))?;
        let signs: Vec<u32> = (0..layout.head_dim / 32).map(|group| codec.signs().group(group)).collect();
        let names = ["decode_pages", "scores"].map(|kernel| name(kernel, id, layout));
        let [decode, scores] = device.kernels(names.each_ref().map(String::as_str))?;
        let (signs, levels) = (device.upload(&signs)?, device.upload(&tables(&codec))?);
        Ok(Self { codec, signs, levels, decode, scores })
    }

    pub(crate) fn bits(&self) -> u32 {
        self.codec.id().bits()
    }

    pub(super) fn pool<'a>(&'a self, memory: Memory<'a>, stride: u32) -> Pool<'a> {
        Pool {
            memory,
            stride,
            format: page::format(self.codec.id().layout()),
            levels: &self.levels,
            signs: &self.signs,
        }
    }
}

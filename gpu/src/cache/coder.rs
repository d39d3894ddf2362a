//! [`Coder`]: a codec on the device.

use crate::attention::Pool;
use crate::device::Device;
use crate::{GpuError, GpuSpec};
use cudarc::driver::{CudaFunction, CudaSlice};
use tqkv_core::{AnyCodec, CodecId};
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::tables::tables;

/// A codec on the device.
#[derive(Debug)]
pub(super) struct Coder {
    pub(super) codec: AnyCodec,
    pub(super) signs: CudaSlice<u32>,
    levels: CudaSlice<u32>,
    pub(super) decode: CudaFunction,
    pub(super) scores: CudaFunction,
}

/// The name of a kernel for a codec and a head dim.
pub(super) fn name(kernel: &str, id: CodecId, spec: &GpuSpec) -> String {
    format!("{kernel}_{}_d{}", id.name(), spec.head_dim)
}

impl Coder {
    pub(super) fn new(device: &Device, spec: &GpuSpec, id: CodecId) -> Result<Self, GpuError> {
        let codec = spec.codec(id)?;
        let signs: Vec<u32> = (0..spec.head_dim / 32).map(|group| codec.signs().group(group)).collect();
        let names = ["decode_pages", "scores"].map(|kernel| name(kernel, id, spec));
        let [decode, scores] = device.kernels(names.each_ref().map(String::as_str))?;
        let (signs, levels) = (device.upload(&signs)?, device.upload(&tables(&codec))?);
        Ok(Self { codec, signs, levels, decode, scores })
    }

    pub(super) fn bits(&self) -> u32 {
        self.codec.id().bits()
    }

    pub(super) fn pool<'a>(&'a self, memory: &'a CudaSlice<u8>) -> Pool<'a> {
        Pool {
            memory,
            format: page::format(self.codec.id().layout()),
            levels: &self.levels,
            signs: &self.signs,
        }
    }
}

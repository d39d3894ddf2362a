//! [`WeightDecoder`]: decodes groups of weights.

use crate::current::{Current, Restore};
use crate::formats::{accepted_codecs, accepted_head_dims};
use crate::launch::{Memory, launch, warps};
use crate::{CODECS, Device, GpuError, HEAD_DIMS, Out};
use cudarc::driver::{CudaFunction, CudaSlice};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu_kernels::args::WeightDecode;

/// Decodes blocks of SPEC.md that lie back to back on the device. Each block is one group of weights.
///
/// Cost: one warp per group, bound by the 2 or 4 bytes per weight that it writes.
#[derive(Debug)]
pub struct WeightDecoder {
    device: Device,
    codec: AnyCodec,
    kernel: CudaFunction,
    signs: CudaSlice<u32>,
    restore: Restore,
}

impl Drop for WeightDecoder {
    fn drop(&mut self) {
        self.restore.settle(self.device.stream());
    }
}

/// The codec, if it has a kernel.
fn codec(id: CodecId, group: usize, options: Options) -> Result<AnyCodec, GpuError> {
    let name = id.name();
    if !CODECS.contains(&id) {
        let accepted = accepted_codecs();
        return Err(GpuError::BadSpec(format!("codec {name} has no kernels; expected {accepted}")));
    }
    if !HEAD_DIMS.contains(&group) {
        let accepted = accepted_head_dims();
        return Err(GpuError::BadSpec(format!(
            "groups of {group} weights have no kernels; expected {accepted}"
        )));
    }
    AnyCodec::new(id, group, options).map_err(|error| GpuError::BadSpec(error.to_string()))
}

impl WeightDecoder {
    /// Makes a decoder for groups of `group` weights, one of [`crate::HEAD_DIMS`], in one of [`CODECS`].
    ///
    /// # Errors
    /// [`GpuError::BadSpec`], or the driver's errors.
    pub fn new(device: &Device, id: CodecId, group: usize, options: Options) -> Result<Self, GpuError> {
        let _current = Current::keep();
        let codec = codec(id, group, options)?;
        let [kernel] = device.kernels([&format!("weight_decode_{}_d{group}", id.name())])?;
        let signs: Vec<u32> = (0..group / 32).map(|word| codec.signs().group(word)).collect();
        let signs = device.upload(&signs)?;
        Ok(Self { device: device.clone(), codec, kernel, signs, restore: Restore::default() })
    }

    /// Decodes all of `blocks` into `out`. Values in f32 equal the CPU's to the bit; f16 and bf16 are rounded
    /// from them. Does not wait.
    ///
    /// # Errors
    /// [`GpuError::WrongLength`] if `blocks` does not hold whole blocks, or if `out` is too short.
    pub fn decode<'a>(&self, blocks: &CudaSlice<u8>, out: impl Into<Out<'a>>) -> Result<(), GpuError> {
        let _current = Current::keep();
        let block_bytes = self.codec.block_bytes();
        let count = blocks.len() / block_bytes;
        if blocks.len() != count * block_bytes || u32::try_from(count).is_err() {
            let expected = count * block_bytes;
            return Err(GpuError::WrongLength { what: "blocks", got: blocks.len(), expected });
        }
        self.device.check_context("blocks", blocks.context())?;
        let (out, kind) = out.into().memory(&self.device, count * self.codec.dim())?;
        let arguments = WeightDecode {
            blocks: Memory::from(blocks),
            count: count as u32,
            signs: (&self.signs).into(),
            out,
            kind,
        };
        // SAFETY: lengths were checked above.
        unsafe { launch(&self.device, &self.kernel, arguments.list(), warps(count)?) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_kernel_is_named_with_what_has() {
        for id in CODECS {
            for group in HEAD_DIMS {
                assert_eq!(codec(id, group, Options::DEFAULT).unwrap().dim(), group);
            }
        }
        let message = |id, group| codec(id, group, Options::DEFAULT).unwrap_err().to_string();
        assert_eq!(
            message(CodecId::F16, 128),
            "codec f16 has no kernels; expected s2, s3, s4, i8, t2, t3, t4"
        );
        assert!(message(CodecId::T2, 32).starts_with("groups of 32 weights have no kernels"));
    }
}

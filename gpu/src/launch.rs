//! Launches: passes buffers and numbers to a kernel in its order. [`tqkv_gpu_kernels::args`] gives their
//! names.

use crate::GpuError;
use crate::device::Device;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaView, CudaViewMut, LaunchArgs, LaunchConfig, PushKernelArg,
};
use tqkv_gpu_kernels::args::Argument;

/// Warps per block. They work independently, so the number only fills blocks.
pub(crate) use tqkv_gpu_kernels::plan::WARPS;

/// Most warps of one launch. Kernels number warps in 32 bits, including the warps of the last block.
const MAX_WARPS: usize = (u32::MAX - WARPS) as usize;

/// The grid for `count` warps that work independently.
///
/// # Errors
/// [`GpuError::BadSpec`] if 32 bits do not number the warps.
pub fn warps(count: usize) -> Result<LaunchConfig, GpuError> {
    if count > MAX_WARPS {
        return Err(GpuError::BadSpec(format!("{count} vectors in one launch; at most {MAX_WARPS}")));
    }
    let blocks = (count as u32).div_ceil(WARPS);
    Ok(LaunchConfig { grid_dim: (blocks.max(1), 1, 1), block_dim: (32, WARPS, 1), shared_mem_bytes: 0 })
}

macro_rules! memory {
    ($($element:ty: $read:ident $write:ident,)*) => {
        /// A buffer argument, which the kernel reads or writes.
        pub enum Memory<'a> {
            $(
                /// Elements that the kernel reads.
                $read(CudaView<'a, $element>),
                /// Elements that the kernel writes, and may read.
                $write(CudaViewMut<'a, $element>),
            )*
            /// The address of memory that another library owns.
            Raw(CUdeviceptr),
        }

        impl Memory<'_> {
            /// The memory again.
            pub(crate) fn again(&mut self) -> Memory<'_> {
                self.behind(0, 0)
            }

            /// The memory after `values` values, which others may use in the same launch.
            pub(crate) fn shared(&self, values: usize, bytes: usize) -> Memory<'_> {
                match self {
                    $(
                        Self::$read(view) => Memory::$read(view.slice(values..)),
                        Self::$write(view) => Memory::$read(view.slice(values..)),
                    )*
                    Self::Raw(address) => Memory::Raw(*address + (values * bytes) as CUdeviceptr),
                }
            }

            /// The memory after `values` values of `bytes` bytes, which are those of a buffer with a type.
            pub(crate) fn behind(&mut self, values: usize, bytes: usize) -> Memory<'_> {
                match self {
                    $(
                        Self::$read(view) => Memory::$read(view.slice(values..)),
                        Self::$write(view) => Memory::$write(view.slice_mut(values..)),
                    )*
                    Self::Raw(address) => Memory::Raw(*address + (values * bytes) as CUdeviceptr),
                }
            }

            fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
                match self {
                    $(
                        Self::$read(view) => launch.arg(&*view),
                        Self::$write(view) => launch.arg(view),
                    )*
                    Self::Raw(address) => launch.arg(&*address),
                };
            }
        }

        $(
            impl<'a> From<CudaView<'a, $element>> for Memory<'a> {
                fn from(view: CudaView<'a, $element>) -> Self {
                    Self::$read(view)
                }
            }

            impl<'a> From<&'a CudaSlice<$element>> for Memory<'a> {
                fn from(slice: &'a CudaSlice<$element>) -> Self {
                    Self::$read(slice.as_view())
                }
            }

            impl<'a> From<CudaViewMut<'a, $element>> for Memory<'a> {
                fn from(view: CudaViewMut<'a, $element>) -> Self {
                    Self::$write(view)
                }
            }

            impl<'a> From<&'a mut CudaSlice<$element>> for Memory<'a> {
                fn from(slice: &'a mut CudaSlice<$element>) -> Self {
                    Self::$write(slice.as_view_mut())
                }
            }
        )*
    };
}

memory! {
    u8: Bytes BytesOut,
    u16: Halves HalvesOut,
    u32: Words WordsOut,
    f32: Floats FloatsOut,
}

/// Vectors on the device, and the kernels' number for their element type.
pub type Vectors<'a> = (Memory<'a>, u32);

/// Vectors of tokens on the device.
pub struct TokenVectors<'a> {
    /// The vectors. Those of a token have no gaps.
    pub memory: Memory<'a>,
    /// Elements from a token to the next.
    pub stride: u32,
    /// The kernels' number for the element type.
    pub kind: u32,
}

/// Launches a kernel.
///
/// # Errors
/// The errors of the driver.
///
/// # Safety
/// `arguments` is the list that `kernel` declares; for two kernels as one it is both lists in turn. Buffers
/// are as long as the fields of the list say. Every page number in use is inside the pools.
pub unsafe fn launch<'a>(
    device: &Device,
    kernel: &CudaFunction,
    mut arguments: impl AsMut<[Argument<Memory<'a>>]>,
    config: LaunchConfig,
) -> Result<(), GpuError> {
    let mut launch = device.stream().launch_builder(kernel);
    for argument in arguments.as_mut() {
        match argument {
            Argument::Memory(memory) => memory.push(&mut launch),
            Argument::Word(word) => {
                launch.arg(&*word);
            }
            Argument::Float(float) => {
                launch.arg(&*float);
            }
        }
    }
    // SAFETY: the caller upholds the contract of this function.
    unsafe { launch.launch(config) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_rounded_up_to_blocks() {
        let grid = |count| warps(count).unwrap().grid_dim;
        assert_eq!([grid(0), grid(1), grid(9)], [(1, 1, 1), (1, 1, 1), (3, 1, 1)]);
        assert_eq!(warps(9).unwrap().block_dim, (32, WARPS, 1));
    }

    #[test]
    fn a_launch_that_32_bits_do_not_number_is_refused() {
        let (blocks, ..) = warps(MAX_WARPS).unwrap().grid_dim;
        assert!(
            blocks.checked_mul(WARPS).is_some() && blocks <= i32::MAX as u32,
            "the last block has numbers"
        );
        // `1 << 32` vectors are a million tokens of 4,096 heads.
        for count in [MAX_WARPS + 1, 1 << 32, usize::MAX] {
            assert!(warps(count).unwrap_err().to_string().ends_with("in one launch; at most 4294967291"));
        }
    }
}

//! The compressed KV cache on NVIDIA GPUs.
//!
//! | what | file |
//! | --- | --- |
//! | [`Device`]: a GPU and its stream; which PTX it gets; page-locked memory | `device`, `loader`, `staging` |
//! | [`GpuCache`]: paged keys and values of many sequences; which pages are whose | `cache`, `pages` |
//! | [`GpuSpec`]: its shape | `spec` |
//! | [`WeightDecoder`], [`Qjl`]: encoded weights; 1-bit residuals | `weights`, `qjl` |
//! | decode attention in three launches, its parts, its kernel for the formats of a cache | `attention`, `parts`, `formats` |
//! | arguments to a launch, by their names; two kernels in one launch | `launch`, `pair` |
//! | [`mod@bench`]: timed launches | `bench` |
//!
//! The kernels are the Rust functions of `tqkv-gpu-kernels`, embedded as PTX, which the driver
//! compiles. The driver is opened at run time: on a machine without one this crate builds and loads, and
//! [`Device::new`] says [`GpuError::NoDriver`].
//!
//! When not to use it: without a GPU (`tqkv::cache::KvCache` has more tiers and runs anywhere), or where
//! the engine owns pages; it can launch the PTX of `gpu/ptx` itself. An engine that has a stream of its own
//! brings it ([`Device::on`]).

mod attention;
pub mod bench;
mod cache;
mod device;
mod error;
mod formats;
mod launch;
mod loader;
mod pages;
mod pair;
mod parts;
mod qjl;
mod spec;
mod staging;
mod weights;

pub use cache::{Element, GpuCache, GpuStats, Out, Raw, Rows, Side};
pub use cudarc;
pub use device::Device;
pub use error::GpuError;
pub use formats::{page_format, with_formats};
pub use pair::{PAIR, side_by_side};
pub use qjl::Qjl;
pub use spec::{CODECS, GpuSpec, HEAD_DIMS};
pub use tqkv_gpu_kernels::attend::kernel as kernel_for;
pub use weights::WeightDecoder;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

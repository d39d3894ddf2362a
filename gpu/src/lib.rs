//! The compressed KV cache on NVIDIA GPUs.
//!
//! | what | file |
//! | --- | --- |
//! | [`Device`]: a GPU and its stream; the PTX; page-locked memory | `device`, `loader`, `staging`
//! |
//! | the caller's current context stays | `current` |
//! | [`GpuCache`]: paged keys and values of many sequences; the page table | `cache`, `pages` |
//! | [`GpuSpec`]: its shape | `spec` |
//! | [`paged`]: the same over pages that an engine owns | `paged` |
//! | vectors of the host, of the device, of another library | `rows` |
//! | [`WeightDecoder`], [`Qjl`]: encoded weights; 1-bit residuals | `weights`, `qjl` |
//! | decode attention: three launches, parts, one kernel per format | `paged/attention`, `parts`, `formats` |
//! | named arguments of a launch; two kernels in one launch | `launch`, `pair` |
//! | the work of `tqkv gpu-check`, with the feature `check` | `check` |
//!
//! The kernels are the Rust functions of `tqkv-gpu-kernels`. This crate embeds them as PTX, and the driver
//! compiles them. The driver is opened at run time. On a machine without a driver this crate builds and
//! loads, and [`Device::new`] returns [`GpuError::NoDriver`].
//!
//! Do not use it without a GPU: `tqkv::cache::KvCache` has more tiers and runs anywhere. An engine that owns
//! its pages calls [`paged`]. An engine that has a stream of its own passes it to
//! [`Device::on`].

mod cache;
#[cfg(feature = "check")]
pub mod check;
mod current;
mod device;
mod error;
mod formats;
mod launch;
mod loader;
pub mod paged;
mod pages;
mod pair;
mod parts;
mod qjl;
mod rows;
mod spec;
mod staging;
#[doc(hidden)]
pub mod unstable;
mod weights;

pub use cache::{GpuCache, GpuStats};
pub use cudarc;
pub use device::Device;
pub use error::GpuError;
pub use formats::{page_format, with_formats, without_limits};
pub use pair::{PAIR, side_by_side};
pub use qjl::Qjl;
pub use rows::{Element, Out, Raw, Rows, Side};
pub use spec::{CODECS, GpuSpec, HEAD_DIMS};
pub use tqkv_gpu_kernels::attend::{is_short_of_registers, kernel as kernel_for};
pub use weights::WeightDecoder;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

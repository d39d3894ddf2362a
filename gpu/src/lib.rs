//! The compressed KV cache on NVIDIA GPUs.
//!
//! ```
//! use tqkv_core::CodecId;
//! use tqkv_gpu::{Device, GpuCache, GpuSpec, Rows};
//!
//! // 1 layer, 8 query heads, 2 KV heads, head dim 128; two sequences of at most 4,096 tokens.
//! let spec = GpuSpec::new(1, 8, 2, 128).codecs(CodecId::S4, CodecId::S3).sequences(2, 4096);
//! let Ok(device) = Device::new(0) else { return Ok(()) }; // no driver, or no GPU
//! let mut cache = GpuCache::new(&device, spec)?;
//! let (k, v) = (vec![0.5; 3 * 2 * 128], vec![0.25; 3 * 2 * 128]);
//! cache.append(0, &[0, 0, 1], Rows::Host(&k), Rows::Host(&v))?; // two tokens of sequence 0, one of 1
//! let (q, mut out) = (vec![0.1; 2 * 8 * 128], vec![0.0; 2 * 8 * 128]);
//! cache.attend(0, &q, &mut out)?; // from the newest token of each
//! # Ok::<(), tqkv_gpu::GpuError>(())
//! ```
//!
//! An engine calls [`GpuCache::begin_step`], [`append_step`](GpuCache::append_step),
//! [`attend_step`](GpuCache::attend_step) and [`end_step`](GpuCache::end_step) instead, which take tensors of
//! the device and wait once. An engine that owns its pages calls [`paged`], and one that has a stream of its
//! own passes it to [`Device::on`].
//!
//! | what | file |
//! | --- | --- |
//! | [`Device`]: a GPU and its stream; the PTX; page-locked memory | `device`, `loader`, `staging` |
//! | the caller's current context stays | `current` |
//! | [`GpuCache`]: paged keys and values of many sequences; the page table | `cache`, `pages` |
//! | [`GpuSpec`]: its shape; the tokens that stay exact | `spec`, `exact` |
//! | [`paged`]: the same over pages that an engine owns | `paged` |
//! | vectors of the host, of the device, of another library | `rows` |
//! | [`WeightDecoder`], [`Qjl`]: encoded weights; 1-bit residuals | `weights`, `qjl` |
//! | decode attention: three launches, parts, one kernel per format | `paged/{attention,merge}`, `parts`, `formats` |
//! | named arguments of a launch; several kernels in one launch | `launch`, `pair` |
//! | the work of `tqkv gpu-check`, with the feature `check` | `check` |
//!
//! The kernels are the Rust functions of `tqkv-gpu-kernels`. This crate embeds them as PTX, and the driver
//! compiles them. The driver is opened at run time. On a machine without a driver this crate builds and
//! loads, and [`Device::new`] returns [`GpuError::NoDriver`].
//!
//! Do not use it without a GPU: `tqkv::cache::KvCache` has more tiers and runs anywhere.
// docs.rs says which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod cache;
#[cfg(feature = "check")]
pub mod check;
mod current;
mod device;
mod error;
mod exact;
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
pub use formats::{page_format, with_formats};
pub use pair::{PAIR, side_by_side};
pub use qjl::Qjl;
pub use rows::{Element, Out, Raw, Rows, Side};
pub use spec::{CODECS, GpuSpec, HEAD_DIMS};
pub use tqkv_gpu_kernels::attend::kernel as kernel_for;
pub use weights::WeightDecoder;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

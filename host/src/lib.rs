//! tqkv: a compressed KV cache for transformers.
//!
//! [`cache::KvCache`] is the cache; [`attention::AttentionCache`] the seam between it and whatever runs the model;
//! [`mod@file`] keeps encoded vectors on disk. The codecs themselves live in `tqkv-core`, which needs neither an
//! allocator nor an operating system; a small model runner in `tqkv-model`, the command in `tqkv-cli`.
#![deny(unsafe_code)]

pub mod attention;
pub mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dense;
pub mod error;
pub mod file;
pub mod matmul;
mod mmap;
pub mod threads;

/// The crate whose stores are accepted, in the version that they must have.
#[cfg(feature = "object-store")]
pub use object_store;
pub use tqkv_core::{Chunk, KvError, KvShape};
pub use tqkv_simd::{Level, LevelError, LevelName};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

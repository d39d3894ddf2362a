//! tqkv: a compressed KV cache for transformers, a small model runner, files, and the command line.
//!
//! [`cache::KvCache`] is the cache; [`attention::AttentionCache`] the seam between it and the [`model`] runner;
//! [`generate`] and [`eval`] work over any implementation of that. The codecs themselves live in `tqkv-core`, which
//! needs neither an allocator nor an operating system; come here for whole models, whole caches and files.

pub mod array;
pub mod atomic;
pub mod attention;
pub mod bytes;
pub mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod error;
pub mod eval;
pub mod file;
pub mod generate;
mod matmul;
mod mmap;
pub mod model;
pub mod plan;
pub mod preset;
pub mod stats;

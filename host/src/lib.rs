//! tqkv: a compressed KV cache for transformers.
//!
//! [`cache::KvCache`] is the cache; [`attention::AttentionCache`] the seam between it and whatever runs the
//! model; [`mod@file`] keeps encoded vectors on disk. Names of codecs ([`CodecId`]) and their options are
//! here as well, so that a program needs this crate alone. The codecs themselves live in `tqkv-core`, which
//! needs neither an allocator nor an operating system; a small model runner in `tqkv-model`, the command in
//! `tqkv-cli`.
#![deny(unsafe_code)]

pub mod attention;
pub mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dense;
pub mod error;
pub mod file;
pub mod matmul;
mod memory;
mod mmap;
pub mod threads;

/// The types of keys and values beside f32.
pub use half::{bf16, f16};
/// The crate whose stores are accepted, in the version that they must have.
#[cfg(feature = "object-store")]
pub use object_store;
pub use tqkv_core::{
    AnyCodec, Chunk, CodecId, DecodeError, Effort, EncodeError, HEAD_DIMS, KvError, KvShape, Options,
    ScaleMode, ShapeError, UnknownCodec,
};
pub use tqkv_simd::{Level, LevelError, LevelName};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

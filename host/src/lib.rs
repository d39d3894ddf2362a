//! tqkv: a compressed KV cache for transformers.
//!
//! ```
//! use tqkv::cache::{CacheSpec, KvCache};
//!
//! // 1 layer, 8 query heads, 2 KV heads, head dim 128. Keys have 4 bits, values 2.
//! let mut cache = KvCache::new(CacheSpec::new(1, 8, 2, 128).with("t4,t2")?)?;
//! let (k, v) = (vec![0.5f32; 300 * 2 * 128], vec![0.25f32; 300 * 2 * 128]);
//! cache.append(0, &k, &v)?; // 300 tokens, after RoPE
//! let (q, mut out) = (vec![0.1f32; 8 * 128], vec![0.0f32; 8 * 128]);
//! cache.attend(0, &q, &mut out)?; // one token's queries
//! assert!(cache.stats().bytes_per_token() < 600.0); // f16 takes 1,024
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read on in this order:
//!
//! * [`cache::KvCache`] is the cache of a sequence, and [`cache::CacheSpec`] says how it keeps tokens.
//! * [`slots::SlotCache`] is the cache for engines that place tokens themselves.
//! * [`paged::Paged`] works on the blocks of an engine that owns its memory.
//! * [`attention::AttentionCache`] is the interface between a cache and a model runner.
//! * [`mod@file`] keeps encoded vectors on disk.
//! * [`threads`] sets the number of threads that work on a call.
//! * [`CodecId`] and the codec options are exported here as well, so a program needs only this crate.
//!
//! The codecs are in `tqkv-core`, which needs neither an allocator nor an operating system. A small model
//! runner is `tqkv-model`. The command is `tqkv-cli`.
#![deny(unsafe_code)]
// docs.rs says which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attend;
pub mod attention;
pub mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dense;
mod eigen;
pub mod error;
pub mod file;
mod matmul;
mod memory;
mod mmap;
pub mod paged;
mod reserve;
pub mod rope;
pub mod slots;
pub mod threads;
#[doc(hidden)]
pub mod unstable;

/// Element types of keys and values besides f32.
pub use half::{bf16, f16};
/// The crate whose stores this crate accepts, re-exported in the matching version.
#[cfg(feature = "object-store")]
pub use object_store;
pub use tqkv_core::{
    AnyCodec, Chunk, CodecId, DecodeError, Effort, EncodeError, KvError, KvShape, Options, ScaleMode,
    ShapeError, UnknownCodec,
};
pub use tqkv_simd::{Level, LevelError, LevelName};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The tqkv codec: compressed key/value vectors, from a microcontroller to a GPU.
//!
//! One head vector becomes one **block**, and a query meets the codes of a block without decoding them:
//!
//! ```text
//! x --signs, Hadamard--> y --boundaries * |x|--> codes --pack--> block: [f16 scale | codes]
//! q --signs, Hadamard--> rotated query --levels[codes]--> score
//! ```
//!
//! The random rotation gives every coordinate the same known distribution (TurboQuant, arXiv 2504.19874,
//! Lemma 1), so the codebook is a compile-time constant and nothing is calibrated.
//!
//! ```
//! use tqkv_core::{AnyCodec, CodecId, Options};
//!
//! let codec = AnyCodec::new(CodecId::S4, 128, Options::DEFAULT)?;
//! let key: [f32; 128] = std::array::from_fn(|i| (i as f32).sin());
//! let mut block = [0; 66]; // codec.block_bytes(); f16 takes 256
//! codec.encode(&key, &mut block)?;
//!
//! let (mut rotated, mut score) = ([0.0; 128], [0.0]);
//! codec.rotate_query(&key, &mut rotated); // once, for any number of keys
//! codec.scores(&rotated, &block, &mut score);
//! let exact: f32 = key.iter().map(|x| x * x).sum();
//! assert!((score[0] / exact - 1.0).abs() < 0.05);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read on in [`AnyCodec`], then in [`CodecId`] for the choice of a codec. Firmware has shapes that are known
//! to the compiler ([`Codec`]), and may compute in integers ([`fixed`]).
//!
//! | layer | items |
//! | --- | --- |
//! | shapes | [`HEAD_DIMS`], [`is_supported_head_dim`] |
//! | codes: the list of codecs, and how the bytes of a block lie | [`code`] |
//! | blocks | [`BlockView`], [`demote`] |
//! | the same in integers, for microcontrollers | [`fixed`] |
//! | the shape of a cache, and tokens that fit it | [`KvShape`], [`Chunk`] |
//! | when a token of a cache becomes a code | [`life`] |
//! | which tokens an engine with blocks keeps exact | [`units`] |
//! | the codec for a program | [`Codec`] (shape known at compile time), [`AnyCodec`] (run time) |
//!
//! The crate does not allocate and uses neither `unsafe` nor `std`. The cache itself, files and attention
//! over pages are in the `tqkv` crate. Faster instruction sets are in `tqkv-simd`. They implement traits of
//! the hidden module `unstable`, which may change with every release.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod code;
mod codec;
mod demote;
mod error;
pub mod fixed;
mod head_dim;
mod kv;
pub mod life;
mod machine;
mod rotation;
pub mod units;
#[doc(hidden)]
pub mod unstable;
mod view;

pub use code::CodecId;
pub use code::scale::{Effort, ScaleMode};
pub use codec::{AnyCodec, Codec, Options};
pub use demote::demote;
pub use error::{DecodeError, EncodeError, ShapeError, UnknownCodec};
pub use half::f16;
pub use head_dim::{HEAD_DIMS, MAX_HEAD_DIM, is_supported_head_dim};
pub use kv::{Chunk, KvError, KvShape};
pub use machine::portable::Portable;
pub use view::{BlockError, BlockView};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

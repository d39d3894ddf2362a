//! The tqkv codec: compressed key/value vectors, from a microcontroller to a GPU.
//!
//! One head vector becomes one **block**:
//!
//! ```text
//! x --signs, Hadamard--> y --boundaries * |x|--> codes --pack--> block: [f16 scale | codes]
//! q --signs, Hadamard--> rotated query --levels[codes]--> score        (attention never decodes)
//! ```
//!
//! The random rotation gives every coordinate the same known distribution (TurboQuant, arXiv 2504.19874,
//! Lemma 1). The codebook is therefore a compile-time constant, and nothing is calibrated.
//!
//! | layer | items |
//! | --- | --- |
//! | shapes | [`HEAD_DIMS`], [`is_supported_head_dim`] |
//! | operations of a processor, for authors of instruction sets | [`machine`] |
//! | rotation | [`rotation`] |
//! | codes: the list of codecs, layouts, levels, codes in registers and bytes | [`code`] |
//! | blocks | [`BlockView`], [`demote`] |
//! | the same in integers, for microcontrollers | [`fixed`] |
//! | the shape of a cache, and tokens that fit it | [`KvShape`], [`Chunk`] |
//! | the codec for a program | [`Codec`] (shape known at compile time), [`AnyCodec`] (run time) |
//!
//! The crate does not allocate and uses neither `unsafe` nor `std`. The cache itself, files and attention
//! over pages are in the `tqkv` crate. Faster instruction sets implement the traits of [`machine`] in
//! `tqkv-simd`.
#![no_std]
#![forbid(unsafe_code)]
#![allow(long_running_const_eval, reason = "the codebooks are solved at compile time, in seconds")]

#[cfg(test)]
extern crate std;

pub mod code;
mod codec;
mod demote;
mod error;
pub mod fixed;
mod head_dim;
mod kv;
pub mod machine;
pub mod rotation;
mod view;

pub use code::CodecId;
pub use code::scale::{Effort, ScaleMode, Stored, to_f16};
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

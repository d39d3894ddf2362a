//! The storage tier: keys and values of tokens that leave fast memory, at about one bit a value.
//!
//! What is written to a disk or sent to another machine is read once, not at every step, so a transform may
//! cost a millisecond there and bytes are everything. Keys and values of one layer are linear maps of one
//! hidden vector: a [`Basis`] over all KV heads of a layer, keys and values together, holds that redundancy,
//! and trellis codes of 0 to 5 bits take what is left.
//!
//! ```text
//! Learner  <- keys, values           moments of the first few thousand tokens that pass
//!    freeze -> Basis                 eigenvectors of each layer; a file, named by its SHA-256
//! StorageCodec + Basis | nothing     chunks of up to 256 tokens <-> bytes (SPEC.md)
//!    archive, restore                a cache's whole sequence <-> a stream of chunks
//! ```
//!
//! Not for pages that are read at every step: decoding costs two matrix products a layer, and a cache reads
//! codes directly (`tqkv::cache`). Without a basis the tier works from the first token on, with a width for
//! each channel instead.
//!
//! A basis holds second moments of what it was learned from. They may say something of prompts: keep one for
//! each tenant, or learn one from text that anybody may read.
#![forbid(unsafe_code)]

mod archive;
mod basis;
mod chunk;
mod codec;
mod columns;
mod element;
mod error;
mod file;
mod frame;
mod layer;
mod learn;
mod locate;
mod marks;
mod parse;
mod rope;
mod rows;
mod shape;
mod streams;
mod widths;

pub use basis::{Basis, BasisId};
pub use chunk::{EXACT_TOKENS, MAX_TOKENS, Span};
pub use codec::{Budget, StorageCodec};
pub use element::{Dtype, Element};
pub use error::StorageError;
pub use learn::Learner;
pub use rope::{Pairs, Rope};
pub use shape::{Join, Shape};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The storage tier: keys and values of tokens that leave fast memory, at about one bit per value.
//!
//! A chunk on a disk or on another machine is read once, not at every step. A transform may therefore cost a
//! millisecond, and bytes matter most. Keys and values of one layer are linear maps of one hidden vector. A
//! [`Basis`] over the keys and values of all KV heads of a layer removes that redundancy. Trellis codes of 0
//! to 5 bits store the rest.
//!
//! ```text
//! Learner  <- keys, values           moments of the first few thousand tokens that pass
//!    freeze -> Basis                 eigenvectors of each layer; a file, named by its SHA-256
//! StorageCodec + Basis | nothing     chunks of up to 256 tokens <-> bytes (SPEC.md)
//! Follower                           encodes, learns, and makes a new basis when the text has changed
//! Generations                        a folder of bases; each chunk is read with the basis that it names
//!    archive, restore                a cache's whole sequence <-> a stream of chunks
//! ```
//!
//! This tier is not for pages that are read at every step: decoding costs two matrix products per layer. A
//! cache reads codes directly (`tqkv::cache`). Without a basis the tier works from the first token on, and
//! each channel has a width of its own.
//!
//! A basis holds second moments of the text that it was learned from. They may reveal something about
//! prompts. Keep one basis per tenant, or learn it from public text.
#![forbid(unsafe_code)]

mod angles;
mod archive;
mod basis;
mod bytes;
mod chunk;
mod codec;
mod coefficients;
mod columns;
mod element;
mod error;
mod file;
mod follow;
mod frame;
mod gathered;
mod generations;
mod layer;
mod learn;
mod locate;
mod marks;
mod parse;
mod rows;
mod shape;
mod streams;
mod widths;

pub use basis::{Basis, BasisId};
pub use chunk::{EXACT_TOKENS, MAX_TOKENS, Span};
pub use codec::{Budget, StorageCodec};
pub use element::{Dtype, Element};
pub use error::StorageError;
pub use follow::{Encoded, Follower};
pub use generations::Generations;
pub use learn::Learner;
pub use shape::{Join, Shape};
pub use tqkv::rope::{Rope, RopePairing};

/// The example of the README must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The operations that the algorithms need of a processor, for authors of instruction sets.
//!
//! `lanes` holds the vocabulary. `portable` defines it in plain Rust; its token is [`crate::Portable`].
//! `block_io` defines the position of codes in bytes.

pub(crate) mod block_io;
pub(crate) mod lanes;
pub(crate) mod portable;

pub use block_io::words;
pub use lanes::{Isa, Lanes, Memory};
pub use portable::{F32x32, spread, squeeze};

//! What a processor is to the algorithms: for authors of instruction sets.
//!
//! Users of the codecs need nothing of it. `lanes` is the vocabulary, `portable` its definition in plain Rust
//! ([`crate::Portable`] is the token), `block_io` where codes are in bytes.

pub(crate) mod block_io;
pub(crate) mod lanes;
pub(crate) mod portable;

pub use block_io::words;
pub use lanes::{Isa, Lanes, Memory};
pub use portable::{F32x32, spread, squeeze};

//! What a processor is to the algorithms: for authors of instruction sets.
//!
//! Users of the codecs need nothing of it. [`lanes`] is the vocabulary, [`portable`] its definition in plain Rust,
//! [`block_io`] where codes are in bytes.

pub mod block_io;
pub mod lanes;
pub mod portable;

//! The types that a program uses: [`crate::Codec`] for shapes known at compile time, [`crate::AnyCodec`] for
//! shapes known at run time.

pub(crate) mod any;
pub(crate) mod ops;
mod typed;

pub use any::{AnyCodec, Options};
pub use typed::Codec;

//! What a program calls: [`crate::Codec`], its shape known to the compiler, and [`crate::AnyCodec`], at run
//! time.

pub(crate) mod any;
pub(crate) mod ops;
mod typed;

pub use any::{AnyCodec, Options};
pub use typed::Codec;

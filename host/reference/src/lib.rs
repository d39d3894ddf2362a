//! What the literature and other programs store, to compare with: slow, plain, never the hot path.
//!
//! A [`Row`] is a format: its name, its bytes, and how a head vector becomes a block and back. They need dense matrices of
//! head_dim x head_dim numbers, which a codec for microcontrollers cannot hold, so they are not codecs of `tqkv_core`: they are
//! yardsticks, which no cache and no file stores, and no kernel reads. [`DecodedCache`] puts one under a model: it holds decoded
//! vectors and counts blocks.
//!
//! | rows | what | source |
//! | --- | --- | --- |
//! | `p2 p3 p4`, `p4r2` .. | scalar code and QJL residual, unbiased dot products | TurboQuant, Algorithm 2 |
//! | `tq3 tq4`, `tq4u8` | f32 norm, dense rotation; packed, or a byte a code | ports to llama.cpp and to an NPU |
//! | `turbo2 turbo3 turbo4`, `turbo3k` .. | formats of two forks | |
//! | `c25 c35` | channels split by energy, two widths | TurboQuant, section 4.3 |
//! | `u3 u8 f8e5m2` | yardsticks | |
//!
//! | file | holds |
//! | --- | --- |
//! | `rows` | the table |
//! | `coder` | a row at a head dim and layer: encode, decode |
//! | `scalar`, `product`, `turbo`, `split`, `uniform` | the formats |
//! | `rotation`, `random`, `levels`, `bits` | what they are made of |
//! | [`theory`] | Shannon's bound, the paper's two, and expected errors |
//! | `cache` | a cache that holds decoded vectors |
//!
//! For a cache in a program take `tqkv::cache`. The bytes are described in SPEC.md.
#![forbid(unsafe_code)]

mod bits;
mod cache;
mod choice;
mod coder;
mod format;
mod levels;
mod product;
mod random;
mod rotation;
mod rows;
mod scalar;
mod split;
pub mod theory;
mod turbo;
mod uniform;

pub use cache::DecodedCache;
pub use choice::{Choice, ChoiceError, Coders};
pub use coder::{Coder, ReferenceError};
pub use product::Sketched;
pub use rotation::{Rotation, RotationKind};
pub use rows::{ROWS, Row};
pub use split::Channels;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

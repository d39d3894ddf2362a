//! Formats of the literature and of other programs, to compare with: slow, plain, never on the hot path.
//!
//! A [`Row`] is a format: its name, its bytes, and the code that turns a head vector into a block and back.
//! These formats need dense matrices of head_dim x head_dim numbers, too large for a microcontroller. They
//! are therefore yardsticks, not codecs of `tqkv_core`: no cache or file stores them, and no kernel reads
//! them. [`DecodedCache`] runs a model with a format: it holds decoded vectors and counts the bytes of
//! blocks.
//!
//! | rows | what | source |
//! | --- | --- | --- |
//! | `p2 p3 p4`, `p4r2` .. | scalar code and QJL residual, unbiased dot products | TurboQuant, Algorithm 2 |
//! | `tq1` to `tq4`, `tq4u8` | f32 norm, dense rotation; packed, or a byte per code | ports: llama.cpp, NPU |
//! | `turbo2 turbo3 turbo4`, `turbo3k` .. | formats of two forks | |
//! | `c25 c35` | channels split by energy, two widths | TurboQuant, section 4.3 |
//! | `u3 u4 u8`, `u3r u4r u8r` | uniform codes, also of rotated vectors | other caches |
//! | `f8 f8e5m2`, `fp8` | 8-bit floats with a scale per vector, or per tensor | GPU engines |
//! | `nvfp4`, `mxfp4` | 4-bit floats in blocks with a scale | GPU engines |
//! | `int4h`, `vtq3 vtq4` | 4-bit codes with a zero point; keys of TurboQuant | vLLM |
//! | `q4_0r` | `q4_0` of rotated vectors | llama.cpp |
//!
//! | file | holds |
//! | --- | --- |
//! | `rows` | the table |
//! | `coder` | a row at a head dim and layer: encode, decode |
//! | `scalar`, `product`, `turbo`, `split`, `uniform`, `fp4`, `runs` | the formats |
//! | `rotation`, `random`, `levels`, `bits` | the parts of the formats |
//! | [`theory`] | Shannon's bound, the paper's two, and expected errors |
//! | `cache` | a cache that holds decoded vectors |
//! | `source`, `side_coders` | a codec as a cache sees it; the coders of all its heads |
//! | `windowed` | a cache with a window of exact tokens before coded ones |
//! | `program`, `answer` | a codec that is another program; what it answers |
//!
//! For a cache in a program use `tqkv::cache`. FORMATS.md describes the bytes.
#![forbid(unsafe_code)]

mod answer;
mod bits;
mod cache;
mod choice;
mod coder;
mod format;
mod fp4;
mod levels;
mod product;
mod program;
mod random;
mod rotation;
mod rows;
mod runs;
mod scalar;
mod side_coders;
mod source;
mod split;
pub mod theory;
mod turbo;
mod uniform;
mod windowed;

pub use cache::DecodedCache;
pub use choice::{Choice, ChoiceError, Coders};
pub use coder::{Coder, ReferenceError};
pub use product::Sketched;
pub use program::GROUP;
pub use rotation::{Rotation, RotationKind};
pub use rows::{ROWS, Row};
pub use split::Channels;
pub use windowed::WindowedCache;

/// The example of the README must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

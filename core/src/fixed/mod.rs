//! The codec in integers, for microcontrollers without a floating-point unit, a heap or an operating system.
//!
//! ```text
//! x (i16 or i8) --signs, exact i32 Hadamard--> y --bins--> codes --> block: [f16 scale | codes]
//! ```
//!
//! Blocks are the bytes of the float path: [`crate::AnyCodec`] decodes the blocks of a microcontroller, and
//! the other way round. Every result is defined by integers alone and is the same on every machine. More than
//! 99.9 % of the codes equal those of the float path (at [`crate::Effort::Fast`]).
//!
//! **Units.** A vector is integers times 2^exponent; the caller gives the exponent (Q15: -15; an int8 tensor
//! with scale 2^-6: -6). The exponent only enters the stored scale, so a wrong one gives wrong magnitudes,
//! not wrong codes. Full use of 16 bits is best, but no normalisation is needed. The transform is exact for
//! any input and nothing overflows (bounds in [`FixedCodec::encode`]).
//!
//! | operation | implementation |
//! | --- | --- |
//! | encode | [`FixedCodec::encode`]: i32 transform, Newton root, bin table, f16 packed in integers |
//! | decode | [`FixedCodec::decode`]: int8 levels, two to a word through the transform |
//! | attention | [`FixedCodec::query`], [`FixedCodec::score`], [`Attention`] |
//! | a whole cache | [`RingCache`]: codes, and [`ExactTokens`] at both ends of the context |
//! | trellis codes | [`FixedTrellis`]: less error in the same bytes; the search takes 7 to 16 times as long |
//! | the file of a language model | [`flat`]: its header and sizes; `tqkv-lm` computes with it |
//!
//! On Cortex-M4, M7 and M33 the `Dsp` kernels of `tqkv-simd` run the loops of encoding
//! ([`FixedCodec::with_kernels`]). They give the same bits in two thirds of the instructions.
//!
//! When not to use it: with a floating-point unit and f32 data, use [`crate::Codec`] or [`crate::AnyCodec`].
//! They search for better scales and support all codecs.
//!
//! **Sizing.** A token costs one key block and one value block per KV head ([`token_bytes`], [`tokens_in`]).
//! The table gives bytes per token, and tokens per KiB, with the same codec for both:
//!
//! | head dim | 2 bits | 3 bits | 4 bits | `i8` | f16, not compressed |
//! | --- | --- | --- | --- | --- | --- |
//! | 64 | 36 B, 28.4 | 52 B, 19.7 | 68 B, 15.1 | 132 B, 7.8 | 256 B, 4.0 |
//! | 80 | 44 B, 23.3 | 64 B, 16.0 | 84 B, 12.2 | 164 B, 6.2 | 320 B, 3.2 |
//! | 96 | 52 B, 19.7 | 76 B, 13.5 | 100 B, 10.2 | 196 B, 5.2 | 384 B, 2.7 |
//! | 128 | 68 B, 15.1 | 100 B, 10.2 | 132 B, 7.8 | 260 B, 3.9 | 512 B, 2.0 |
//! | 256 | 132 B, 7.8 | 196 B, 5.2 | 260 B, 3.9 | 516 B, 2.0 | 1024 B, 1.0 |
//!
//! A [`RingCache`] adds eight words of RAM to the bytes that it borrows. Exact tokens take `2 * (D + 4)`
//! bytes each in `i8`, and `2 * (2 * D + 4)` in `i16`. Its codecs take one byte of flash per coordinate.

mod attend;
mod codec;
mod decode;
mod encode;
mod exact;
pub mod flat;
mod kernels;
mod math;
mod query;
mod ring;
mod rotation;
mod sample;
mod scale;
mod sizing;
mod tables;
#[cfg(test)]
mod tests;
mod transform;
mod trellis;
mod words;

pub use attend::Attention;
pub use codec::FixedCodec;
pub use exact::ExactTokens;
pub use kernels::{Kernels, Products, Quantise};
pub use math::exp2_fraction;
pub use query::FixedQuery;
pub use ring::RingCache;
pub use sample::Sample;
pub use sizing::{INTEGER_CODECS, token_bytes, tokens_in};
pub use trellis::{FixedTrellis, TrellisWorkspace};

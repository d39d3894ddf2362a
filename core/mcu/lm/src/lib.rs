//! A Llama-like language model in integers, for microcontrollers without a heap, an operating system or a
//! floating-point unit.
//!
//! ```text
//! token --> residual stream (i32, 2^-18) --norm--> i16 x 2^e --products--> i32
//!       --> attention over RingCache, SwiGLU --> logits
//! ```
//!
//! Weights are signed bytes or 4-bit codes in a flat file that is read in place. `SPEC.md` describes its
//! bytes, and `tqkv export --target mcu` writes it. Activations are 16-bit mantissas with one power of two
//! per vector. The cache is a ring of coded keys and values per KV head. Every rounding is defined by
//! integers alone. The logits, and with them the text, are therefore the same on every machine and with all
//! [`Kernels`](tqkv_core::fixed::Kernels).
//!
//! ```
//! use tqkv_core::Portable;
//! use tqkv_core::code::I8;
//! use tqkv_core::fixed::{FixedCodec, RingCache};
//! use tqkv_lm::{Head, Lm, Model, Shape};
//!
//! static KEYS: FixedCodec<128, I8> = FixedCodec::DEFAULT;
//! # fn run(file: &[u8]) -> Result<(), tqkv_lm::LmError> {
//! // In a firmware all sizes are constants: `Shape::read` is a `const fn`.
//! let model = Model::load(file)?;
//! let mut work = vec![0; model.shape().work_words()];
//! let mut memory = vec![0; model.shape().rings() * RingCache::<128, I8, I8>::bytes_for(256)];
//! let room = memory.len() / model.shape().rings();
//! let heads = memory.chunks_exact_mut(room);
//! let heads = heads.map(|memory| Head::new(RingCache::new(&KEYS, &KEYS, memory, 4)));
//! let mut heads: Vec<_> = heads.collect();
//! let mut lm = Lm::new(model, &mut heads, &mut work, Portable)?;
//! let mut token = 65;
//! for _ in 0..32 {
//!     lm.push(token)?;
//!     token = lm.logits().greedy();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! When not to use it: on machines with floats and enough memory, `tqkv-model` computes the same models in
//! f32. Prompts of thousands of tokens are slow here, because tokens are processed one by one. The crate
//! supports only models like Llama: RMSNorm, RoPE in halves, SwiGLU, no biases. Weights have one scale per
//! row (8 bits) or per 32 columns (4 bits).
#![no_std]
#![forbid(unsafe_code)]

mod error;
mod forward;
mod logits;
mod matrix;
mod model;
mod norm;
mod rotary;
mod silu;
mod vector;

pub use error::LmError;
pub use forward::{Head, Lm};
pub use logits::{Logits, Sampler};
pub use model::{Model, checksum};
pub use tqkv_core::fixed::flat::{self, FileError, LayoutBytes, Shape, WeightBits};

//! Compressed KV cache: caches over the codecs of `tqkv-core`, a small model runner, generation and evaluation.
//!
//! [`attention::AttentionCache`] is the seam: the [`model`] runner knows no more of a cache than this trait, and
//! [`generate`] and [`eval`] work over any implementation of it. The codecs themselves live in `tqkv-core`, which
//! needs neither an allocator nor an operating system; come here for whole models and whole caches.

pub mod attention;
pub mod cache;
pub mod error;
pub mod eval;
pub mod generate;
mod matmul;
mod mmap;
pub mod model;

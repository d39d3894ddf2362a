//! tqkv: a compressed KV cache for transformers, its files and its command line.

pub mod array;
pub mod atomic;
pub mod bytes;
pub mod file;
pub mod plan;
pub mod preset;
pub mod stats;

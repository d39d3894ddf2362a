//! x86-64: one set of files per instruction set.

pub(crate) mod avx2;
mod avx2_bytes;
mod avx2_lines;
mod avx2_shorts;
pub(crate) mod avx512;
mod avx512_bytes;
mod avx512_lines;
mod avx512_shorts;

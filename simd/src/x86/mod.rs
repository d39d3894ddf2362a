//! x86-64: one file for each instruction set.

pub(crate) mod avx2;
pub(crate) mod avx512;

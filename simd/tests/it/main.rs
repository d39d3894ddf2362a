//! Every level against the portable definition, page kernels against exact arithmetic, and laws of any input.
//!
//! A test of each level and group of layouts has a name: `cargo test --workspace --test it avx512` runs one
//! level, `... --test it logits::avx512::planes` one test. What is covered by default says
//! `tqkv_tests::scope`.

mod attention;
mod common;
mod laws;
mod pages;
mod parity;
mod rows;

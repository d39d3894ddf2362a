//! Every level compared with the portable definition, page kernels compared with exact arithmetic, and laws
//! for any input.
//!
//! Each level and group of layouts has a named test. `cargo test --workspace --test it avx512` runs one
//! level, and `... --test it logits::avx512::planes` runs one test. `tqkv_tests::scope` defines the default
//! coverage.

mod attention;
mod common;
mod laws;
mod nearest;
mod pages;
mod parity;
mod products;
mod rows;
mod weights;

//! WebAssembly with vectors of 128 bits.
//!
//! An engine accepts or refuses a module as a whole, so there is nothing to detect. These files exist if the
//! build has the feature, and then their instructions are safe.

pub(crate) mod simd128;
mod simd128_bytes;
mod simd128_lines;
mod simd128_shorts;

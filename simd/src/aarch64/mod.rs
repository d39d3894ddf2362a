//! AArch64.

pub(crate) mod neon;
mod neon_bytes;
mod neon_lines;
mod neon_shorts;

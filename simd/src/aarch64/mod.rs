//! AArch64.

pub(crate) mod neon;
mod neon_lines;

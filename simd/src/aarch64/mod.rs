//! AArch64.

pub(crate) mod neon;

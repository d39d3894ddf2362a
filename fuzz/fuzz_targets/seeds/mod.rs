//! Seeds must get through the readers. With `TQKV_SEEDS=1` every input is a seed, and a reader that refuses
//! it ends the run.

use std::fmt::Display;
use std::sync::LazyLock;

static ARE_RUN: LazyLock<bool> = LazyLock::new(|| std::env::var_os("TQKV_SEEDS").is_some());

/// Records that a reader has refused the bytes.
pub fn refused(why: impl Display) {
    assert!(!*ARE_RUN, "a seed is refused: {why}");
}

//! Converts numbers of the header to their Rust types.

use crate::error::Failure;
use tqkv_core::{CodecId, Effort, Options, ScaleMode};

/// The codec with this number.
pub(crate) fn codec(what: &str, number: u32) -> Result<CodecId, Failure> {
    let found = u8::try_from(number).ok().and_then(CodecId::from_code);
    found.ok_or_else(|| Failure::argument(format!("{what} is {number}, which no codec has")))
}

/// The element of `all` at this number. `all` is in the order of an enumeration of the header.
pub(crate) fn one_of<T: Copy>(what: &str, number: u32, all: &[T]) -> Result<T, Failure> {
    let found = usize::try_from(number).ok().and_then(|index| all.get(index));
    let last = all.len() - 1;
    found.copied().ok_or_else(|| Failure::argument(format!("{what} is {number}, expected 0 to {last}")))
}

/// The options with this seed, scale mode and effort.
pub(crate) fn options(seed: u64, scale_mode: u32, effort: u32) -> Result<Options, Failure> {
    let scale_mode = one_of("scale_mode", scale_mode, &ScaleMode::ALL)?;
    let effort = one_of("effort", effort, &Effort::ALL)?;
    Ok(Options::DEFAULT.seed(seed).scale_mode(scale_mode).effort(effort))
}

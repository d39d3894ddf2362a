//! The memory per token, for the author of a firmware.

use crate::code::CodecId;

/// The codecs that [`super::FixedCodec`] supports, and so those of the keys and values of a
/// [`super::RingCache`].
pub const INTEGER_CODECS: [CodecId; 9] = [
    CodecId::I8,
    CodecId::S5,
    CodecId::S4,
    CodecId::S3,
    CodecId::S2,
    CodecId::N4,
    CodecId::N3,
    CodecId::N2,
    CodecId::T2S8,
];

/// Bytes per token of one KV head: one block of each codec. `None` if a codec does not support the head dim.
pub const fn token_bytes(keys: CodecId, values: CodecId, head_dim: usize) -> Option<usize> {
    match (keys.block_bytes(head_dim), values.block_bytes(head_dim)) {
        (Some(key), Some(value)) => Some(key + value),
        _ => None,
    }
}

/// Tokens of one KV head that fit in `bytes`.
///
/// ```
/// use tqkv_core::{CodecId, fixed::tokens_in};
/// assert_eq!(tokens_in(CodecId::S4, CodecId::S4, 128, 1024), Some(7));
/// assert_eq!(tokens_in(CodecId::S3, CodecId::S2, 64, 16 * 1024), Some(372));
/// ```
pub const fn tokens_in(keys: CodecId, values: CodecId, head_dim: usize, bytes: usize) -> Option<usize> {
    match token_bytes(keys, values, head_dim) {
        Some(token) => Some(bytes / token),
        None => None,
    }
}

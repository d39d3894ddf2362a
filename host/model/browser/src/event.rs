//! The lines of the program.

use serde::Serialize;
use tqkv::KvShape;

/// One line. `index` counts the policies from 0.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// The model is loaded.
    Begin {
        /// Instruction set of the kernels.
        level: &'static str,
        /// Most tokens of prompt and continuation.
        context: usize,
    },
    /// One more token.
    Text {
        index: usize,
        /// Empty if the token does not complete a character.
        piece: &'a str,
        /// Tokens and bytes that the cache holds.
        tokens: usize,
        bytes: usize,
        /// Bytes of as many tokens in f16.
        f16_bytes: usize,
    },
    /// A continuation is complete.
    End { index: usize, policy: &'a str, prefill_seconds: f64, tokens_per_second: f64 },
    /// Figures on the first continuation, against the first cache.
    Quality { index: usize, kl: f64, top1_agreement: f64, attention_error: f64 },
    /// Everything is complete.
    Done,
    /// Nothing follows.
    Error { message: String },
}

/// Bytes of keys and values in f16.
pub(crate) fn f16_bytes(shape: &KvShape, tokens: usize) -> usize {
    2 * tokens * shape.num_layers * shape.num_kv_heads * (shape.head_dim + shape.value_dim)
}

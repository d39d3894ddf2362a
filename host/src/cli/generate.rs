//! `tqkv generate`: text from a model under compressed caches.

use super::cache_args::{CacheArgs, ModelArgs};

/// Generate text with a compressed cache, and say how fast and how large it was.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the shipped model, then another under two settings
  tqkv generate --prompt \"The borrow checker\" --kv balanced
  tqkv generate --model DIR --prompt \"Once upon a time\" --tokens 200 --kv f16 --kv i8,s4")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to go on from.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: String,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) tokens: usize,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

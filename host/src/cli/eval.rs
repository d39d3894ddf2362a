//! `tqkv eval`: perplexity and divergence of a model under compressed caches.

use std::path::PathBuf;

use super::cache_args::{CacheArgs, ModelArgs};

/// Measure what compressed caches do to a model's predictions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: every token quantised, then the default policy
  tqkv eval --kv s4 --kv s3 --kv s2 --hot 0 --sinks 0
  tqkv eval --model DIR --text book.txt --context 4096 --windows 8 --kv balanced --kv i8,s3")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to predict [default: the shipped held-out text].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens per window; each begins with an empty cache.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub(crate) context: usize,
    /// Windows to score, from the start of the text.
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) windows: usize,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

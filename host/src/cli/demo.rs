//! `tqkv demo`: the shipped model on real text, under f16 and every preset, in one table.

use super::cache_args::{CacheArgs, ModelArgs};

/// Show what a compressed cache costs and saves, on a real model, in under a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv demo
  tqkv demo --prompt \"A trait object\" --tokens 64 --kv s3 --kv s2")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to go on from [default: a sentence of the held-out text].
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Tokens to generate per setting.
    #[arg(long, value_name = "N", default_value_t = 96)]
    pub(crate) tokens: usize,
    /// Tokens per window of the perplexity.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub(crate) context: usize,
    /// Windows of the perplexity.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) windows: usize,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

//! Arguments of the commands that run a model over a compressed cache.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tqkv_core::ScaleMode;

use super::args::{KvArgs, WindowArgs, scale_mode};

/// Whether keys are stored less their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CentreArg {
    /// Always.
    On,
    /// Never.
    Off,
    /// Where the mean holds a stated share of the energy.
    Auto,
}

/// How the cache compresses.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    /// How a block's scale is chosen: raw, preserving (the norm), unbiased (the dot products) or mmse
    /// (least error).
    #[arg(long, value_name = "MODE", value_parser = scale_mode, default_value = "unbiased")]
    pub(crate) scale_mode: ScaleMode,
    /// Subtract the keys' mean before encoding; attention adds its dot back.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CentreArg::Auto)]
    pub(crate) centre: CentreArg,
    /// Seed of the rotation's random signs.
    #[arg(long, value_name = "N", default_value_t = tqkv_core::Options::DEFAULT.seed)]
    pub(crate) seed: u64,
}

/// Which model.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Folder with config.json, .safetensors and tokenizer.json [default: the shipped model].
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Scale some key channels up and the same query channels down, which leaves the model's function
    /// as it is and its keys with outliers.
    #[arg(long)]
    pub(crate) outlier_variant: bool,
}

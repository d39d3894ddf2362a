//! How a state is packed, on the command line.

use std::path::PathBuf;

use tqkv_session::{Codecs, Mode};

use crate::error::CliError;
use crate::names;
use crate::plan::PlanSource;
use crate::preset::KvCodecs;

/// Codecs and head dims.
#[derive(Debug, clap::Args)]
pub(super) struct CodeArgs {
    /// Codecs: a preset (balanced), one codec for keys and values (t4), or two as K,V (t4,t2). `tqkv codecs`
    /// lists them.
    #[arg(long, value_name = "PRESET|K,V", value_parser = names::pair, default_value = "t4")]
    kv: KvCodecs,
    /// Keep everything without loss: unpack gives the same bytes.
    #[arg(long, conflicts_with_all = ["kv", "head_dim", "model"])]
    exact: bool,
    /// Coordinates of a key and of a value [default: 128 where that divides a row, else 64, else the largest
    /// that does].
    #[arg(long, value_name = "D", conflicts_with = "model")]
    head_dim: Option<usize>,
    /// Read the head dims from a model: a .gguf file, a folder with config.json, or a config.json.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
}

impl CodeArgs {
    /// The mode that they ask for.
    pub(super) fn mode(&self) -> Result<Mode, CliError> {
        if self.exact {
            return Ok(Mode::Exact);
        }
        let (mut key_dim, mut value_dim) = (self.head_dim, self.head_dim);
        if let Some(path) = &self.model {
            let shape = PlanSource::read(path)?.shape()?;
            (key_dim, value_dim) = (Some(shape.head_dim), Some(shape.value_dim));
        }
        Ok(Mode::Coded(Codecs { key: self.kv.k, value: self.kv.v, key_dim, value_dim }))
    }
}

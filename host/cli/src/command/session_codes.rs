//! How a state is packed, on the command line.

use std::path::PathBuf;

use tqkv_session::{Budget, Codecs, Mode, StorageCodec, Stored};

use super::stored;
use crate::args::budget;
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
    /// Code keys and values in a basis of their model, from `tqkv basis`: about 1.1 or 2.1 bits per value.
    /// Unpacking needs the same file.
    #[arg(long, value_name = "FILE.tqb", conflicts_with_all = ["kv", "exact", "head_dim", "model"])]
    basis: Option<PathBuf>,
    /// Bits per value in the basis, 0.5 to 5 [default: 2.1].
    #[arg(long = "storage", value_name = "BITS", value_parser = budget, requires = "basis")]
    budget: Option<Budget>,
}

/// Bits per value in a basis, by default.
const BITS: f32 = 2.1;

impl CodeArgs {
    /// The codec of the basis, where one is named.
    pub(super) fn codec(&self) -> Result<Option<StorageCodec>, CliError> {
        self.basis.as_deref().map(|path| Ok(stored::load(path)?.1)).transpose()
    }

    /// The mode that they ask for, with the codec of [`CodeArgs::codec`].
    pub(super) fn mode<'a>(&self, codec: Option<&'a StorageCodec>) -> Result<Mode<'a>, CliError> {
        if self.exact {
            return Ok(Mode::Exact);
        }
        if let Some(codec) = codec {
            let budget = self.budget.map_or_else(|| Budget::new(BITS), Ok).map_err(CliError::bad_input)?;
            return Ok(Mode::Stored(Stored::new(codec, budget).map_err(CliError::bad_input)?));
        }
        let (mut key_dim, mut value_dim) = (self.head_dim, self.head_dim);
        if let Some(path) = &self.model {
            let shape = PlanSource::read(path)?.shape()?;
            (key_dim, value_dim) = (Some(shape.head_dim), Some(shape.value_dim));
        }
        Ok(Mode::Coded(Codecs { key: self.kv.k, value: self.kv.v, key_dim, value_dim }))
    }
}

//! How a state is packed, on the command line.

use std::path::PathBuf;
use std::sync::OnceLock;

use tqkv_model::LayerKv;
use tqkv_session::{BasisCoder, Budget, Codecs, Mode, RowHeads, StateSide, StorageCodec};

use super::stored;
use crate::args::budget;
use crate::error::CliError;
use crate::names;
use crate::plan::PlanSource;
use crate::preset::KvCodecs;

/// Codecs and head dims.
#[derive(Clone, Debug, clap::Args)]
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
    /// Head dims of the model's rows, where its layers have several.
    #[arg(skip)]
    rows: OnceLock<Vec<RowHeads>>,
}

/// Bits per value in a basis, by default.
const BITS: f32 = 2.1;

impl CodeArgs {
    /// The codec of the basis, where one is named.
    pub(super) fn codec(&self) -> Result<Option<StorageCodec>, CliError> {
        self.basis.as_deref().map(|path| Ok(stored::load(path)?.1)).transpose()
    }

    /// The mode that they ask for, with the codec of [`CodeArgs::codec`].
    pub(super) fn mode<'a>(&'a self, codec: Option<&'a StorageCodec>) -> Result<Mode<'a>, CliError> {
        if self.exact {
            return Ok(Mode::Exact);
        }
        if let Some(codec) = codec {
            let budget = self.budget.map_or_else(|| Budget::new(BITS), Ok).map_err(CliError::bad_input)?;
            return Ok(Mode::Stored(BasisCoder::new(codec, budget).map_err(CliError::bad_input)?));
        }
        let codecs = Codecs { key: self.kv.k, value: self.kv.v, ..Codecs::DEFAULT };
        let Some(path) = &self.model else {
            return Ok(Mode::Coded(Codecs { key_dim: self.head_dim, value_dim: self.head_dim, ..codecs }));
        };
        let source = PlanSource::read(path)?;
        let dims = |layer: &LayerKv| (layer.head_dim, layer.value_dim);
        let first = source.kv().kept().map(dims).next();
        if source.kv().kept().all(|layer| Some(dims(layer)) == first) {
            let (key_dim, value_dim) = first.unzip();
            return Ok(Mode::Coded(Codecs { key_dim, value_dim, ..codecs }));
        }
        let rows = |layer: &LayerKv| {
            let row = |side, head_dim| RowHeads { side, width: layer.num_kv_heads * head_dim, head_dim };
            [row(StateSide::Keys, layer.head_dim), row(StateSide::Values, layer.value_dim)]
        };
        let rows = self.rows.get_or_init(|| source.kv().kept().flat_map(rows).collect());
        Ok(Mode::Coded(Codecs { rows, ..codecs }))
    }
}

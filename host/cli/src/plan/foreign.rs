//! Formats that are not codecs here: a name, and the bytes per head vector.
//!
//! They are rows of a table beside other programs. All their tokens count as encoded, as in those programs.

use std::str::FromStr;

use tqkv::cache::PAGE_TOKENS;

use tqkv_model::LayerKv;

use super::{CacheShape, Growth, LayerPlan, PlanError, Uncompressed, per_token, tokens_of};
use crate::preset::Kv;

/// Block sizes of another program's codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Name of the row.
    pub(crate) name: String,
    blocks: Blocks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Blocks {
    /// Bytes of a key, and of a value, whatever their dim.
    Given([usize; 2]),
    /// Those of a format of `tqkv_reference`.
    Reference(Kv),
}

/// Upper bound of the bytes of a vector, larger than any format needs at any head dim.
const MOST_BYTES: usize = 1 << 20;

impl FromStr for Foreign {
    type Err = PlanError;

    /// Reads `NAME=BYTES` or `NAME=KEY BYTES,VALUE BYTES`.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let wrong = || PlanError::Foreign(text.to_string());
        let (name, bytes) = text.split_once('=').ok_or_else(wrong)?;
        let (key, value) = bytes.split_once(',').unwrap_or((bytes, bytes));
        let read = |text: &str| text.trim().parse().ok().filter(|bytes| (1..=MOST_BYTES).contains(bytes));
        let (Some(key), Some(value)) = (read(key), read(value)) else { return Err(wrong()) };
        if name.trim().is_empty() {
            return Err(wrong());
        }
        Ok(Self { name: name.trim().to_owned(), blocks: Blocks::Given([key, value]) })
    }
}

impl Foreign {
    /// Makes the row of a pair that has a format of `tqkv_reference`.
    pub(crate) fn reference(kv: Kv) -> Self {
        Self { name: kv.to_string(), blocks: Blocks::Reference(kv) }
    }

    /// Bytes of the tokens of a page in one KV head.
    fn page(&self, layer: &LayerKv) -> Result<usize, PlanError> {
        let [key, value] = match self.blocks {
            Blocks::Given(bytes) => bytes,
            Blocks::Reference(kv) => {
                let coded = if layer.is_latent() { layer.value_dim } else { layer.head_dim };
                let none = |format: &'static str, head_dim| PlanError::NoBlock { format, head_dim };
                let key = kv.k.block_bytes(coded).ok_or_else(|| none(kv.k.name(), coded))?;
                let value = kv.v.block_bytes(layer.value_dim);
                let value = value.ok_or_else(|| none(kv.v.name(), layer.value_dim))?;
                [key + 2 * layer.position_dim, value]
            }
        };
        Ok(PAGE_TOKENS * if layer.is_latent() { key } else { key + value })
    }

    /// Bytes per token, before the windows are full and after.
    ///
    /// # Errors
    /// [`PlanError::NoBlock`], [`PlanError::TooLarge`].
    pub(crate) fn per_token(&self, shape: &CacheShape) -> Result<(u64, Option<u64>), PlanError> {
        let pages = shape.pages(|layer| self.page(layer))?;
        let grown = |grows: fn(&LayerKv) -> bool| per_token(shape.counted(&pages, grows));
        let past = shape.windowed().map(|_| grown(|layer| layer.window.is_none()));
        Ok((grown(|_| true)?, past.transpose()?))
    }

    fn growth(&self, shape: &CacheShape) -> Result<Growth, PlanError> {
        let none = Uncompressed { sinks: 0, hot: 0 };
        let growths = shape.groups.iter().map(|(layer, layers)| {
            let of_tokens = tokens_of(layer, (self.page(layer)? as u128, Vec::new()), none, None);
            let heads = *layers as u128 * layer.num_kv_heads as u128;
            Ok(move |tokens| of_tokens(tokens).saturating_mul(heads))
        });
        let growths: Vec<_> = growths.collect::<Result<_, PlanError>>()?;
        Ok(Box::new(move |tokens| growths.iter().map(|growth| growth(tokens)).fold(0, u128::saturating_add)))
    }

    /// Bytes of `tokens` tokens.
    ///
    /// # Errors
    /// Those of [`Foreign::per_token`].
    pub(crate) fn bytes(&self, shape: &CacheShape, tokens: u64) -> Result<u64, PlanError> {
        let bytes = self.growth(shape)?(tokens).div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    /// Longest context in `memory`; see [`CacheShape::max_tokens`].
    ///
    /// # Errors
    /// Those of [`Foreign::per_token`].
    pub(crate) fn max_tokens(&self, shape: &CacheShape, memory: u64) -> Result<u64, PlanError> {
        Ok(shape.longest(memory, self.growth(shape)?))
    }
}

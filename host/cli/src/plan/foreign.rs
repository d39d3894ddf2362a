//! Formats that are not codecs here: a name, and the bytes per head vector.
//!
//! They are rows of a table beside other programs. All their tokens count as encoded, as in those programs.

use std::str::FromStr;

use tqkv::cache::PAGE_TOKENS;

use super::{CacheShape, PlanError, Uncompressed};
use crate::preset::Kv;

/// Block sizes of another program's codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Name of the row.
    pub(crate) name: String,
    /// Bytes of a key, and of a value.
    bytes: [usize; 2],
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
        Ok(Self { name: name.trim().to_owned(), bytes: [key, value] })
    }
}

impl Foreign {
    /// Makes the row of a pair that has a format of `tqkv_reference`.
    ///
    /// # Errors
    /// [`PlanError::NoBlock`].
    pub(crate) fn reference(kv: Kv, shape: &CacheShape) -> Result<Self, PlanError> {
        let coded = if shape.is_latent() { shape.value_dim } else { shape.head_dim };
        let none = |format: &'static str, head_dim| PlanError::NoBlock { format, head_dim };
        let key = kv.k.block_bytes(coded).ok_or_else(|| none(kv.k.name(), coded))?;
        let value = kv.v.block_bytes(shape.value_dim).ok_or_else(|| none(kv.v.name(), shape.value_dim))?;
        Ok(Self { name: kv.to_string(), bytes: [key + 2 * shape.position_dim, value] })
    }

    fn page(&self, shape: &CacheShape) -> usize {
        let [key, value] = self.bytes;
        PAGE_TOKENS * if shape.is_latent() { key } else { key + value }
    }

    /// Bytes per token, before the windows are full and after.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`].
    pub(crate) fn per_token(&self, shape: &CacheShape) -> Result<(u64, Option<u64>), PlanError> {
        let in_layers = |layers| shape.in_layers(self.page(shape), layers);
        let past = shape.windowed.map(|windowed| in_layers(shape.num_layers - windowed.layers));
        Ok((in_layers(shape.num_layers)?, past.transpose()?))
    }

    fn growth(&self, shape: &CacheShape) -> impl Fn(u64) -> u128 + use<> {
        shape.growth(self.page(shape) as u128, Vec::new(), Uncompressed { sinks: 0, hot: 0 })
    }

    /// Bytes of `tokens` tokens.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`].
    pub(crate) fn bytes(&self, shape: &CacheShape, tokens: u64) -> Result<u64, PlanError> {
        let bytes = self.growth(shape)(tokens).div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    /// Longest context in `memory`; see [`CacheShape::max_tokens`].
    pub(crate) fn max_tokens(&self, shape: &CacheShape, memory: u64) -> u64 {
        shape.longest(memory, self.growth(shape))
    }
}

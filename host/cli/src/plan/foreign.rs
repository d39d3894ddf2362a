//! Formats that are not codecs here: a name, and the bytes per head vector.
//!
//! They are rows to compare with. All their tokens count as encoded, as in those programs.

use std::str::FromStr;

use tqkv::cache::PAGE_TOKENS;

use tqkv_model::LayerKv;

use super::{CacheShape, LayerPlan, PlanError, longest};
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

    /// Bytes of a token in one KV head.
    fn token(&self, layer: &LayerKv) -> Result<usize, PlanError> {
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
        Ok(if layer.is_latent() { key } else { key + value })
    }

    /// Bytes per token, before the windows are full and after.
    ///
    /// # Errors
    /// [`PlanError::NoBlock`], [`PlanError::TooLarge`].
    pub(crate) fn per_token(&self, shape: &CacheShape) -> Result<(u64, Option<u64>), PlanError> {
        let past = shape.windowed().map(|_| self.sum(shape, |layer| layer.window.is_none().into()));
        Ok((self.sum(shape, |_| 1)?, past.transpose()?))
    }

    /// Bytes of the tokens that layers hold.
    fn sum(&self, shape: &CacheShape, held: impl Fn(&LayerKv) -> u64) -> Result<u64, PlanError> {
        let mut all: u64 = 0;
        for (layer, layers) in &shape.groups {
            let parts = [self.token(layer)? as u64, layer.num_kv_heads as u64, *layers as u64];
            let bytes = parts.into_iter().try_fold(held(layer), u64::checked_mul);
            all = bytes.and_then(|bytes| all.checked_add(bytes)).ok_or(PlanError::TooLarge)?;
        }
        Ok(all)
    }

    /// Bytes of `tokens` tokens.
    ///
    /// # Errors
    /// Those of [`Foreign::per_token`].
    pub(crate) fn bytes(&self, shape: &CacheShape, tokens: u64) -> Result<u64, PlanError> {
        // As in pages that leave a window in full, where one more stays for rollbacks.
        let beyond = 2 * PAGE_TOKENS as u64 - 1;
        let held = |layer: &LayerKv| layer.window.map_or(u64::MAX, |window| window as u64 + beyond);
        self.sum(shape, |layer| tokens.min(held(layer)))
    }

    /// Longest context in `memory`; see [`super::Plan::max_tokens`].
    ///
    /// # Errors
    /// Those of [`Foreign::per_token`].
    pub(crate) fn max_tokens(&self, shape: &CacheShape, memory: u64) -> Result<u64, PlanError> {
        self.per_token(shape)?;
        Ok(longest(shape.context, |tokens| self.bytes(shape, tokens).is_ok_and(|bytes| bytes <= memory)))
    }
}

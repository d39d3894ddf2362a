//! Bytes per token of a cache, and the number of tokens that fit a memory budget.
//!
//! The bytes of a page are those that the library allocates. A running cache reports the rest of its memory
//! in its own statistics. Shapes come from a model's `config.json` (`config`) or from the command line.

mod config;
mod foreign;
mod loading;
mod size;
mod source;
mod stored;

pub(crate) use foreign::Foreign;
pub(crate) use loading::{CodingTime, Loads};
pub(crate) use size::{parse_bandwidth, parse_size};
pub(crate) use source::PlanSource;
pub(crate) use stored::StorageTier;

use tqkv::cache::{CacheSpec, PAGE_TOKENS};
use tqkv::unstable::cache::{KeyMap, map_bytes};
use tqkv::unstable::rope::Rope;
use tqkv_core::fixed::INTEGER_CODECS;
use tqkv_core::{CodecId, KvShape};
use tqkv_model::ModelError;

use crate::preset::KvCodecs;

/// The part of a model's shape that its KV cache depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers that keep keys and values.
    pub num_layers: usize,
    /// KV heads per layer.
    pub num_kv_heads: usize,
    /// Coordinates of a key, or of a latent vector with its positional part.
    pub head_dim: usize,
    /// Coordinates of a value, or of a latent vector.
    pub value_dim: usize,
    /// Coordinates of a latent vector's positional part, which stay f16; the codec of K stores the others. 0
    /// for separate keys and values.
    pub position_dim: usize,
    /// The layers that forget old tokens.
    pub windowed: Option<Windowed>,
    /// Longest sequence of the model.
    pub context: Option<u64>,
}

/// Layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windowed {
    /// Number of such layers.
    pub layers: usize,
    /// Tokens that each of them sees.
    pub tokens: u64,
}

/// Tokens that stay f16 under every codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncompressed {
    /// First tokens of the sequence.
    pub sinks: u64,
    /// Newest tokens.
    pub hot: u64,
}

/// The storage of tokens by age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Codecs of tokens that leave the window of the newest tokens.
    pub codecs: KvCodecs,
    /// Tokens that are not encoded.
    pub kept: Uncompressed,
    /// Age in tokens from which pages have other codecs, and those codecs; in ascending order.
    pub tiers: Vec<(u64, KvCodecs)>,
    /// The map of keys.
    pub key_map: KeyMap,
}

impl Life {
    /// Codecs of the oldest tokens of a long sequence.
    pub(crate) fn oldest(&self) -> KvCodecs {
        self.tiers.last().map_or(self.codecs, |(_, codecs)| *codecs)
    }
}

/// A reason why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Not JSON, or a field of the wrong type.
    #[error("not a model's config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A required field is absent or zero.
    #[error("config.json has no usable {0}")]
    Missing(&'static str),
    /// A layer of unknown kind.
    #[error(transparent)]
    Layers(#[from] ModelError),
    /// The codecs have no blocks of the head dim.
    #[error(
        "head dim {head_dim} is not one of codecs {codecs} (16 to 1024, n*2^k with n = 1, 12, 20, 28 or 36, a multiple of 16)"
    )]
    UnsupportedHeadDim {
        /// Coordinates per head vector.
        head_dim: usize,
        /// The pair asked for.
        codecs: KvCodecs,
    },
    /// The format has no block of the head dim.
    #[error("format {format} has no blocks of head dim {head_dim}")]
    NoBlock {
        /// Name of the format.
        format: &'static str,
        /// Coordinates per head vector.
        head_dim: usize,
    },
    /// A codec that [`tqkv_core::fixed`] does not have.
    #[error(
        "codec {} has no integer form: expected one of {}",
        .0.name(),
        INTEGER_CODECS.map(CodecId::name).join(", ")
    )]
    NotInteger(CodecId),
    /// A number of bytes that does not fit 64 bits.
    #[error("the cache of this shape is beyond 2^64 bytes")]
    TooLarge,
    /// A format of another program that cannot be parsed.
    #[error(
        "'{0}' is not valid: expected a name and its bytes per head vector: tq3=52, or turbo4=72,68 for keys and values"
    )]
    Foreign(String),
    /// A bandwidth that cannot be parsed.
    #[error("'{0}' is not valid: expected bytes per second with a unit, such as 2TB/s, 17GB/s or 80GiB/s")]
    Bandwidth(String),
    /// A size that cannot be parsed.
    #[error(
        "'{0}' is not valid: expected a number and a unit: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024)"
    )]
    Size(String),
}

impl CacheShape {
    /// A plain shape: every layer keeps every token.
    pub fn new(num_layers: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        let value_dim = head_dim;
        Self { num_layers, num_kv_heads, head_dim, value_dim, position_dim: 0, windowed: None, context: None }
    }

    /// Latent vectors with a positional part that stays f16.
    pub(crate) fn latent(num_layers: usize, latent_dim: usize, position_dim: usize) -> Self {
        let head_dim = latent_dim.saturating_add(position_dim);
        Self { value_dim: latent_dim, position_dim, ..Self::new(num_layers, 1, head_dim) }
    }

    /// Returns true if key and value are one latent vector.
    pub(crate) fn is_latent(&self) -> bool {
        self.position_dim > 0
    }

    /// The spec of a cache of one layer and one KV head.
    pub(crate) fn spec(&self) -> CacheSpec {
        let shape = KvShape::new(1, 1, 1, self.head_dim).with_value_dim(self.value_dim);
        let mut spec = CacheSpec::from(shape);
        spec.position_dim = self.position_dim;
        // Maps of any RoPE take the same bytes.
        spec.rope = vec![Rope::none()];
        spec
    }

    /// Coordinates of a token in one KV head of one layer.
    pub(crate) fn values_per_head(&self) -> usize {
        if self.is_latent() { self.head_dim } else { self.head_dim + self.value_dim }
    }

    /// Bytes per token in full pages of all layers and KV heads, while no window is full.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub fn bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        self.grown(codecs, self.num_layers)
    }

    /// Bytes per token once the windows are full; `None` without windows.
    ///
    /// # Errors
    /// Same as [`Self::bytes_per_token`].
    pub(crate) fn bytes_past_window(&self, codecs: KvCodecs) -> Result<Option<u64>, PlanError> {
        self.windowed.map(|windowed| self.grown(codecs, self.num_layers - windowed.layers)).transpose()
    }

    fn grown(&self, codecs: KvCodecs, layers: usize) -> Result<u64, PlanError> {
        self.in_layers(self.page_bytes(codecs)?, layers)
    }

    /// Bytes of a token in `layers` layers, with pages of `page` bytes per KV head.
    fn in_layers(&self, page: usize, layers: usize) -> Result<u64, PlanError> {
        let bytes = (page as u128 * self.num_kv_heads as u128).checked_mul(layers as u128);
        let bytes = bytes.ok_or(PlanError::TooLarge)?.div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    /// Bytes of [`PAGE_TOKENS`] tokens of one KV head.
    fn page_bytes(&self, codecs: KvCodecs) -> Result<usize, PlanError> {
        let spec = self.spec().codecs(codecs.k, codecs.v);
        let [key, other] = spec.page_bytes(0).map_err(|_| self.unsupported(codecs))?;
        Ok(key + other)
    }

    /// The error of the side (key or value) whose dim its codec does not have.
    fn unsupported(&self, codecs: KvCodecs) -> PlanError {
        let coded = if self.is_latent() { self.value_dim } else { self.head_dim };
        let keys = codecs.k.block_bytes(coded).is_none();
        PlanError::UnsupportedHeadDim { head_dim: if keys { coded } else { self.value_dim }, codecs }
    }

    /// Upper bound of the bytes of `tokens` tokens in all layers and KV heads; each tier may have one page
    /// more. Page headers are included.
    ///
    /// # Errors
    /// Same as [`Self::bytes_per_token`].
    pub fn bytes(&self, life: &Life, tokens: u64) -> Result<u64, PlanError> {
        let bytes = self.bytes_times_page(life)?(tokens).div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    /// Bytes of a number of tokens, multiplied by the tokens per page so that nothing is rounded.
    fn bytes_times_page(&self, life: &Life) -> Result<impl Fn(u64) -> u128, PlanError> {
        self.bytes_per_token(life.codecs)?;
        let mut page = self.page_bytes(life.codecs)?;
        let warm_page = (page + 2 * CacheSpec::PAGE_HEADER_BYTES) as u128;
        // The bytes that a page saves when it moves to a tier.
        let mut savings = Vec::with_capacity(life.tiers.len());
        for &(after, codecs) in &life.tiers {
            let before = std::mem::replace(&mut page, self.page_bytes(codecs)?);
            savings.push((after, before.saturating_sub(page) as u128));
        }
        let of_tokens = self.growth(warm_page, savings, life.kept);
        let of_maps = self.map_growth(life);
        Ok(move |tokens: u64| of_tokens(tokens).saturating_add(of_maps(tokens)))
    }

    /// Bytes of the maps of keys, multiplied by the tokens per page.
    fn map_growth(&self, life: &Life) -> impl Fn(u64) -> u128 + use<> {
        let has_map = life.codecs.k.is_rotated() && !self.is_latent();
        let kind = if has_map { life.key_map } else { KeyMap::Off };
        let (dim, heads) = (self.head_dim, self.num_layers as u128 * self.num_kv_heads as u128);
        let raw = life.kept.sinks.saturating_add(life.kept.hot);
        move |tokens: u64| {
            let pages = tokens.saturating_sub(raw).div_ceil(PAGE_TOKENS as u64);
            let bytes = map_bytes(kind, dim, usize::try_from(pages).unwrap_or(usize::MAX));
            (bytes as u128 * PAGE_TOKENS as u128).saturating_mul(heads)
        }
    }

    /// The same for pages of `warm_page` bytes, which shrink as they move to tiers.
    fn growth(
        &self,
        warm_page: u128,
        savings: Vec<(u64, u128)>,
        kept: Uncompressed,
    ) -> impl Fn(u64) -> u128 + use<> {
        let raw_page = (2 * self.values_per_head() * PAGE_TOKENS) as u128;
        let layer = move |tokens: u64, sinks: u64| {
            let uncompressed = sinks.saturating_add(kept.hot);
            let raw = tokens.min(uncompressed);
            let warm = u128::from(raw) * raw_page + u128::from(tokens - raw) * warm_page;
            // A page moves as a whole, once its newest token is old enough.
            let waiting = sinks.saturating_add(PAGE_TOKENS as u64 - 1);
            let saved = savings.iter().map(|(after, saving)| {
                let cold = tokens.saturating_sub(waiting.saturating_add(*after)).min(tokens - raw);
                u128::from(cold) * saving
            });
            warm - saved.sum::<u128>()
        };
        let (windowed, held) = match self.windowed {
            None => (0, 0),
            // Pages are evicted whole, and one more stays for rollbacks.
            Some(w) => (w.layers, w.tokens.saturating_add(2 * PAGE_TOKENS as u64 - 1)),
        };
        let (layers, kv_heads) = (self.num_layers, self.num_kv_heads as u128);
        move |tokens: u64| {
            let full = (layers - windowed) as u128 * layer(tokens, kept.sinks);
            // Layers with a window have no sinks.
            let bytes = full + windowed as u128 * layer(tokens.min(held), 0);
            bytes.saturating_mul(kv_heads)
        }
    }

    /// Longest context whose cache fits `memory` bytes; at most the context of the model. `u64::MAX` if
    /// windows bound every layer and the model states no context.
    ///
    /// # Errors
    /// Same as [`Self::bytes_per_token`].
    pub fn max_tokens(&self, life: &Life, memory: u64) -> Result<u64, PlanError> {
        Ok(self.longest(memory, self.bytes_times_page(life)?))
    }

    /// Largest number of tokens whose `bytes`, scaled by the tokens per page, fit `memory`.
    fn longest(&self, memory: u64, bytes: impl Fn(u64) -> u128) -> u64 {
        let fits = |tokens: u64| bytes(tokens) <= u128::from(memory) * PAGE_TOKENS as u128;
        // Beyond any memory, and far from overflow.
        let most = self.context.unwrap_or(1 << 40);
        if fits(most) {
            return self.context.unwrap_or(u64::MAX);
        }
        let (mut fitting, mut too_many) = (0, most);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_many = middle }
        }
        fitting
    }
}

impl CacheShape {
    /// Bytes of one slot in all layers and KV heads of ring caches, which store blocks without gaps.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub(crate) fn ring_bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        let (coded, other) = match self.position_dim {
            0 => (self.head_dim, codecs.v.block_bytes(self.value_dim)),
            positions => (self.value_dim, Some(2 * positions)),
        };
        let slot = codecs.k.block_bytes(coded).zip(other).map(|(key, value)| key + value);
        let slot = slot.ok_or_else(|| self.unsupported(codecs))?;
        [self.num_layers, self.num_kv_heads]
            .into_iter()
            .try_fold(slot as u64, |bytes, n| bytes.checked_mul(n as u64))
            .ok_or(PlanError::TooLarge)
    }

    /// Number of tokens that ring caches in `ram` bytes hold, with one [`tqkv_core::fixed::RingCache`] per
    /// layer and KV head. Their codecs and indices are not counted. No token is f16 there.
    ///
    /// # Errors
    /// [`PlanError::NotInteger`], and the errors of [`Self::ring_bytes_per_token`].
    pub(crate) fn ring_tokens(&self, codecs: KvCodecs, ram: u64) -> Result<u64, PlanError> {
        for codec in [codecs.k, codecs.v] {
            if !INTEGER_CODECS.contains(&codec) {
                return Err(PlanError::NotInteger(codec));
            }
        }
        Ok(ram.checked_div(self.ring_bytes_per_token(codecs)?).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;

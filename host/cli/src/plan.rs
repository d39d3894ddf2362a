//! Bytes per token of a cache, and the number of tokens that fit a memory budget.
//!
//! The bytes of a page are those that the library allocates. A running cache reports the rest of its memory
//! in its own statistics. Shapes come from a model ([`tqkv_model::ModelKv`]) or from the command line.

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

use tqkv::cache::{CacheSpec, Cold, KeyMap, LayerKind, PAGE_TOKENS};
use tqkv::unstable::cache::{learnt_map, map_bytes};
use tqkv_core::fixed::INTEGER_CODECS;
use tqkv_core::{CodecId, KvShape};
use tqkv_model::{LayerKv, ModelKv};

use crate::preset::{F16, KvCodecs};

/// The part of a model's shape that its KV cache depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// The shapes of the layers that keep keys and values, and the number of layers of each.
    pub groups: Vec<(LayerKv, usize)>,
    /// Longest sequence of the model.
    pub context: Option<u64>,
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
    /// Tokens of a ring, which takes its memory at once; see [`CacheSpec::ring`].
    pub ring: Option<u64>,
    /// Encoded tokens that single queries attend to; see [`CacheSpec::select`].
    pub select: Option<usize>,
    /// Bytes up to which all tokens are exact; see [`CacheSpec::narrow_at`].
    pub narrow_at: Option<u64>,
}

impl Life {
    /// Codecs of the oldest tokens of a long sequence.
    pub(crate) fn oldest(&self) -> KvCodecs {
        self.tiers.last().map_or(self.codecs, |(_, codecs)| *codecs)
    }

    /// The same tokens in f16.
    pub(crate) fn in_f16(&self) -> Self {
        Self { codecs: F16, tiers: Vec::new(), key_map: KeyMap::Off, narrow_at: None, ..self.clone() }
    }
}

/// A reason why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
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
        "'{0}' is not valid: expected a number and a unit: B, KB, MB, GB, TB (powers of 1000), or KiB, MiB, GiB, TiB or K, M, G, T (of 1024)"
    )]
    Size(String),
}

/// A layer of a plan.
pub(crate) trait LayerPlan: Sized {
    /// Returns true if key and value are one latent vector.
    fn is_latent(&self) -> bool;

    /// Coordinates of a token in one KV head.
    fn values_per_head(&self) -> usize;

    /// The spec of a cache of one such layer and one KV head.
    fn spec(&self) -> CacheSpec;

    /// Bytes of [`PAGE_TOKENS`] tokens of one KV head.
    fn page_bytes(&self, codecs: KvCodecs) -> Result<usize, PlanError>;

    /// Bytes of a page of one KV head besides keys and values; see [`CacheSpec::selection_bytes`].
    fn selection_bytes(&self, select: Option<usize>) -> usize;

    /// Bytes of one slot of a KV head in a ring cache of a microcontroller, which stores blocks without gaps.
    fn slot_bytes(&self, codecs: KvCodecs) -> Result<usize, PlanError>;
}

impl LayerPlan for LayerKv {
    fn is_latent(&self) -> bool {
        self.position_dim > 0
    }

    fn values_per_head(&self) -> usize {
        if self.is_latent() { self.head_dim } else { self.head_dim + self.value_dim }
    }

    fn spec(&self) -> CacheSpec {
        let shape = KvShape::new(1, 1, 1, self.head_dim).with_value_dim(self.value_dim);
        let mut spec = CacheSpec::from(shape);
        spec.position_dim = self.position_dim;
        let kinds = self.window.map(|window| vec![LayerKind::Sliding(window)]);
        spec.kinds(kinds.unwrap_or_default())
    }

    fn page_bytes(&self, codecs: KvCodecs) -> Result<usize, PlanError> {
        let spec = self.spec().codecs(codecs.k, codecs.v);
        let [key, other] = spec.page_bytes(0).map_err(|_| unsupported(self, codecs))?;
        Ok(key + other)
    }

    fn selection_bytes(&self, select: Option<usize>) -> usize {
        let spec = CacheSpec { select, ..self.spec() };
        spec.selection_bytes(0).unwrap_or_default()
    }

    fn slot_bytes(&self, codecs: KvCodecs) -> Result<usize, PlanError> {
        let (coded, other) = match self.position_dim {
            0 => (self.head_dim, codecs.v.block_bytes(self.value_dim)),
            positions => (self.value_dim, Some(2 * positions)),
        };
        let slot = codecs.k.block_bytes(coded).zip(other).map(|(key, value)| key + value);
        slot.ok_or_else(|| unsupported(self, codecs))
    }
}

/// The error of the side (key or value) whose dim its codec does not have.
fn unsupported(layer: &LayerKv, codecs: KvCodecs) -> PlanError {
    let coded = if layer.is_latent() { layer.value_dim } else { layer.head_dim };
    let keys = codecs.k.block_bytes(coded).is_none();
    PlanError::UnsupportedHeadDim { head_dim: if keys { coded } else { layer.value_dim }, codecs }
}

/// Bytes of a number of tokens, multiplied by the tokens per page so that nothing is rounded.
type Growth = Box<dyn Fn(u64) -> u128>;

/// Bytes of `page` bytes per page and KV head in `layers` layers of a shape, per token; rounded up.
fn per_token(pages: impl Iterator<Item = (usize, usize, usize)>) -> Result<u64, PlanError> {
    let of_layers = |(page, heads, layers): (usize, usize, usize)| {
        (page as u128 * heads as u128).checked_mul(layers as u128)
    };
    let all = pages.map(of_layers).try_fold(0u128, |all, bytes| all.checked_add(bytes?));
    let bytes = all.ok_or(PlanError::TooLarge)?.div_ceil(PAGE_TOKENS as u128);
    u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
}

impl CacheShape {
    /// What one of several cards keeps that share the model by tensor parallelism. Where there are fewer KV heads
    /// than cards, several cards keep the same one.
    pub(crate) fn of_card(&self, cards: u32) -> Self {
        let mut shape = self.clone();
        for (layer, _) in &mut shape.groups {
            layer.num_kv_heads = layer.num_kv_heads.div_ceil(cards as usize);
        }
        shape
    }

    /// A plain shape: every layer keeps every token.
    pub fn new(num_layers: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        let layer = LayerKv { window: None, num_kv_heads, head_dim, value_dim: head_dim, position_dim: 0 };
        Self { groups: vec![(layer, num_layers)], context: None }
    }

    /// The same shape with a window of this length in some of its layers.
    #[cfg(test)]
    pub(crate) fn with_windows(mut self, layers: usize, tokens: usize) -> Self {
        let (mut sliding, all) = self.groups[0];
        sliding.window = Some(tokens);
        self.groups[0].1 = all - layers;
        self.groups.push((sliding, layers));
        self.groups.retain(|(_, layers)| *layers > 0);
        self
    }

    /// Number of layers that keep keys and values.
    pub(crate) fn num_layers(&self) -> usize {
        self.groups.iter().map(|(_, layers)| layers).sum()
    }

    /// The shape of all layers, if they have one. Their windows may differ.
    pub(crate) fn uniform(&self) -> Option<&LayerKv> {
        let bare = |layer: &LayerKv| LayerKv { window: None, ..*layer };
        let (first, _) = self.groups.first()?;
        self.groups.iter().all(|(layer, _)| bare(layer) == bare(first)).then_some(first)
    }

    /// Layers with a window, and the tokens of the longest.
    pub(crate) fn windowed(&self) -> Option<(usize, u64)> {
        let windows =
            || self.groups.iter().filter_map(|(layer, layers)| Some((*layers, layer.window? as u64)));
        windows()
            .map(|(_, tokens)| tokens)
            .max()
            .map(|most| (windows().map(|(layers, _)| layers).sum(), most))
    }

    /// Coordinates of a token in all layers and KV heads.
    pub(crate) fn values_per_token(&self) -> f64 {
        let of_group = |(layer, layers): &(LayerKv, usize)| {
            layer.values_per_head() as f64 * layer.num_kv_heads as f64 * *layers as f64
        };
        self.groups.iter().map(of_group).sum()
    }

    /// Bytes per token in full pages of all layers and KV heads, while no window is full.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub fn bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        self.grown(codecs, |_| true)
    }

    /// Bytes per token once the windows are full; `None` without windows.
    ///
    /// # Errors
    /// Same as [`Self::bytes_per_token`].
    pub(crate) fn bytes_past_window(&self, codecs: KvCodecs) -> Result<Option<u64>, PlanError> {
        self.windowed().map(|_| self.grown(codecs, |layer| layer.window.is_none())).transpose()
    }

    fn grown(&self, codecs: KvCodecs, grows: impl Fn(&LayerKv) -> bool) -> Result<u64, PlanError> {
        let pages = self.pages(|layer| layer.page_bytes(codecs))?;
        per_token(self.counted(&pages, grows))
    }

    /// A number of each group.
    fn pages(&self, of: impl Fn(&LayerKv) -> Result<usize, PlanError>) -> Result<Vec<usize>, PlanError> {
        self.groups.iter().map(|(layer, _)| of(layer)).collect()
    }

    /// Pages, KV heads and layers of the groups that grow.
    fn counted<'a>(
        &'a self,
        pages: &'a [usize],
        grows: impl Fn(&LayerKv) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let groups = self.groups.iter().zip(pages).filter(move |((layer, _), _)| grows(layer));
        groups.map(|((layer, layers), page)| (*page, layer.num_kv_heads, *layers))
    }

    /// Upper bound of the bytes of `tokens` tokens in all layers and KV heads; each tier may have one page
    /// more. Page headers are included.
    ///
    /// # Errors
    /// Same as [`Self::bytes_per_token`].
    pub fn bytes(&self, life: &Life, tokens: u64) -> Result<u64, PlanError> {
        let bytes = self.growth(life)?(tokens).div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    fn growth(&self, life: &Life) -> Result<Growth, PlanError> {
        let Some(limit) = life.narrow_at else { return self.plain_growth(life) };
        // All tokens are exact up to the limit, and then as many as fit, until the hot window is left.
        let (exact, least) =
            (self.plain_growth(&Life { select: None, ..life.in_f16() })?, self.plain_growth(life)?);
        let limit = u128::from(limit) * PAGE_TOKENS as u128;
        Ok(Box::new(move |tokens| exact(tokens).min(limit).max(least(tokens))))
    }

    /// [`Self::growth`] of a cache that encodes all tokens behind its windows.
    fn plain_growth(&self, life: &Life) -> Result<Growth, PlanError> {
        self.bytes_per_token(life.codecs)?;
        let growths = self.groups.iter().map(|(layer, layers)| {
            let mut page = layer.page_bytes(life.codecs)?;
            let of_selection = layer.selection_bytes(life.select);
            let warm_page = (page + 2 * CacheSpec::PAGE_HEADER_BYTES + of_selection) as u128;
            // The bytes that a page saves when it moves to a tier.
            let mut savings = Vec::with_capacity(life.tiers.len());
            for &(after, codecs) in &life.tiers {
                let before = std::mem::replace(&mut page, layer.page_bytes(codecs)?);
                savings.push((after, before.saturating_sub(page) as u128));
            }
            let (of_tokens, of_maps) =
                (tokens_of(layer, (warm_page, savings), life.kept, life.ring), maps_of(layer, life));
            let heads = *layers as u128 * layer.num_kv_heads as u128;
            Ok::<_, PlanError>(move |tokens| {
                of_tokens(tokens).saturating_add(of_maps(tokens)).saturating_mul(heads)
            })
        });
        let growths: Vec<_> = growths.collect::<Result<_, _>>()?;
        let is_ring = life.ring.is_some();
        Ok(Box::new(move |tokens| {
            // A ring takes its memory at once.
            let tokens = if is_ring { BEYOND } else { tokens };
            growths.iter().map(|growth| growth(tokens)).fold(0, u128::saturating_add)
        }))
    }

    /// Bytes of the means of `select=` per token, which [`Self::bytes`] counts too.
    pub(crate) fn selection_bytes_per_token(&self, life: &Life) -> u64 {
        let of_group = |(layer, layers): &(LayerKv, usize)| {
            (*layers * layer.num_kv_heads) as u64 * layer.selection_bytes(life.select) as u64
        };
        self.groups.iter().map(of_group).sum::<u64>().div_ceil(PAGE_TOKENS as u64)
    }

    /// Bytes of the maps of keys at `tokens` tokens, which [`Self::bytes`] counts too.
    pub(crate) fn map_bytes(&self, life: &Life, tokens: u64) -> u64 {
        let of_group = |(layer, layers): &(LayerKv, usize)| {
            let heads = *layers as u128 * layer.num_kv_heads as u128;
            (maps_of(layer, life)(tokens) / PAGE_TOKENS as u128).saturating_mul(heads)
        };
        let bytes = self.groups.iter().map(of_group).fold(0, u128::saturating_add);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Longest context whose cache fits `memory` bytes; at most the context of the model. `u64::MAX` if
    /// windows bound every layer and the model states no context.
    ///
    /// # Errors
    /// Same as [`Self::bytes_per_token`].
    pub fn max_tokens(&self, life: &Life, memory: u64) -> Result<u64, PlanError> {
        Ok(self.longest(memory, self.growth(life)?))
    }

    /// Largest number of tokens whose `bytes`, scaled by the tokens per page, fit `memory`.
    fn longest(&self, memory: u64, bytes: impl Fn(u64) -> u128) -> u64 {
        let fits = |tokens: u64| bytes(tokens) <= u128::from(memory) * PAGE_TOKENS as u128;
        let most = self.context.unwrap_or(BEYOND);
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

/// Tokens beyond any memory, and far from overflow.
const BEYOND: u64 = 1 << 40;

/// Bytes of the tokens of one KV head of a layer, multiplied by the tokens per page. Pages have the first
/// number of bytes, and shrink as they move to tiers.
fn tokens_of(
    layer: &LayerKv,
    (warm_page, savings): (u128, Vec<(u64, u128)>),
    kept: Uncompressed,
    ring: Option<u64>,
) -> impl Fn(u64) -> u128 + use<> {
    let raw_page = (2 * layer.values_per_head() * PAGE_TOKENS) as u128;
    // Layers with a window of the model have no sinks.
    let sinks = if layer.window.is_some() { 0 } else { kept.sinks };
    let window = layer.window.map(|tokens| tokens as u64).into_iter().chain(ring).min();
    // Pages are evicted whole, and one more stays for rollbacks.
    let most = window.map_or(u64::MAX, |tokens| {
        let sinks = if ring.is_some() { sinks } else { 0 };
        tokens.saturating_add(2 * PAGE_TOKENS as u64 - 1).saturating_add(sinks)
    });
    move |tokens: u64| {
        let tokens = tokens.min(most);
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
    }
}

/// Bytes of the map of one KV head of a layer, multiplied by the tokens per page.
fn maps_of(layer: &LayerKv, life: &Life) -> impl Fn(u64) -> u128 + use<> {
    let demote = |(after, KvCodecs { k: key, v: value }): &(u64, KvCodecs)| {
        (*after as usize, Cold::Demote { key: *key, value: *value })
    };
    let spec = CacheSpec {
        key_map: life.key_map,
        ring: life.ring.map(|tokens| tokens as usize),
        cold: life.tiers.iter().map(demote).collect(),
        ..layer.spec().codecs(life.codecs.k, life.codecs.v)
    };
    let bytes = map_bytes(learnt_map(&spec, 0), layer.head_dim) as u128 * PAGE_TOKENS as u128;
    let raw = life.kept.sinks.saturating_add(life.kept.hot);
    move |tokens: u64| if tokens > raw { bytes } else { 0 }
}

impl From<&ModelKv> for CacheShape {
    fn from(model: &ModelKv) -> Self {
        let mut groups: Vec<(LayerKv, usize)> = Vec::new();
        for layer in model.kept() {
            match groups.iter_mut().find(|(known, _)| known == layer) {
                Some((_, layers)) => *layers += 1,
                None => groups.push((*layer, 1)),
            }
        }
        Self { groups, context: model.context }
    }
}

impl CacheShape {
    /// Bytes of one slot in all layers and KV heads of ring caches of a microcontroller.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub(crate) fn ring_bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        let mut all: u64 = 0;
        for (layer, layers) in &self.groups {
            let slot = layer.slot_bytes(codecs)? as u64;
            let bytes =
                slot.checked_mul(layer.num_kv_heads as u64).and_then(|b| b.checked_mul(*layers as u64));
            all = bytes.and_then(|bytes| all.checked_add(bytes)).ok_or(PlanError::TooLarge)?;
        }
        Ok(all)
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

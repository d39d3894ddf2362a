//! Bytes per token of a cache, and the number of tokens that fit a memory budget.
//!
//! The bytes are those of the library's own formula ([`tqkv::cache::CacheSize`]). Shapes come from a model
//! ([`tqkv_model::ModelKv`]) or from the command line.

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

use tqkv::cache::{
    Bytes, CacheSize, CacheSpec, Cold, KeyMap, LayerKind, LayerPolicy, LayerShape, PAGE_TOKENS,
};
use tqkv::error::CacheError;
use tqkv::unstable::cache::learnt_map;
use tqkv_core::fixed::INTEGER_CODECS;
use tqkv_core::{CodecId, KvShape};
use tqkv_model::{LayerKv, ModelKv};

use crate::policy::Policy;
use crate::preset::{F16, KvCodecs};

/// The part of a model's shape that its KV cache depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// The shapes of the layers that keep keys and values, and the number of layers of each.
    pub groups: Vec<(LayerKv, usize)>,
    /// Longest sequence of the model.
    pub context: Option<u64>,
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
    /// A number of bytes that does not fit 64 bits, or more heads than a cache may have.
    #[error("the cache of this shape is beyond 2^64 bytes or {MOST_HEADS} KV heads")]
    TooLarge,
    /// Settings that no cache has, or that are not planned.
    #[error("{0}")]
    Policy(String),
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

/// Limit of the library on the KV heads of all layers.
const MOST_HEADS: usize = 1 << 16;

/// A cache of a model, of which a policy decides how it keeps tokens.
#[derive(Clone, Debug)]
pub struct Plan {
    spec: CacheSpec,
    size: CacheSize,
    /// Longest sequence of the model.
    context: Option<u64>,
}

/// The same tokens in f16.
pub(crate) fn in_f16(spec: &CacheSpec) -> CacheSpec {
    let spec =
        CacheSpec { key_map: KeyMap::Off, narrow_at: None, select: None, cold: Vec::new(), ..spec.clone() };
    spec.codecs(F16.k, F16.v).layers(LayerPolicy::Uniform)
}

/// The spec whose pages are those of the oldest tokens of a long sequence.
fn oldest(spec: &CacheSpec) -> CacheSpec {
    match spec.cold.last() {
        Some(&(_, Cold::Demote { key, value })) => {
            spec.clone().codecs(key, value).layers(LayerPolicy::Uniform)
        }
        Some((_, Cold::Spill(_))) | None => spec.clone(),
    }
}

impl Plan {
    /// The plan of the same tokens in f16.
    ///
    /// # Errors
    /// [`PlanError::Policy`].
    pub fn in_f16(&self) -> Result<Self, PlanError> {
        let spec = in_f16(&self.spec);
        let size = CacheSize::of(&spec).map_err(|error| PlanError::Policy(error.to_string()))?;
        Ok(Self { spec, size, ..*self })
    }

    /// Tokens of a ring, whose memory does not grow.
    pub(crate) fn ring(&self) -> Option<u64> {
        self.spec.ring.map(|tokens| tokens as u64)
    }

    /// Upper bound of the bytes of `tokens` tokens in all layers and KV heads.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`].
    pub fn bytes(&self, tokens: u64) -> Result<u64, PlanError> {
        Some(self.at(tokens).total()).filter(|&bytes| bytes < u64::MAX).ok_or(PlanError::TooLarge)
    }

    fn at(&self, tokens: u64) -> Bytes {
        self.size.at(usize::try_from(tokens).unwrap_or(usize::MAX))
    }

    /// Bytes of the maps of keys at `tokens` tokens, which [`Plan::bytes`] counts too. 0 where no layer learns one: maps
    /// that heads get by themselves are not sure to come.
    pub(crate) fn map_bytes(&self, tokens: u64) -> u64 {
        let mut layers = 0..self.spec.shape.num_layers;
        let learns = layers.any(|layer| learnt_map(&self.spec, layer) != KeyMap::Off);
        if learns { self.at(tokens).maps } else { 0 }
    }

    /// Bytes that a token adds to full pages of all layers and KV heads, while no window is full: those of the oldest
    /// tokens, with the means of `select=`.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`].
    pub fn bytes_per_token(&self) -> Result<u64, PlanError> {
        self.grown(|kind| kind != LayerKind::None)
    }

    /// Bytes per token once the windows are full; `None` without windows.
    ///
    /// # Errors
    /// The same as [`Self::bytes_per_token`].
    pub(crate) fn bytes_past_window(&self) -> Result<Option<u64>, PlanError> {
        let slides = |layer| matches!(self.spec.kind(layer), LayerKind::Sliding(_));
        let has_windows = (0..self.spec.shape.num_layers).any(slides);
        has_windows.then(|| self.grown(|kind| kind == LayerKind::Full)).transpose()
    }

    fn grown(&self, grows: impl Fn(LayerKind) -> bool) -> Result<u64, PlanError> {
        let spec = oldest(&self.spec);
        let layers = (0..spec.shape.num_layers).filter(|&layer| grows(self.spec.kind(layer)));
        let of_layer = |layer| {
            let page = spec.page_bytes(layer)?.iter().sum::<usize>() + spec.selection_bytes(layer)?;
            Ok((page * spec.shape_at(layer).num_kv_heads) as u64)
        };
        let pages = layers.map(of_layer).sum::<Result<u64, CacheError>>();
        let pages = pages.map_err(|error| PlanError::Policy(error.to_string()))?;
        Ok(pages.div_ceil(PAGE_TOKENS as u64))
    }

    /// Longest context whose cache fits `memory` bytes; at most the context of the model. `u64::MAX` if
    /// windows bound every layer and the model states no context.
    pub fn max_tokens(&self, memory: u64) -> u64 {
        longest(self.context, |tokens| self.at(tokens).total() <= memory)
    }
}

/// Largest number of tokens that fits.
fn longest(context: Option<u64>, fits: impl Fn(u64) -> bool) -> u64 {
    let most = context.unwrap_or(BEYOND);
    if fits(most) {
        return context.unwrap_or(u64::MAX);
    }
    let (mut fitting, mut too_many) = (0, most);
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        if fits(middle) { fitting = middle } else { too_many = middle }
    }
    fitting
}

/// Tokens beyond any memory, and far from overflow.
const BEYOND: u64 = 1 << 40;

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

    /// The plan of a cache of this shape.
    ///
    /// # Errors
    /// [`PlanError`] for a policy that is not planned, and for what a cache refuses.
    pub fn plan(&self, policy: &Policy) -> Result<Plan, PlanError> {
        let spec = policy.planned(self.spec()?).map_err(PlanError::Policy)?;
        match CacheSize::of(&spec) {
            Ok(size) => Ok(Plan { spec, size, context: self.context }),
            Err(error) => Err(self
                .unsupported(&spec)
                .unwrap_or_else(|| PlanError::Policy(format!("{}: {error}", policy.name)))),
        }
    }

    /// The first layer whose dims a codec of the spec does not have.
    fn unsupported(&self, spec: &CacheSpec) -> Option<PlanError> {
        let colder = spec.cold.iter().filter_map(|(_, cold)| match *cold {
            Cold::Demote { key, value } => Some(KvCodecs { k: key, v: value }),
            Cold::Spill(_) => None,
        });
        let pairs = std::iter::once(KvCodecs { k: spec.key, v: spec.value }).chain(colder);
        let mut layers =
            pairs.flat_map(|pair| self.groups.iter().map(move |(layer, _)| layer.slot_bytes(pair)));
        layers.find_map(Result::err)
    }

    /// The spec of a cache of this shape.
    fn spec(&self) -> Result<CacheSpec, PlanError> {
        let heads = self.groups.iter().try_fold(0, |all: usize, (layer, layers)| {
            all.checked_add(layer.num_kv_heads.checked_mul(*layers)?)
        });
        let first = self.groups.first().filter(|_| heads.is_some_and(|heads| heads <= MOST_HEADS));
        let (first, _) = first.ok_or(PlanError::TooLarge)?;
        let each = || self.groups.iter().flat_map(|(layer, layers)| std::iter::repeat_n(layer, *layers));
        let shape = KvShape::new(self.num_layers(), first.num_kv_heads, first.num_kv_heads, first.head_dim);
        let mut spec = CacheSpec::from(shape.with_value_dim(first.value_dim));
        spec.position_dim = first.position_dim;
        if self.windowed().is_some() {
            let kind = |layer: &LayerKv| layer.window.map_or(LayerKind::Full, LayerKind::Sliding);
            spec.kinds = each().map(kind).collect();
        }
        if self.uniform().is_none() {
            // Query heads have no effect on bytes, but KV heads divide them.
            let heads = self.groups.iter().map(|(layer, _)| layer.num_kv_heads);
            spec.shape.num_heads = heads.fold(1, |all, heads| all * (heads / common_divisor(all, heads)));
            let shape = |layer: &LayerKv| {
                let LayerKv { num_kv_heads, head_dim, value_dim, .. } = *layer;
                LayerShape { num_kv_heads, head_dim, value_dim }
            };
            spec.layer_shapes = each().map(shape).collect();
        }
        Ok(spec)
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
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

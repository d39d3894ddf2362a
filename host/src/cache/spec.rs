//! The spec of a cache: shapes, codecs, windows and tiers.

use super::layer::{KvPair, LayerKind, LayerPolicy, LayerShape};
use super::life::{KEY_SHARE, VALUE_SHARE, centres_values, first_values};
use super::vectors::{Floats, Vectors};
use crate::error::CacheError;
use half::f16;
use std::path::PathBuf;
use tqkv_core::{AnyCodec, CodecId, KvError, KvShape, Options, life};
use tqkv_simd::Level;

/// Centring: how keys and values are stored relative to their mean. See [`crate::cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Centring {
    /// Keys and values are stored as they are.
    Off,
    /// Keys are stored less the mean of the earlier keys, and values as with `Auto`.
    On,
    /// Keys are stored less their mean if it holds at least 5 % of their energy, and values less theirs if it
    /// holds at least 45 %. Each layer and KV head decides for itself.
    #[default]
    Auto,
}

impl Centring {
    /// Least share of the keys' energy that their mean must hold to be subtracted. `None` if it never is.
    pub(crate) fn least_share_of_keys(self) -> Option<f32> {
        match self {
            Self::Off => None,
            Self::On => Some(0.0),
            Self::Auto => Some(KEY_SHARE),
        }
    }

    /// The same for values.
    pub(crate) fn least_share_of_values(self) -> Option<f32> {
        (self != Self::Off).then_some(VALUE_SHARE)
    }
}

/// Shares of the energy of a layer's keys and values from which their means are subtracted, where enough vectors are
/// there at once. `None` if they never are.
pub fn least_shares(spec: &CacheSpec, layer: usize) -> [Option<f32>; 2] {
    let of_values = spec.centring.least_share_of_values();
    [spec.centring.least_share_of_keys(), of_values.filter(|_| centres_values(spec.codecs_at(layer).1))]
}

/// Limit on the KV heads of all layers together. No model has as many, and empty ones take few megabytes, so that the
/// text of a snapshot may ask for them.
pub(super) const MOST_HEADS: usize = 1 << 16;

/// Limit on the tokens of sinks, windows and tiers, 2^40 on 64-bit machines: more than any memory holds.
pub(super) const MOST_TOKENS: usize = 1 << (usize::BITS * 5 / 8);

/// The treatment of pages whose tokens are old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cold {
    /// Pages are encoded in narrower codecs. Nested codes drop their low bits (`n4` to `n2`). Other codes are
    /// decoded and encoded again.
    Demote {
        /// Codec of cold keys.
        key: CodecId,
        /// Codec of cold values.
        value: CodecId,
    },
    /// Pages move unchanged to a file in this folder, and attention reads them from there. The file has no
    /// name, reuses its space, and vanishes with the cache. It needs a Unix system; elsewhere the cache is
    /// refused. This must be the last tier.
    Spill(PathBuf),
}

/// Number format of scores and sums when single queries meet encoded tokens, as in generation.
///
/// In chunks of eight tokens or more, tokens that all queries see encoded use the same format. The other
/// tokens are decoded to f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Queries and levels are signed bytes, and sums are exact integers. Weights have 8 bits, or 14 for
    /// codes of 8 bits. This is several times faster than f32. Results have equal bits on every machine, and
    /// logits are within 1 % of their spread.
    #[default]
    Int8,
    /// Exact levels, f32 sums.
    F32,
}

/// The map that keys go through, learnt from the sequence.
///
/// Keys go through the map before encoding and queries through its inverse, so that the error falls where
/// queries look least. Each KV head learns it from the first 128 keys after the sinks and from the
/// queries at 64 positions there. Until then keys wait uncompressed. A head that saw fewer than 16 of these
/// queries has no map. Rotated codes alone use it ([`CodecId::is_rotated`]).
///
/// A map orders the coordinates of keys in `m2` and `m3`. Where keys have no map, they are stored in `t2` and
/// `t3`, which take as many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyMap {
    /// [`KeyMap::Pairs`] in layers with keys in `m2` or `m3`, in any tier, if their cache can have maps. In other
    /// layers a head whose keys hold their energy in few pairs gets factors from its first 64 keys alone. Rings
    /// and latent vectors have no map.
    #[default]
    Auto,
    /// Keys are encoded as they are.
    Off,
    /// One factor for coordinates i and i + head_dim / 2, which RoPE rotates together in most models. With
    /// another layout the gain is smaller.
    Pairs,
}

/// Shape and policy of a [`crate::cache::KvCache`].
///
/// ```
/// use tqkv::CodecId;
/// use tqkv::cache::{CacheSpec, KvCache};
///
/// let spec = CacheSpec::new(32, 32, 8, 128).codecs(CodecId::S4, CodecId::S3).hot(64);
/// let cache = KvCache::new(spec)?;
/// assert_eq!(cache.len(), 0);
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CacheSpec {
    /// Number of layers, heads and KV heads, head dim and value dim.
    pub shape: KvShape,
    /// KV heads and dims of each layer, for models whose layers differ. Empty if all layers have those of
    /// `shape`.
    pub layer_shapes: Vec<LayerShape>,
    /// Number of trailing coordinates of the head dim that form the positional part of latent vectors
    /// ([`CacheSpec::mla`]). 0 if keys and values are separate vectors.
    pub position_dim: usize,
    /// Codec of warm keys. `F16` keeps them uncompressed.
    pub key: CodecId,
    /// Codec of warm values.
    pub value: CodecId,
    /// Layers with other codecs.
    pub layers: LayerPolicy,
    /// The tokens that each layer's queries see in the model. Empty if all layers are alike: full, or
    /// [`CacheSpec::sliding_window`].
    pub kinds: Vec<LayerKind>,
    /// Rotation seed, scale mode and effort.
    pub options: Options,
    /// Number of first tokens that stay f16 for ever, in layers that keep sinks ([`CacheSpec::sinks_at`]).
    pub sinks: usize,
    /// Number of newest tokens that stay f16. Older tokens leave in groups of four, so up to three more wait.
    /// Below 4, every token leaves at once.
    pub hot: usize,
    /// Bytes of the cache up to which no token is encoded; see [`CacheSpec::narrow_at`].
    pub narrow_at: Option<usize>,
    /// Centring of keys and values.
    pub centring: Centring,
    /// The map of keys: the option `map=` of the text.
    pub key_map: KeyMap,
    /// Number format when single queries meet encoded tokens.
    pub arithmetic: Arithmetic,
    /// Number of tokens that a query sees besides the sinks, in layers that have no entry in `kinds`. Older
    /// tokens are evicted.
    pub sliding_window: Option<usize>,
    /// Number of encoded tokens that single queries attend to; see [`CacheSpec::select`].
    pub select: Option<usize>,
    /// Number of tokens that a cache of fixed memory holds besides the sinks; see [`CacheSpec::ring`].
    pub ring: Option<usize>,
    /// Token limit of a layer, evicted tokens included. `None` allows more than any memory holds. A call that
    /// would exceed it is refused before anything changes ([`CacheError::TooLong`]).
    pub max_tokens: Option<usize>,
    /// Tiers after the warm one. Each has a number of tokens, counted from the newest, after which pages
    /// move there. These numbers must increase.
    pub cold: Vec<(usize, Cold)>,
    /// Scale of the logits; `None` is 1/sqrt(head_dim).
    pub scale: Option<f32>,
    /// Soft cap: a logit l becomes cap * tanh(l / cap).
    pub soft_cap: Option<f32>,
    /// Learned sinks, `[num_layers, num_heads]`: a logit per query head that takes weight and adds no value.
    /// Empty if the model has none.
    pub sink_logits: Vec<f32>,
    /// Instruction set; `None` is that of `TQKV_LEVEL`, or the fastest of the machine.
    pub level: Option<Level>,
}

impl From<KvShape> for CacheSpec {
    /// Uses 4-bit scalar codes, the default sinks and hot window, automatic centring, and no cold tier.
    fn from(shape: KvShape) -> Self {
        Self {
            shape,
            layer_shapes: Vec::new(),
            position_dim: 0,
            key: CodecId::S4,
            value: CodecId::S4,
            layers: LayerPolicy::Uniform,
            kinds: Vec::new(),
            options: Options::DEFAULT,
            sinks: Self::DEFAULT_SINKS,
            hot: Self::DEFAULT_HOT,
            narrow_at: None,
            centring: Centring::Auto,
            key_map: KeyMap::Auto,
            arithmetic: Arithmetic::Int8,
            sliding_window: None,
            ring: None,
            select: None,
            max_tokens: None,
            cold: Vec::new(),
            scale: None,
            soft_cap: None,
            sink_logits: Vec::new(),
            level: None,
        }
    }
}

impl CacheSpec {
    /// Default number of first tokens kept f16. Attention concentrates on them, whatever their text.
    pub const DEFAULT_SINKS: usize = life::SINKS;
    /// Default number of newest tokens kept f16.
    pub const DEFAULT_HOT: usize = life::HOT;

    /// A spec of [`KvShape::new`] with 4-bit scalar codes, the default sinks and hot window, automatic
    /// centring, and no cold tier.
    pub fn new(num_layers: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        KvShape::new(num_layers, num_heads, num_kv_heads, head_dim).into()
    }

    /// A spec for latent vectors (multi-head latent attention). Each token has two parts:
    ///
    /// * One latent vector of `latent_dim` coordinates. It is encoded once and serves as key and value of all
    ///   query heads.
    /// * A positional part of the key of `position_dim` coordinates, which stays f16.
    ///
    /// Queries are `[num_heads, latent_dim + position_dim]` and results `[num_heads, latent_dim]`. `k` is
    /// `[n, latent_dim + position_dim]` and `v` is empty. Set [`CacheSpec::scale`]: a model scales logits by
    /// the head dim that it has before absorption. The default is 1/sqrt(latent_dim + position_dim). The
    /// value codec has no effect, and nothing is centred.
    ///
    /// Attention decodes each token once for all heads. With a `position_dim` of 0, keys and values are
    /// separate vectors.
    pub fn mla(num_layers: usize, num_heads: usize, latent_dim: usize, position_dim: usize) -> Self {
        let head_dim = latent_dim.saturating_add(position_dim);
        let shape = KvShape::new(num_layers, num_heads, 1, head_dim).with_value_dim(latent_dim);
        Self { position_dim, ..shape.into() }
    }

    /// Sets the codecs of keys and values.
    #[must_use]
    pub fn codecs(mut self, key: CodecId, value: CodecId) -> Self {
        (self.key, self.value) = (key, value);
        self
    }

    /// Sets seed, scale mode and effort.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the number of first tokens that stay f16.
    #[must_use]
    pub fn sinks(mut self, tokens: usize) -> Self {
        self.sinks = tokens;
        self
    }

    /// Sets the number of newest tokens that stay f16; 0 encodes every token at once.
    #[must_use]
    pub fn hot(mut self, tokens: usize) -> Self {
        self.hot = tokens;
        self
    }

    /// Sets the centring of keys and values.
    #[must_use]
    pub fn centring(mut self, centring: Centring) -> Self {
        self.centring = centring;
        self
    }

    /// Sets the number format when single queries meet encoded tokens.
    #[must_use]
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = arithmetic;
        self
    }

    /// Sets a sliding window.
    #[must_use]
    pub fn sliding_window(mut self, tokens: usize) -> Self {
        self.sliding_window = Some(tokens);
        self
    }

    /// Makes the cache a ring: all its memory is taken when it is made, and new tokens overwrite the
    /// oldest page after the sinks.
    ///
    /// A query sees the sinks and the newest `tokens` tokens, as with [`CacheSpec::sliding_window`], and
    /// results have the same bits. Layers whose own window is shorter hold that window. The positions of
    /// rotary embeddings are the caller's: keys come with them.
    ///
    /// Appends of fewer than 256 tokens allocate nothing. Attention on one thread allocates nothing
    /// either, except over latent vectors ([`CacheSpec::mla`]). Scratch memory is lent under a lock that
    /// is held for a moment. Longer chunks and
    /// [`KvCache::attend_prefill`](super::KvCache::attend_prefill) take memory for the duration of the
    /// call. Pages in a spill file take memory while they are read. A fork is a ring with memory of its
    /// own. Maps of keys grow with the text, so a ring has none.
    #[must_use]
    pub fn ring(mut self, tokens: usize) -> Self {
        self.ring = Some(tokens);
        self
    }

    /// Lets single queries attend to about `tokens` encoded tokens, besides the sinks and the tokens that are still
    /// f16. It is not attention to all tokens, and how much it loses depends on the model and on the share that
    /// is left out.
    ///
    /// Tokens are picked anew for each query, in runs of 32, by the KV head for all its query heads. Each full page
    /// has the means of every 8 of its keys in 4 bits for that ([`CacheSpec::selection_bytes`]), and the runs that
    /// have the means with the largest logits are read. Layers with a window of their own read it in full, and so do
    /// chunks of 8 queries and more all that they see. A snapshot does not have the means, which are made
    /// again when it is restored.
    #[must_use]
    pub fn select(mut self, tokens: usize) -> Self {
        self.select = Some(tokens);
        self
    }

    /// Sets the token limit of a layer.
    #[must_use]
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Adds a tier after the present ones. A page moves there when all its tokens are older than `after`.
    #[must_use]
    pub fn cold(mut self, after: usize, cold: Cold) -> Self {
        self.cold.push((after, cold));
        self
    }

    /// Sets codecs for some layers.
    #[must_use]
    pub fn layers(mut self, policy: LayerPolicy) -> Self {
        self.layers = policy;
        self
    }

    /// Sets the tokens that each layer's queries see, one kind per layer.
    #[must_use]
    pub fn kinds(mut self, kinds: Vec<LayerKind>) -> Self {
        self.kinds = kinds;
        self
    }

    /// Sets the scale of the logits.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Sets the soft cap of the logits.
    #[must_use]
    pub fn soft_cap(mut self, cap: f32) -> Self {
        self.soft_cap = Some(cap);
        self
    }

    /// Sets learned sinks, `[num_layers, num_heads]`.
    #[must_use]
    pub fn sink_logits(mut self, logits: Vec<f32>) -> Self {
        self.sink_logits = logits;
        self
    }

    /// Sets the instruction set. `TQKV_LEVEL` has no effect then.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// The tokens that the queries of a layer see.
    pub fn kind(&self, layer: usize) -> LayerKind {
        match (self.kind_without_ring(layer), self.ring) {
            (LayerKind::Full, Some(ring)) => LayerKind::Sliding(ring),
            (LayerKind::Sliding(window), Some(ring)) => LayerKind::Sliding(window.min(ring)),
            (kind, _) => kind,
        }
    }

    /// The tokens that the queries of a layer would see without [`CacheSpec::ring`].
    pub(super) fn kind_without_ring(&self, layer: usize) -> LayerKind {
        let all = self.sliding_window.map_or(LayerKind::Full, LayerKind::Sliding);
        self.kinds.get(layer).copied().unwrap_or(all)
    }

    /// Number of first tokens that a layer keeps as f16. This is [`CacheSpec::sinks`], or 0 if the model
    /// itself has a sliding window in this layer ([`CacheSpec::kinds`]).
    pub fn sinks_at(&self, layer: usize) -> usize {
        let slides = matches!(self.kinds.get(layer), Some(LayerKind::Sliding(_)));
        if slides { 0 } else { self.sinks }
    }

    /// Scale of the logits of a layer.
    pub(crate) fn scale_at(&self, layer: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (self.shape_at(layer).head_dim as f32).sqrt())
    }

    /// Learned sinks of a layer, one per query head; empty if there are none.
    pub(crate) fn sink_logits_at(&self, layer: usize) -> &[f32] {
        self.sink_logits.chunks(self.shape.num_heads).nth(layer).unwrap_or_default()
    }

    /// Largest accepted norms of a layer's keys and values. Every vector up to this norm can be stored,
    /// whatever its direction ([`AnyCodec::max_norm`]). The bound is halved where vectors may be centred, because
    /// the mean may point the other way. It is halved again if pages are demoted to another codec, because
    /// scales grow then.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub fn max_norms(&self, layer: usize) -> Result<[f32; 2], CacheError> {
        let warm = self.make_codecs(layer, self.codecs_at(layer))?;
        let mut norms = warm.map(|codec| codec.max_norm());
        for (_, cold) in &self.cold {
            if let Cold::Demote { key, value } = *cold {
                let cold = self.make_codecs(layer, (key, value))?;
                for (norm, cold) in norms.iter_mut().zip(cold) {
                    *norm = norm.min(cold.max_norm()) / 2.0;
                }
            }
        }
        if self.centring != Centring::Off {
            norms[0] /= 2.0;
        }
        if self.centring_of_values(layer) != Centring::Off {
            norms[1] /= 2.0;
        }
        // Every vector is stored as a row of f16 first.
        Ok(norms.map(|norm| norm.min(f16::MAX.to_f32())))
    }

    /// Centring of a layer's keys. Uncompressed ones gain nothing from a mean, and latent vectors are values too.
    pub(super) fn centring_of_keys(&self, layer: usize) -> Centring {
        let plain = self.codecs_at(layer).0 == CodecId::F16 || self.position_dim > 0;
        if plain { Centring::Off } else { self.centring }
    }

    /// Centring of a layer's values. Those that are a part of the keys have no mean. With a short hot window too
    /// few are there when the first leave.
    pub(super) fn centring_of_values(&self, layer: usize) -> Centring {
        let can = self.position_dim == 0 && first_values(self.hot) > 0;
        if can && centres_values(self.codecs_at(layer).1) { self.centring } else { Centring::Off }
    }

    /// The codecs of keys and values, or of latent vectors and positional parts. They may be named for keys
    /// with a map.
    pub(super) fn make_codecs(
        &self,
        layer: usize,
        (key, value): KvPair,
    ) -> Result<[AnyCodec; 2], CacheError> {
        let make = |id: CodecId, what: &str, dim: usize| {
            AnyCodec::new(id, dim, self.options)
                .map_err(|error| CacheError::BadSpec(format!("codec {} at {what} {dim}: {error}", id.name())))
        };
        let KvShape { head_dim, value_dim, .. } = self.shape_at(layer);
        let key = self.key_codec(layer, key);
        if self.position_dim > 0 {
            let position = make(CodecId::F16, "position_dim", self.position_dim)?;
            return Ok([make(key, "latent_dim", value_dim)?, position]);
        }
        let what = if value_dim == head_dim { "head_dim" } else { "value_dim" };
        Ok([make(key, "head_dim", head_dim)?, make(value, what, value_dim)?])
    }

    /// Number of tokens in `k` and `v`; see [`KvShape::check_tokens`].
    pub(super) fn check_tokens(
        &self,
        layer: usize,
        k: Floats<'_>,
        v: Floats<'_>,
    ) -> Result<usize, CacheError> {
        if self.position_dim == 0 {
            return Ok(self.shape_at(layer).check_tokens(layer, k.len(), v.len())?);
        }
        self.shape.check_layer(layer)?;
        let (per_token, got) = (self.shape.head_dim, k.len());
        if !got.is_multiple_of(per_token) {
            return Err(KvError::NotWholeTokens { got, per_token }.into());
        }
        if v.len() == 0 {
            Ok(got / per_token)
        } else {
            Err(KvError::Length { what: "v (latent vectors are keys and values)", got: v.len(), expected: 0 }
                .into())
        }
    }

    /// Refuses more tokens than a layer may have, before any is appended.
    pub(super) fn check_length(&self, layer: usize, tokens: usize) -> Result<(), CacheError> {
        let limit = self.max_tokens.unwrap_or(MOST_TOKENS);
        if tokens > limit { Err(CacheError::TooLong { layer, tokens, limit }) } else { Ok(()) }
    }

    /// The two vectors of a token in one head, as strided views.
    pub(super) fn sides<'a>(&self, layer: usize, k: Floats<'a>, v: Floats<'a>) -> [Vectors<'a>; 2] {
        let KvShape { head_dim, value_dim, .. } = self.shape_at(layer);
        if self.position_dim > 0 {
            let position = Vectors::new(k, head_dim, value_dim, self.position_dim);
            [Vectors::new(k, head_dim, 0, value_dim), position]
        } else {
            [Vectors::new(k, head_dim, 0, head_dim), Vectors::new(v, value_dim, 0, value_dim)]
        }
    }

    /// Refuses a spec that no cache can have. A codec that lacks the head dim is not noticed here.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`], or an error of the shape.
    pub fn check(&self) -> Result<(), CacheError> {
        let bad = |why: String| Err(CacheError::BadSpec(why));
        if let Some(tokens) = self.ring.filter(|tokens| !(self.hot.max(1)..=MOST_TOKENS).contains(tokens)) {
            return bad(format!(
                "a ring of {tokens} tokens: expected {} (the hot window) to {MOST_TOKENS}",
                self.hot.max(1)
            ));
        }
        self.check_attention()?;
        self.check_selection()?;
        let num_layers = self.shape.num_layers;
        self.layers.check(num_layers)?;
        let after = self.cold.iter().map(|(after, _)| *after);
        for (what, tokens) in [("sinks", self.sinks), ("the hot window", self.hot)] {
            if tokens > MOST_TOKENS {
                return bad(format!("{what} of {tokens} tokens: expected at most {MOST_TOKENS}"));
            }
        }
        if after.clone().any(|tokens| tokens > MOST_TOKENS) || !after.is_sorted_by(|a, b| a < b) {
            return bad(format!(
                "cold tiers are not in order of age: expected each to begin after more tokens than the one \
                 before, at most {MOST_TOKENS}"
            ));
        }
        for layer in 0..num_layers {
            match self.kind(layer) {
                LayerKind::Sliding(window) if window < self.hot || window > MOST_TOKENS => {
                    return bad(format!(
                        "a sliding window of {window} tokens: expected {} (the hot window) to {MOST_TOKENS}",
                        self.hot
                    ));
                }
                LayerKind::Sliding(_) | LayerKind::Full | LayerKind::None => {}
            }
            self.check_tiers(layer)?;
            self.check_quarters(layer)?;
        }
        Ok(())
    }

    /// Refuses attention settings that neither the compressed nor the exact cache supports.
    pub(crate) fn check_attention(&self) -> Result<(), CacheError> {
        let bad = |why: String| Err(CacheError::BadSpec(why));
        self.shape.check()?;
        let KvShape { num_layers, num_heads, num_kv_heads, head_dim, value_dim, .. } = self.shape;
        // Checked before any work per layer.
        let heads = num_layers.saturating_mul(num_kv_heads);
        self.check_conflicts()?;
        self.check_layer_shapes()?;
        if heads > MOST_HEADS {
            return bad(format!("{heads} KV heads in all layers: expected at most {MOST_HEADS}"));
        }
        if self.position_dim > 0 && head_dim.checked_sub(self.position_dim) != Some(value_dim) {
            return bad(format!(
                "head_dim {head_dim} of latent vectors: expected {value_dim} (value_dim) + {} (position_dim)",
                self.position_dim
            ));
        }
        if !self.kinds.is_empty() && self.kinds.len() != num_layers {
            return bad(format!(
                "{} kinds for {num_layers} layers: expected one per layer",
                self.kinds.len()
            ));
        }
        if (0..num_layers).any(|layer| self.kind(layer) == LayerKind::Sliding(0)) {
            return bad("a sliding window of 0 tokens sees nothing".into());
        }
        if self.kinds.iter().all(|kind| *kind == LayerKind::None) && !self.kinds.is_empty() {
            return bad("no layer keeps keys and values".into());
        }
        if !self.sink_logits.is_empty() && self.sink_logits.len() != num_layers * num_heads {
            let wanted = num_layers * num_heads;
            return bad(format!(
                "{} sink logits: expected {wanted}, one per query head",
                self.sink_logits.len()
            ));
        }
        if self.sink_logits.iter().any(|logit| !logit.is_finite()) {
            return bad("sink logits must be finite".into());
        }
        if self.scale.is_some_and(|scale| !scale.is_finite()) {
            return bad("the scale of the logits must be finite".into());
        }
        if self.soft_cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return bad("a soft cap must be finite and above 0".into());
        }
        Ok(())
    }

    /// Refuses tiers that the pages of a layer cannot move through.
    fn check_tiers(&self, layer: usize) -> Result<(), CacheError> {
        let (mut key, mut value) = self.named_codecs(layer);
        for (i, (_, cold)) in self.cold.iter().enumerate() {
            match *cold {
                Cold::Demote { key: cold_key, value: cold_value } => {
                    let latent = self.position_dim > 0;
                    let shape = self.shape_at(layer);
                    if self.key_codec(layer, key) != self.key_codec(layer, cold_key) {
                        let dim = if latent { shape.value_dim } else { shape.head_dim };
                        check_demotion(key, cold_key, dim)?;
                    }
                    if !latent {
                        check_demotion(value, cold_value, shape.value_dim)?;
                    }
                    (key, value) = (cold_key, cold_value);
                }
                Cold::Spill(_) if i + 1 < self.cold.len() => {
                    return Err(CacheError::BadSpec(
                        "a tier is behind the spill file: expected the file to be the last tier".into(),
                    ));
                }
                Cold::Spill(_) => {}
            }
        }
        Ok(())
    }
}

/// Refuses a demotion from one codec to another that makes no sense.
///
/// Encoding again adds the errors of both codecs. From a trellis code to the one with one bit less, the first
/// error is already a quarter of the second. The result is then a fifth worse than the narrow codec alone. From
/// `m3` to `m2` the quarter that matters most keeps its four bits.
fn check_demotion(warm: CodecId, cold: CodecId, dim: usize) -> Result<(), CacheError> {
    let trellis = |id: CodecId| id.trellis().is_some();
    let refused = if cold == warm {
        return Ok(());
    } else if warm.rotates_quarters() && !cold.rotates_quarters() {
        "a code of quarters goes cold as another one"
    } else if cold.is_rotated() != warm.is_rotated() {
        "both must be rotated or both unrotated"
    } else if cold.of_one_width().block_bytes(dim) >= warm.of_one_width().block_bytes(dim) {
        "that would not save bytes: expected a codec with fewer bits"
    } else if trellis(warm) && trellis(cold) && !cold.rotates_quarters() && cold.bits() + 1 == warm.bits() {
        "a trellis code with one bit less adds a fifth of error: expected two bits less, or the same codec"
    } else {
        return Ok(());
    };
    Err(CacheError::BadSpec(format!("{} pages cannot go cold as {}: {refused}", warm.name(), cold.name())))
}

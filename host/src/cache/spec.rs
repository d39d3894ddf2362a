//! What a cache is built from: shapes, codecs and the life of a token.

use super::layer::{KvPair, LayerKind, LayerPolicy};
use super::vectors::{Floats, Vectors};
use crate::error::CacheError;
use half::f16;
use std::path::PathBuf;
use tqkv_core::{AnyCodec, CodecId, KvError, KvShape, Options};
use tqkv_simd::Level;

/// Whether keys are stored as k - mu; see the module documentation of [`crate::cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Centring {
    /// Keys are stored as they are.
    Off,
    /// The mean of the keys so far is subtracted.
    On,
    /// As `On` where the mean holds at least [`AUTO_SHARE`] of the keys' energy, else as `Off`;
    /// decided for every layer and KV head.
    #[default]
    Auto,
}

/// Share of the energy in the mean from which [`Centring::Auto`] centres.
///
/// Subtracting a mean with a share s of the energy divides the squared error by 1 / (1 - s), so
/// below a few percent the gain is smaller than the spread between rotation seeds.
pub const AUTO_SHARE: f32 = 0.05;

/// Keys whose mean becomes the first mu. They wait uncompressed until there are that many.
pub const MEAN_TOKENS: usize = 64;

/// Most KV heads of all layers together.
const MOST_HEADS: usize = 1 << 20;

/// Most tokens of sinks, windows and tiers: more than any memory holds.
pub(super) const MOST_TOKENS: usize = 1 << 40;

/// Where tokens go when they are old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cold {
    /// Into narrower codecs: nested codes drop their low bits (`n4` to `n2`), others are decoded
    /// and encoded again.
    Demote {
        /// Codec of cold keys.
        key: CodecId,
        /// Codec of cold values.
        value: CodecId,
    },
    /// Unchanged into a file in this folder, from which attention reads them. The file has no name, uses its
    /// room again, and vanishes with the cache. On Unix systems only; elsewhere the cache is refused. The
    /// last tier.
    Spill(PathBuf),
}

/// In which numbers queries meet encoded tokens one at a time, as in generation.
///
/// Chunks of eight tokens and more read what all their queries see encoded in the same numbers; the rest is
/// decoded to f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Queries and levels as signed bytes, weights of 14 bits, exact integer sums: several times
    /// faster, equal to the bit on every machine, logits within 1 % of their spread.
    #[default]
    Int8,
    /// Exact levels, f32 sums.
    F32,
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
#[non_exhaustive]
pub struct CacheSpec {
    /// Layers, heads, head dim.
    pub shape: KvShape,
    /// Of the head dim, how many coordinates at the end are the positional part of latent vectors; 0 where
    /// keys and values are vectors of their own ([`CacheSpec::mla`]).
    pub position_dim: usize,
    /// Codec of warm keys. `F16` keeps everything uncompressed.
    pub key: CodecId,
    /// Codec of warm values.
    pub value: CodecId,
    /// Layers with other codecs.
    pub layers: LayerPolicy,
    /// What each layer's queries see in the model; empty where all are alike ([`CacheSpec::sliding_window`]
    /// or full).
    pub kinds: Vec<LayerKind>,
    /// Rotation seed, scale mode, effort.
    pub options: Options,
    /// First tokens of the sequence, kept f16 for ever, in the layers of [`CacheSpec::sinks_at`].
    pub sinks: usize,
    /// Newest tokens, kept f16. Older ones leave in fours, so up to three more wait; below 4, every token
    /// leaves at once.
    pub hot: usize,
    /// Key centring.
    pub centring: Centring,
    /// Numbers in which single queries meet encoded tokens.
    pub arithmetic: Arithmetic,
    /// Tokens that a query sees besides the sinks in layers without a kind of their own; older ones are
    /// evicted.
    pub sliding_window: Option<usize>,
    /// Most tokens that a layer may have, evicted ones included; `None` is more than any memory holds. What
    /// would be beyond it is refused before anything changes ([`CacheError::TooLong`]).
    pub max_tokens: Option<usize>,
    /// Tiers behind the warm one: tokens after which pages go there, counted from the newest, and how. Each
    /// is older than the one before it.
    pub cold: Vec<(usize, Cold)>,
    /// Factor of the logits; `None` is 1/sqrt(head_dim).
    pub scale: Option<f32>,
    /// Logits l become cap * tanh(l / cap).
    pub soft_cap: Option<f32>,
    /// Learned sinks: a logit for each query head of each layer that takes weight and adds no value,
    /// `[num_layers, num_heads]`; empty where there are none.
    pub sink_logits: Vec<f32>,
    /// Runs of 32 encoded values are skipped in which no token weighs more than this share of the largest
    /// weight so far; 0 skips nothing. Of effect on queries one at a time.
    pub sparse_values: f32,
    /// Instruction set; `None` is the one that `TQKV_LEVEL` names, or the fastest of the machine.
    pub level: Option<Level>,
}

impl From<KvShape> for CacheSpec {
    /// 4-bit scalar codes, the default sinks and hot window, automatic centring, no cold tier.
    fn from(shape: KvShape) -> Self {
        Self {
            shape,
            position_dim: 0,
            key: CodecId::S4,
            value: CodecId::S4,
            layers: LayerPolicy::Uniform,
            kinds: Vec::new(),
            options: Options::DEFAULT,
            sinks: Self::DEFAULT_SINKS,
            hot: Self::DEFAULT_HOT,
            centring: Centring::Auto,
            arithmetic: Arithmetic::Int8,
            sliding_window: None,
            max_tokens: None,
            cold: Vec::new(),
            scale: None,
            soft_cap: None,
            sink_logits: Vec::new(),
            sparse_values: 0.0,
            level: None,
        }
    }
}

impl CacheSpec {
    /// First tokens kept f16 unless asked otherwise: attention gathers on them, whatever they say.
    pub const DEFAULT_SINKS: usize = 4;
    /// Newest tokens kept f16 unless asked otherwise.
    pub const DEFAULT_HOT: usize = 64;

    /// [`KvShape::new`] with 4-bit scalar codes, the default sinks and hot window, automatic centring, no
    /// cold tier.
    pub fn new(num_layers: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        KvShape::new(num_layers, num_heads, num_kv_heads, head_dim).into()
    }

    /// A cache of latent vectors (multi-head latent attention): each token has one vector of `latent_dim`
    /// coordinates, which is encoded once and is key and value of all query heads, and a positional part of
    /// the key, `position_dim` coordinates that stay f16. Queries are
    /// `[num_heads, latent_dim + position_dim]`, results `[num_heads, latent_dim]`; `k` is
    /// `[n, latent_dim + position_dim]`, `v` empty. Logits are scaled by 1/sqrt of the whole unless
    /// [`CacheSpec::scale`] says otherwise, which it should: a model scales by the head dim that it has
    /// before absorption. The codec of values is of no effect, and nothing is centred.
    ///
    /// Attention decodes each token once for all heads. With a `position_dim` of 0 keys and values are
    /// vectors of their own.
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

    /// Sets key centring.
    #[must_use]
    pub fn centring(mut self, centring: Centring) -> Self {
        self.centring = centring;
        self
    }

    /// Sets the numbers in which single queries meet encoded tokens.
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

    /// Sets the most tokens that a layer may have.
    #[must_use]
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Adds a tier behind those there are: pages go there when all their tokens are older than `after`.
    #[must_use]
    pub fn cold(mut self, after: usize, cold: Cold) -> Self {
        self.cold.push((after, cold));
        self
    }

    /// Sets codecs by layer.
    #[must_use]
    pub fn layers(mut self, policy: LayerPolicy) -> Self {
        self.layers = policy;
        self
    }

    /// Sets what each layer's queries see, one kind a layer.
    #[must_use]
    pub fn kinds(mut self, kinds: Vec<LayerKind>) -> Self {
        self.kinds = kinds;
        self
    }

    /// Sets the factor of the logits.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Sets a soft cap of the logits.
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

    /// Sets the share of the largest weight below which values are skipped.
    #[must_use]
    pub fn sparse_values(mut self, share: f32) -> Self {
        self.sparse_values = share;
        self
    }

    /// Sets the instruction set, whatever `TQKV_LEVEL` says.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// What the queries of a layer see.
    pub fn kind(&self, layer: usize) -> LayerKind {
        let all = self.sliding_window.map_or(LayerKind::Full, LayerKind::Sliding);
        self.kinds.get(layer).copied().unwrap_or(all)
    }

    /// First tokens that a layer keeps as f16: [`CacheSpec::sinks`], and none where the model itself slides
    /// ([`CacheSpec::kinds`]), as its queries see none beside their window.
    pub fn sinks_at(&self, layer: usize) -> usize {
        let slides = matches!(self.kinds.get(layer), Some(LayerKind::Sliding(_)));
        if slides { 0 } else { self.sinks }
    }

    /// Codecs of a layer's warm keys and values.
    pub fn codecs_at(&self, layer: usize) -> (CodecId, CodecId) {
        self.layers.codecs(layer, self.shape.num_layers, (self.key, self.value))
    }

    /// Largest norms of a layer's keys and values: every such vector can be stored, whatever its direction
    /// ([`AnyCodec::max_norm`]). Half of that where keys are centred, as the mean may point the other way,
    /// and half where pages go cold in another codec, as scales grow then.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub fn max_norms(&self, layer: usize) -> Result<[f32; 2], CacheError> {
        let warm = self.make_codecs(self.codecs_at(layer))?;
        let mut norms = warm.map(|codec| codec.max_norm());
        for (_, cold) in &self.cold {
            if let Cold::Demote { key, value } = *cold {
                let cold = self.make_codecs((key, value))?;
                for (norm, cold) in norms.iter_mut().zip(cold) {
                    *norm = norm.min(cold.max_norm()) / 2.0;
                }
            }
        }
        if self.centring != Centring::Off {
            norms[0] /= 2.0;
        }
        // Every vector is a row of f16 first.
        Ok(norms.map(|norm| norm.min(f16::MAX.to_f32())))
    }

    /// The codecs of keys and of values, or of latent vectors and of positional parts.
    pub(super) fn make_codecs(&self, (key, value): KvPair) -> Result<[AnyCodec; 2], CacheError> {
        let make = |id: CodecId, what: &str, dim: usize| {
            AnyCodec::new(id, dim, self.options)
                .map_err(|error| CacheError::BadSpec(format!("codec {} at {what} {dim}: {error}", id.name())))
        };
        let KvShape { head_dim, value_dim, .. } = self.shape;
        if self.position_dim > 0 {
            let position = make(CodecId::F16, "position_dim", self.position_dim)?;
            return Ok([make(key, "latent_dim", value_dim)?, position]);
        }
        let what = if value_dim == head_dim { "head_dim" } else { "value_dim" };
        Ok([make(key, "head_dim", head_dim)?, make(value, what, value_dim)?])
    }

    /// Tokens in `k` and `v`; as [`KvShape::check_tokens`].
    pub(super) fn check_tokens(
        &self,
        layer: usize,
        k: Floats<'_>,
        v: Floats<'_>,
    ) -> Result<usize, CacheError> {
        if self.position_dim == 0 {
            return Ok(self.shape.check_tokens(layer, k.len(), v.len())?);
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

    /// Refuses a layer of more tokens than it may have; they are counted before any is taken up.
    pub(super) fn check_length(&self, layer: usize, tokens: usize) -> Result<(), CacheError> {
        let limit = self.max_tokens.unwrap_or(MOST_TOKENS);
        if tokens > limit { Err(CacheError::TooLong { layer, tokens, limit }) } else { Ok(()) }
    }

    /// The two kinds of vectors that a token of one head has.
    pub(super) fn sides<'a>(&self, k: Floats<'a>, v: Floats<'a>) -> [Vectors<'a>; 2] {
        let KvShape { head_dim, value_dim, .. } = self.shape;
        if self.position_dim > 0 {
            let position = Vectors::new(k, head_dim, value_dim, self.position_dim);
            [Vectors::new(k, head_dim, 0, value_dim), position]
        } else {
            [Vectors::new(k, head_dim, 0, head_dim), Vectors::new(v, value_dim, 0, value_dim)]
        }
    }

    /// Refuses what no cache can be.
    pub(super) fn check(&self) -> Result<(), CacheError> {
        let bad = |why: String| Err(CacheError::BadSpec(why));
        self.check_attention()?;
        let num_layers = self.shape.num_layers;
        self.layers.check(num_layers)?;
        let after = self.cold.iter().map(|(after, _)| *after);
        for (what, tokens) in [("sinks", self.sinks), ("the hot window", self.hot)] {
            if tokens > MOST_TOKENS {
                return bad(format!("{what} of {tokens} tokens; accepted are up to {MOST_TOKENS}"));
            }
        }
        if after.clone().any(|tokens| tokens > MOST_TOKENS) || !after.is_sorted_by(|a, b| a < b) {
            return bad(format!("cold tiers begin after ever more tokens, at most {MOST_TOKENS}"));
        }
        for layer in 0..num_layers {
            match self.kind(layer) {
                LayerKind::Sliding(window) if window < self.hot || window > MOST_TOKENS => {
                    return bad(format!(
                        "a sliding window of {window} tokens; accepted are {} (the hot window) to {MOST_TOKENS}",
                        self.hot
                    ));
                }
                LayerKind::Sliding(_) | LayerKind::Full | LayerKind::None => {}
            }
            self.check_tiers(layer)?;
        }
        if !(0.0..1.0).contains(&self.sparse_values) {
            return bad(format!(
                "values are skipped below a share of {}; accepted are 0 to 1",
                self.sparse_values
            ));
        }
        Ok(())
    }

    /// Refuses an attention that no cache computes, compressed or exact.
    pub(crate) fn check_attention(&self) -> Result<(), CacheError> {
        let bad = |why: String| Err(CacheError::BadSpec(why));
        self.shape.check()?;
        let KvShape { num_layers, num_heads, num_kv_heads, head_dim, value_dim, .. } = self.shape;
        // Before anything is done for each layer.
        let heads = num_layers.saturating_mul(num_kv_heads);
        if heads > MOST_HEADS {
            return bad(format!("{heads} KV heads in all layers; accepted are up to {MOST_HEADS}"));
        }
        if self.position_dim > 0 && head_dim.checked_sub(self.position_dim) != Some(value_dim) {
            return bad(format!(
                "head_dim {head_dim} of latent vectors; accepted is {value_dim} (value_dim) + {} (position_dim)",
                self.position_dim
            ));
        }
        if !self.kinds.is_empty() && self.kinds.len() != num_layers {
            return bad(format!(
                "{} kinds for {num_layers} layers; accepted is one a layer",
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
                "{} sink logits; accepted are {wanted}, one a query head",
                self.sink_logits.len()
            ));
        }
        if self.sink_logits.iter().any(|logit| !logit.is_finite()) {
            return bad("sink logits must be finite".into());
        }
        if self.scale.is_some_and(|scale| !scale.is_finite()) {
            return bad("the factor of the logits must be finite".into());
        }
        if self.soft_cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return bad("a soft cap must be finite and above 0".into());
        }
        Ok(())
    }

    /// Refuses tiers that a layer's pages cannot go through.
    fn check_tiers(&self, layer: usize) -> Result<(), CacheError> {
        let (mut key, mut value) = self.codecs_at(layer);
        for (i, (_, cold)) in self.cold.iter().enumerate() {
            match *cold {
                Cold::Demote { key: cold_key, value: cold_value } => {
                    let latent = self.position_dim > 0;
                    let dim = if latent { self.shape.value_dim } else { self.shape.head_dim };
                    check_demotion(key, cold_key, dim)?;
                    if !latent {
                        check_demotion(value, cold_value, self.shape.value_dim)?;
                    }
                    (key, value) = (cold_key, cold_value);
                }
                Cold::Spill(_) if i + 1 < self.cold.len() => {
                    return Err(CacheError::BadSpec("a tier behind the spill file; accepted is none".into()));
                }
                Cold::Spill(_) => {}
            }
        }
        Ok(())
    }
}

/// Which codecs a page may be encoded again in.
///
/// Encoding again adds the errors of both codecs. From one trellis to the next narrower one that ratio is so
/// bad (a quarter of the error is there already) that the result is a fifth worse than the narrow codec
/// alone.
fn check_demotion(warm: CodecId, cold: CodecId, dim: usize) -> Result<(), CacheError> {
    let trellis = |id: CodecId| id.trellis().is_some();
    let refused = if cold == warm {
        return Ok(());
    } else if cold.is_rotated() != warm.is_rotated() {
        "both must be rotated or both unrotated"
    } else if cold.block_bytes(dim) >= warm.block_bytes(dim) {
        "that would take more bytes for no less error; accepted are fewer bits"
    } else if trellis(warm) && trellis(cold) && cold.bits() + 1 == warm.bits() {
        "trellis codes lose a fifth when one bit is dropped; drop two, or stay"
    } else {
        return Ok(());
    };
    Err(CacheError::BadSpec(format!("{} pages cannot go cold as {}: {refused}", warm.name(), cold.name())))
}

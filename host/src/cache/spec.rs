//! What a cache is built from: shapes, codecs and the life of a token.

use crate::error::CacheError;
use half::f16;
use std::path::PathBuf;
use tqkv_core::{AnyCodec, CodecId, KvShape, Options};
use tqkv_simd::Level;

/// Whether keys are stored as k - mu; see the module documentation of [`crate::cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Centring {
    /// Keys are stored as they are.
    Off,
    /// The mean of the first keys is subtracted.
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

/// Keys whose mean becomes mu. They wait uncompressed until there are that many.
pub const MEAN_TOKENS: usize = 64;

/// Where tokens go when they have been warm for long.
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
    /// Unchanged into a file in this folder that is mapped into memory. The file has no name and
    /// vanishes with the cache. On Unix systems only; elsewhere the cache is refused.
    Spill(PathBuf),
}

/// In which numbers queries meet encoded tokens one at a time, as in generation.
///
/// Chunks of eight tokens and more are decoded to f32 either way.
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
/// use tqkv::cache::{CacheSpec, KvCache};
/// use tqkv_core::CodecId;
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
    /// Codec of warm keys. `F16` keeps everything uncompressed.
    pub key: CodecId,
    /// Codec of warm values.
    pub value: CodecId,
    /// Rotation seed, scale mode, effort.
    pub options: Options,
    /// First tokens of the sequence, kept f16 for ever.
    pub sinks: usize,
    /// Newest tokens, kept f16. Older ones leave in fours, so up to three more wait; below 4, every token
    /// leaves at once.
    pub hot: usize,
    /// Key centring.
    pub centring: Centring,
    /// Numbers in which single queries meet encoded tokens.
    pub arithmetic: Arithmetic,
    /// Tokens that a query sees besides the sinks; older ones are evicted.
    pub sliding_window: Option<usize>,
    /// Tokens after which warm pages go cold, counted from the newest token, and how.
    pub cold: Option<(usize, Cold)>,
    /// Instruction set; `None` is the one that `TQKV_LEVEL` names, or the fastest of the machine.
    pub level: Option<Level>,
}

impl From<KvShape> for CacheSpec {
    /// 4-bit scalar codes, the default sinks and hot window, automatic centring, no cold tier.
    fn from(shape: KvShape) -> Self {
        Self {
            shape,
            key: CodecId::S4,
            value: CodecId::S4,
            options: Options::DEFAULT,
            sinks: Self::DEFAULT_SINKS,
            hot: Self::DEFAULT_HOT,
            centring: Centring::Auto,
            arithmetic: Arithmetic::Int8,
            sliding_window: None,
            cold: None,
            level: None,
        }
    }
}

impl CacheSpec {
    /// First tokens kept f16 unless asked otherwise: attention gathers on them, whatever they say.
    pub const DEFAULT_SINKS: usize = 4;
    /// Newest tokens kept f16 unless asked otherwise.
    pub const DEFAULT_HOT: usize = 64;

    /// [`KvShape::new`] with 4-bit scalar codes, the default sinks and hot window, automatic centring, no cold tier.
    pub fn new(num_layers: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        KvShape::new(num_layers, num_heads, num_kv_heads, head_dim).into()
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

    /// Sets the cold tier.
    #[must_use]
    pub fn cold(mut self, after: usize, cold: Cold) -> Self {
        self.cold = Some((after, cold));
        self
    }

    /// Sets the instruction set, whatever `TQKV_LEVEL` says.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// Largest norms of a key and of a value: every such vector can be stored, whatever its direction
    /// ([`AnyCodec::max_norm`]). Half of that where keys are centred, as the mean may point the other way, and half where
    /// pages go cold in another codec, as scales grow then.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub fn max_norms(&self) -> Result<[f32; 2], CacheError> {
        let (key, value) = self.codecs_of(self.key, self.value)?;
        let mut norms = [key.max_norm(), value.max_norm()];
        if let Some((_, Cold::Demote { key, value })) = &self.cold {
            let (key, value) = self.codecs_of(*key, *value)?;
            for (norm, cold) in norms.iter_mut().zip([key, value]) {
                *norm = norm.min(cold.max_norm()) / 2.0;
            }
        }
        if self.centring != Centring::Off {
            norms[0] /= 2.0;
        }
        // Every vector is a row of f16 first.
        Ok(norms.map(|norm| norm.min(f16::MAX.to_f32())))
    }

    /// Checks the shape and makes the codecs of keys and values.
    pub(super) fn codecs_of(&self, key: CodecId, value: CodecId) -> Result<(AnyCodec, AnyCodec), CacheError> {
        let dim = self.shape.head_dim;
        let make = |id: CodecId| {
            AnyCodec::new(id, dim, self.options).map_err(|error| {
                CacheError::BadSpec(format!("codec {} at head_dim {dim}: {error}", id.name()))
            })
        };
        Ok((make(key)?, make(value)?))
    }

    /// Refuses shapes that no cache can have.
    pub(super) fn check(&self) -> Result<(), CacheError> {
        self.shape.check()?;
        match self.sliding_window {
            Some(0) => Err(CacheError::BadSpec("a sliding window of 0 tokens sees nothing".into())),
            Some(window) if window < self.hot => Err(CacheError::BadSpec(format!(
                "the hot window of {} tokens is longer than the sliding window of {window}",
                self.hot
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

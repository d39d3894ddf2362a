//! How many bytes a token of cache takes, and how many tokens a memory budget holds.
//!
//! A page's bytes are those that the library allocates; what a running cache holds beside full pages is in its own
//! statistics. Shapes come from a model's `config.json` ([`config`]) or the command line.

mod config;
mod size;

pub(crate) use size::parse_size;

use tqkv::cache::{CacheSpec, PAGE_TOKENS};
use tqkv_core::fixed::INTEGER_CODECS;
use tqkv_core::{CodecId, KvShape};
use tqkv_model::ModelError;

use crate::preset::KvCodecs;

/// The part of a model's shape that its KV cache depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// Layers that keep keys and values.
    pub(crate) num_layers: usize,
    /// KV heads per layer.
    pub(crate) num_kv_heads: usize,
    /// Coordinates of a key.
    pub(crate) head_dim: usize,
    /// Coordinates of a value.
    pub(crate) value_dim: usize,
    /// Whether keys and values are one latent vector, which the codec of K keeps.
    pub(crate) latent: bool,
    /// The layers that forget old tokens.
    pub(crate) windowed: Option<Windowed>,
    /// Longest sequence that the model is made for.
    pub(crate) context: Option<u64>,
}

/// Layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windowed {
    /// How many of all layers.
    pub(crate) layers: usize,
    /// Tokens that each sees.
    pub(crate) tokens: u64,
}

/// Tokens that are kept as f16 whatever the codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uncompressed {
    /// First tokens of the sequence.
    pub(crate) sinks: u64,
    /// Newest tokens.
    pub(crate) hot: u64,
}

/// What tokens are kept as, by their age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// Codecs of tokens that leave the window of newest ones.
    pub(crate) codecs: KvCodecs,
    /// Tokens that are not encoded.
    pub(crate) kept: Uncompressed,
    /// Tokens after which pages have other codecs, counted from the newest, from the fewest to the most.
    pub(crate) tiers: Vec<(u64, KvCodecs)>,
}

impl Life {
    /// Codecs of the oldest tokens of a long sequence.
    pub(crate) fn oldest(&self) -> KvCodecs {
        self.tiers.last().map_or(self.codecs, |(_, codecs)| *codecs)
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PlanError {
    /// Not JSON, or a field of the wrong type.
    #[error("not a model's config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A field that is needed and absent, or zero.
    #[error("config.json has no usable {0}")]
    Missing(&'static str),
    /// Layers of which is not known what they keep.
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
    /// A codec that [`tqkv_core::fixed`] does not have.
    #[error(
        "codec {} has no integer form, accepted are {}",
        .0.name(),
        INTEGER_CODECS.map(CodecId::name).join(", ")
    )]
    NotInteger(CodecId),
    /// More bytes than 64 bits count.
    #[error("the cache of this shape is beyond 2^64 bytes")]
    TooLarge,
    /// A size that cannot be read.
    #[error(
        "'{0}' is not a size, accepted are a number and a unit: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024)"
    )]
    Size(String),
}

impl CacheShape {
    /// A plain shape: every layer keeps every token.
    pub(crate) fn new(num_layers: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        let value_dim = head_dim;
        Self { num_layers, num_kv_heads, head_dim, value_dim, latent: false, windowed: None, context: None }
    }

    /// Coordinates that a token has in a KV head of a layer.
    pub(crate) fn values_per_head(&self) -> usize {
        if self.latent { self.head_dim } else { self.head_dim + self.value_dim }
    }

    /// Bytes that a token adds in full pages of all layers and KV heads, while no window is full.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub(crate) fn bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        self.grown(codecs, self.num_layers)
    }

    /// The same once the windows are full, where there are some.
    ///
    /// # Errors
    /// As [`Self::bytes_per_token`].
    pub(crate) fn bytes_past_window(&self, codecs: KvCodecs) -> Result<Option<u64>, PlanError> {
        self.windowed.map(|windowed| self.grown(codecs, self.num_layers - windowed.layers)).transpose()
    }

    fn grown(&self, codecs: KvCodecs, layers: usize) -> Result<u64, PlanError> {
        let bytes =
            (self.page_bytes(codecs)? as u128 * self.num_kv_heads as u128).checked_mul(layers as u128);
        let bytes = bytes.ok_or(PlanError::TooLarge)?.div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    /// Bytes of [`PAGE_TOKENS`] tokens of one KV head.
    fn page_bytes(&self, codecs: KvCodecs) -> Result<usize, PlanError> {
        let shape = KvShape::new(1, 1, 1, self.head_dim).with_value_dim(self.value_dim);
        let [key, value] = CacheSpec::from(shape)
            .codecs(codecs.k, codecs.v)
            .page_bytes(0)
            .map_err(|_| self.unsupported(codecs))?;
        Ok(if self.latent { key } else { key + value })
    }

    /// The error of the side whose dim a codec does not have.
    fn unsupported(&self, codecs: KvCodecs) -> PlanError {
        let keys = codecs.k.block_bytes(self.head_dim).is_none();
        PlanError::UnsupportedHeadDim { head_dim: if keys { self.head_dim } else { self.value_dim }, codecs }
    }

    /// Bytes of `tokens` tokens of all layers and KV heads, at most: each tier may have a page more.
    ///
    /// # Errors
    /// As [`Self::bytes_per_token`].
    pub(crate) fn bytes(&self, life: &Life, tokens: u64) -> Result<u64, PlanError> {
        let bytes = self.bytes_times_page(life)?(tokens).div_ceil(PAGE_TOKENS as u128);
        u64::try_from(bytes).map_err(|_| PlanError::TooLarge)
    }

    /// The bytes of a number of tokens, times the tokens of a page, so that nothing is rounded.
    fn bytes_times_page(&self, life: &Life) -> Result<impl Fn(u64) -> u128, PlanError> {
        self.bytes_per_token(life.codecs)?;
        let mut page = self.page_bytes(life.codecs)?;
        let warm_page = page as u128;
        // What a page saves where it goes to a tier.
        let mut savings = Vec::with_capacity(life.tiers.len());
        for &(after, codecs) in &life.tiers {
            let before = std::mem::replace(&mut page, self.page_bytes(codecs)?);
            savings.push((after, before.saturating_sub(page) as u128));
        }
        let raw_page = (2 * self.values_per_head() * PAGE_TOKENS) as u128;
        let kept = life.kept;
        let uncompressed = kept.sinks.saturating_add(kept.hot);
        let layer = move |tokens: u64| {
            let raw = tokens.min(uncompressed);
            let warm = u128::from(raw) * raw_page + u128::from(tokens - raw) * warm_page;
            // Pages go on whole, once their newest token is old enough.
            let waiting = kept.sinks.saturating_add(PAGE_TOKENS as u64 - 1);
            let saved = savings.iter().map(|(after, saving)| {
                let cold = tokens.saturating_sub(waiting.saturating_add(*after)).min(tokens - raw);
                u128::from(cold) * saving
            });
            warm - saved.sum::<u128>()
        };
        let (windowed, held) = match self.windowed {
            None => (0, 0),
            // Pages are evicted whole, and one more is kept for rollbacks.
            Some(w) => {
                (w.layers, w.tokens.saturating_add(kept.sinks).saturating_add(2 * PAGE_TOKENS as u64 - 1))
            }
        };
        let (layers, kv_heads) = (self.num_layers, self.num_kv_heads as u128);
        Ok(move |tokens: u64| {
            let full = (layers - windowed) as u128 * layer(tokens);
            let bytes = full + windowed as u128 * layer(tokens.min(held));
            bytes.saturating_mul(kv_heads)
        })
    }

    /// Longest context whose cache fits `memory` bytes; at most the model's own, and `u64::MAX` where windows bound every
    /// layer and the model says nothing.
    ///
    /// # Errors
    /// As [`Self::bytes_per_token`].
    pub(crate) fn max_tokens(&self, life: &Life, memory: u64) -> Result<u64, PlanError> {
        let bytes = self.bytes_times_page(life)?;
        let fits = |tokens: u64| bytes(tokens) <= u128::from(memory) * PAGE_TOKENS as u128;
        // Beyond any memory, and far from overflow.
        let most = self.context.unwrap_or(1 << 40);
        if fits(most) {
            return Ok(self.context.unwrap_or(u64::MAX));
        }
        let (mut fitting, mut too_many) = (0, most);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_many = middle }
        }
        Ok(fitting)
    }
}

impl CacheShape {
    /// Bytes of one slot in all layers and KV heads of ring caches, which keep blocks back to back.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub(crate) fn ring_bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        let value = if self.latent { Some(0) } else { codecs.v.block_bytes(self.value_dim) };
        let slot = codecs.k.block_bytes(self.head_dim).zip(value).map(|(key, value)| key + value);
        let slot = slot.ok_or_else(|| self.unsupported(codecs))?;
        [self.num_layers, self.num_kv_heads]
            .into_iter()
            .try_fold(slot as u64, |bytes, n| bytes.checked_mul(n as u64))
            .ok_or(PlanError::TooLarge)
    }

    /// Tokens that ring caches in `ram` bytes hold, one [`tqkv_core::fixed::RingCache`] a layer and KV
    /// head; their codecs and indices are not counted. No token is f16 there.
    ///
    /// # Errors
    /// [`PlanError::NotInteger`], and as [`Self::ring_bytes_per_token`].
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
mod tests {
    use super::*;

    const SEVENTY_B: &str = r#"{"num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "hidden_size": 8192, "rope_theta": 5e5}"#;

    fn codecs(text: &str) -> KvCodecs {
        text.parse().unwrap()
    }

    fn life(text: &str, kept: Uncompressed) -> Life {
        Life { codecs: codecs(text), kept, tiers: Vec::new() }
    }

    #[test]
    fn seventy_b_class_bytes_per_token() {
        let shape = CacheShape::from_config(SEVENTY_B).unwrap();
        for (kv, bytes) in [("f16", 327_680), ("s4", 84_480), ("s3", 64_000), ("s2", 43_520)] {
            assert_eq!(shape.bytes_per_token(codecs(kv)).unwrap(), bytes, "{kv}");
        }
    }

    #[test]
    fn the_longest_context_counts_window_and_sinks_as_f16() {
        let shape = CacheShape::from_config(SEVENTY_B).unwrap();
        let kept = Uncompressed { sinks: 4, hot: 128 };
        let (memory, raw, coded) = (34_000_000_000_u64, 327_680, 84_480);
        let tokens = shape.max_tokens(&life("s4", kept), memory).unwrap();
        let bytes = |tokens: u64| 132 * raw + (tokens - 132) * coded;
        assert!(bytes(tokens) <= memory && bytes(tokens + 1) > memory, "{tokens}");
        // f16 has no cheaper rest, and a budget below the window holds only part of it.
        assert_eq!(shape.max_tokens(&life("f16", kept), memory).unwrap(), memory / raw);
        assert_eq!(shape.max_tokens(&life("s2", kept), 10 * raw + 1).unwrap(), 10);
        assert_eq!(shape.max_tokens(&life("s2", kept), raw - 1).unwrap(), 0);
    }

    #[test]
    fn the_bytes_of_a_context_are_those_that_fit() {
        let kept = Uncompressed { sinks: 4, hot: 64 };
        let full = CacheShape::new(6, 2, 128);
        for shape in [full, CacheShape { windowed: Some(Windowed { layers: 2, tokens: 1024 }), ..full }] {
            for tokens in [3, 68, 100_003] {
                let bytes = shape.bytes(&life("s3", kept), tokens).unwrap();
                assert_eq!(shape.max_tokens(&life("s3", kept), bytes).unwrap(), tokens);
                assert_eq!(shape.max_tokens(&life("s3", kept), bytes - 1).unwrap(), tokens - 1);
            }
        }
        assert_eq!(full.bytes(&life("s4", kept), 68).unwrap(), 6 * 2 * 68 * 512);
    }

    #[test]
    fn values_count_with_their_own_dim() {
        let narrow = CacheShape { value_dim: 64, ..CacheShape::new(2, 3, 128) };
        let per_head = |dim: usize| dim as u64 / 2 + 2;
        assert_eq!(narrow.bytes_per_token(codecs("s4")).unwrap(), 6 * (per_head(128) + per_head(64)));
        assert_eq!(narrow.bytes_per_token(codecs("f16")).unwrap(), 6 * 2 * (128 + 64));
        assert_eq!(narrow.ring_bytes_per_token(codecs("s4")).unwrap(), 6 * (per_head(128) + per_head(64)));
        let kept = Uncompressed { sinks: 4, hot: 64 };
        assert_eq!(narrow.bytes(&life("s4", kept), 68).unwrap(), 6 * 68 * 2 * (128 + 64));
        let odd = CacheShape { value_dim: 100, ..narrow };
        for error in [odd.bytes_per_token(codecs("s4")), odd.ring_bytes_per_token(codecs("s4"))] {
            assert!(error.unwrap_err().to_string().starts_with("head dim 100 is not one of codecs s4,s4"));
        }
    }

    #[test]
    fn rings_hold_what_the_firmware_arithmetic_says() {
        let shape = CacheShape::new(2, 3, 64);
        for codec in INTEGER_CODECS {
            let tokens = shape.ring_tokens(KvCodecs { k: codec, v: codec }, 6 * 4096).unwrap();
            let each = tqkv_core::fixed::tokens_in(codec, codec, 64, 4096).unwrap();
            assert_eq!(tokens, each as u64, "{codec:?}");
        }
        let error = shape.ring_tokens(codecs("s4,q8_0"), 4096).unwrap_err().to_string();
        assert!(error.contains("q8_0") && error.contains("i8, s5, s4"), "{error}");
    }

    #[test]
    fn shapes_beyond_reason_are_errors() {
        let shape = CacheShape::new(usize::MAX, 2, 128);
        assert!(matches!(shape.bytes_per_token(codecs("s4")), Err(PlanError::TooLarge)));
        let shape = CacheShape::new(1, 1, 100);
        let error = shape.bytes_per_token(codecs("s4")).unwrap_err().to_string();
        assert!(error.contains("100") && error.contains("s4,s4"), "{error}");
    }

    #[test]
    fn windows_bound_their_layers_and_the_context_bounds_all() {
        let kept = Uncompressed { sinks: 4, hot: 64 };
        let full = CacheShape::new(6, 1, 128);
        let windowed = CacheShape { windowed: Some(Windowed { layers: 5, tokens: 1024 }), ..full };
        let memory = 100_000_000;
        let [all, one] = [full, windowed].map(|shape| shape.max_tokens(&life("s4", kept), memory).unwrap());
        assert!(one > 5 * all && one < 6 * all, "{one} {all}");
        assert_eq!(windowed.bytes_per_token(codecs("s4")).unwrap(), 6 * 132);
        assert_eq!(windowed.bytes_past_window(codecs("s4")).unwrap(), Some(132));
        let short = CacheShape { context: Some(4096), ..windowed };
        assert_eq!(short.max_tokens(&life("s4", kept), memory).unwrap(), 4096);
        let bounded = CacheShape { windowed: Some(Windowed { layers: 6, tokens: 1024 }), ..full };
        assert_eq!(bounded.max_tokens(&life("s4", kept), memory).unwrap(), u64::MAX);
    }

    /// What a cache holds more of when it is 1024 tokens longer, in whole pages.
    #[test]
    fn a_token_takes_what_a_cache_allocates_for_it() {
        use tqkv::cache::{Centring, KvCache};
        for dim in [64, 80, 96, 128] {
            for kv in ["f16", "i8", "s4", "t4", "t2h", "n3", "q8_0"] {
                let codecs = codecs(kv);
                let Ok(planned) = CacheShape::new(1, 1, dim).bytes_per_token(codecs) else { continue };
                let spec = CacheSpec::new(1, 1, 1, dim).codecs(codecs.k, codecs.v).sinks(0).hot(0);
                let mut cache = KvCache::new(spec.centring(Centring::Off)).unwrap();
                let zeros = vec![0.0; 1024 * dim];
                cache.append(0, &zeros, &zeros).unwrap();
                let before = cache.stats().allocated_bytes;
                cache.append(0, &zeros, &zeros).unwrap();
                let grown = (cache.stats().allocated_bytes - before) as f64 / 1024.0;
                // Lists of pages grow too.
                let ratio = grown / planned as f64;
                assert!((0.98..1.08).contains(&ratio), "{kv} at {dim}: {grown} {planned}");
            }
        }
    }
}

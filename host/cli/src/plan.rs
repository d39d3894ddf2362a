//! How many bytes a token of cache takes, and how many tokens a memory budget holds.
//!
//! Arithmetic on shapes only: what a running cache really allocated is in its own statistics, which
//! add page granularity. Every layer is counted as attending to the whole context, so a model with
//! sliding-window layers needs less.

use serde::Deserialize;
use tqkv_core::CodecId;
use tqkv_core::fixed::INTEGER_CODECS;

use crate::preset::KvCodecs;

/// The part of a model's shape that its KV cache depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// Decoder layers.
    pub(crate) num_layers: usize,
    /// KV heads per layer.
    pub(crate) num_kv_heads: usize,
    /// Coordinates per head vector.
    pub(crate) head_dim: usize,
}

/// Tokens that are kept as f16 whatever the codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uncompressed {
    /// First tokens of the sequence.
    pub(crate) sinks: u64,
    /// Newest tokens.
    pub(crate) hot: u64,
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
        "'{0}' is not a size, accepted are a number and B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024)"
    )]
    Size(String),
}

#[derive(Deserialize)]
struct Config {
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_size: Option<usize>,
    /// Multimodal models keep the language model's shape one level down.
    text_config: Option<Box<Config>>,
}

impl CacheShape {
    /// Reads the shape from the text of a Hugging Face `config.json`.
    ///
    /// `num_key_value_heads` defaults to `num_attention_heads`, `head_dim` to
    /// `hidden_size / num_attention_heads`, and a `text_config` stands for the whole.
    ///
    /// # Errors
    /// [`PlanError::Json`], [`PlanError::Missing`].
    pub(crate) fn from_config(json: &str) -> Result<Self, PlanError> {
        let mut config: Config = serde_json::from_str(json)?;
        while let Some(text) = config.text_config.take() {
            config = *text;
        }
        let used = |value: Option<usize>, name| value.filter(|&n| n > 0).ok_or(PlanError::Missing(name));
        let heads = used(config.num_attention_heads, "num_attention_heads");
        let kv_heads = match config.num_key_value_heads {
            None => heads,
            some => used(some, "num_key_value_heads"),
        };
        let head_dim = match config.head_dim {
            None => {
                let hidden = used(config.hidden_size, "head_dim or hidden_size")?;
                let heads = used(config.num_attention_heads, "head_dim or num_attention_heads")?;
                Some(hidden / heads).filter(|_| hidden % heads == 0)
            }
            some => some,
        };
        Ok(Self {
            num_layers: used(config.num_hidden_layers, "num_hidden_layers")?,
            num_kv_heads: kv_heads?,
            head_dim: used(head_dim, "head_dim")?,
        })
    }

    /// Bytes of one token in all layers and KV heads, K and V.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedHeadDim`], [`PlanError::TooLarge`].
    pub(crate) fn bytes_per_token(&self, codecs: KvCodecs) -> Result<u64, PlanError> {
        let slot = codecs
            .slot_bytes(self.head_dim)
            .ok_or(PlanError::UnsupportedHeadDim { head_dim: self.head_dim, codecs })?;
        [self.num_layers, self.num_kv_heads]
            .into_iter()
            .try_fold(slot as u64, |bytes, n| bytes.checked_mul(n as u64))
            .ok_or(PlanError::TooLarge)
    }

    /// Longest context whose cache fits `memory` bytes, the first and newest tokens being f16;
    /// `u64::MAX` for a shape without layers or heads.
    ///
    /// # Errors
    /// As [`Self::bytes_per_token`].
    pub(crate) fn max_tokens(
        &self,
        codecs: KvCodecs,
        kept: Uncompressed,
        memory: u64,
    ) -> Result<u64, PlanError> {
        let f16 = KvCodecs { k: CodecId::F16, v: CodecId::F16 };
        let raw = self.bytes_per_token(f16)?;
        let coded = self.bytes_per_token(codecs)?;
        let kept = kept.sinks.saturating_add(kept.hot);
        let Some(raw_fit) = memory.checked_div(raw) else {
            return Ok(u64::MAX);
        };
        if raw_fit < kept {
            return Ok(raw_fit);
        }
        Ok(kept + (memory - kept * raw) / coded)
    }
}

impl CacheShape {
    /// Tokens that ring caches in `ram` bytes hold, one [`tqkv_core::fixed::RingCache`] a layer and KV
    /// head; their codecs and indices are not counted. No token is f16 there.
    ///
    /// # Errors
    /// [`PlanError::NotInteger`], and as [`Self::bytes_per_token`].
    pub(crate) fn ring_tokens(&self, codecs: KvCodecs, ram: u64) -> Result<u64, PlanError> {
        for codec in [codecs.k, codecs.v] {
            if !INTEGER_CODECS.contains(&codec) {
                return Err(PlanError::NotInteger(codec));
            }
        }
        Ok(ram.checked_div(self.bytes_per_token(codecs)?).unwrap_or(u64::MAX))
    }
}

/// Reads `34GB` (10^9 bytes each), `34GiB` (2^30 bytes each), `1.5 MiB`, `4096`.
///
/// # Errors
/// [`PlanError::Size`].
pub(crate) fn parse_size(text: &str) -> Result<u64, PlanError> {
    let wrong = || PlanError::Size(text.to_string());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1000_u64.pow(2),
        "gb" => 1000_u64.pow(3),
        "tb" => 1000_u64.pow(4),
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 {
        return Err(wrong());
    }
    // Decimal arithmetic in integers: 0.1GB is exactly 100,000,000 bytes.
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u64>().ok(),
    };
    let whole = digits(whole).and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)?;
    let part = u128::from(digits(fraction).ok_or_else(wrong)?) * u128::from(unit)
        / 10_u128.pow(fraction.len() as u32);
    // Below one unit, which is at most 2^40.
    whole.checked_add(part as u64).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVENTY_B: &str = r#"{"num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "hidden_size": 8192, "rope_theta": 5e5}"#;

    fn codecs(text: &str) -> KvCodecs {
        text.parse().unwrap()
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
        let tokens = shape.max_tokens(codecs("s4"), kept, memory).unwrap();
        let bytes = |tokens: u64| 132 * raw + (tokens - 132) * coded;
        assert!(bytes(tokens) <= memory && bytes(tokens + 1) > memory, "{tokens}");
        // f16 has no cheaper rest, and a budget below the window holds only part of it.
        assert_eq!(shape.max_tokens(codecs("f16"), kept, memory).unwrap(), memory / raw);
        assert_eq!(shape.max_tokens(codecs("s2"), kept, 10 * raw + 1).unwrap(), 10);
        assert_eq!(shape.max_tokens(codecs("s2"), kept, raw - 1).unwrap(), 0);
    }

    #[test]
    fn configs_fall_back_as_the_model_library_does() {
        let shape = |json| CacheShape::from_config(json).map(|s| (s.num_layers, s.num_kv_heads, s.head_dim));
        let nested =
            r#"{"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}}"#;
        assert_eq!(shape(nested).unwrap(), (2, 4, 64));
        let explicit =
            r#"{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 96}"#;
        assert_eq!(shape(explicit).unwrap(), (2, 1, 96));
        for (json, word) in [
            ("[]", "config.json"),
            ("{", "config.json"),
            ("{}", "hidden_size"),
            (r#"{"num_hidden_layers": -1}"#, "config.json"),
            (r#"{"head_dim": 64, "num_attention_heads": 4}"#, "num_hidden_layers"),
            (r#"{"head_dim": 64, "num_hidden_layers": 4}"#, "num_attention_heads"),
            (
                r#"{"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 256}"#,
                "num_attention_heads",
            ),
            (r#"{"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 256}"#, "head_dim"),
        ] {
            let error = shape(json).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }

    #[test]
    fn rings_hold_what_the_firmware_arithmetic_says() {
        let shape = CacheShape { num_layers: 2, num_kv_heads: 3, head_dim: 64 };
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
        let shape = CacheShape { num_layers: usize::MAX, num_kv_heads: 2, head_dim: 128 };
        assert!(matches!(shape.bytes_per_token(codecs("s4")), Err(PlanError::TooLarge)));
        let shape = CacheShape { num_layers: 1, num_kv_heads: 1, head_dim: 100 };
        let error = shape.bytes_per_token(codecs("s4")).unwrap_err().to_string();
        assert!(error.contains("100") && error.contains("s4,s4"), "{error}");
    }

    #[test]
    fn sizes_are_decimal_or_binary() {
        for (text, bytes) in [
            ("34GB", 34_000_000_000),
            ("34GiB", 34 << 30),
            ("34 gib", 34 << 30),
            ("1.5MiB", 3 << 19),
            ("0.1GB", 100_000_000),
            ("7KB", 7000),
            ("7KiB", 7168),
            ("2TB", 2_000_000_000_000),
            ("1TiB", 1 << 40),
            ("4096", 4096),
            ("4096B", 4096),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "GB", "-1GB", "1..5GB", "1GG", "1e9", ".5GB", "99999999999TB", "1.0000000001GB"] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains("GiB"), "{text}: {error}");
        }
    }
}

//! Which codecs keep keys and values: `K,V` pairs and their named presets.
//!
//! Not the whole cache policy: windows, sinks and tiers are the cache's own specification.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use tqkv_core::CodecId;

/// The codec of the keys and that of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KvCodecs {
    /// Codec of the keys.
    pub(crate) k: CodecId,
    /// Codec of the values.
    pub(crate) v: CodecId,
}

/// The uncompressed pair, with which others are compared.
pub(crate) const F16: KvCodecs = KvCodecs { k: CodecId::F16, v: CodecId::F16 };

/// A named pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preset {
    /// The name that `--kv` accepts.
    pub(crate) name: &'static str,
    /// What it stands for.
    pub(crate) codecs: KvCodecs,
}

const fn preset(name: &'static str, k: CodecId, v: CodecId) -> Preset {
    Preset { name, codecs: KvCodecs { k, v } }
}

/// Every preset, from the most bytes to the fewest.
pub(crate) const PRESETS: &[Preset] = &[
    // About half of f16.
    preset("eight-bit", CodecId::I8, CodecId::I8),
    preset("safe-lowbit", CodecId::I8, CodecId::S4),
    // Half the error of balanced at its bytes.
    preset("near-lossless", CodecId::T4, CodecId::T4),
    // Encodes fastest.
    preset("balanced", CodecId::S4, CodecId::S4),
    // A fifth of f16; keys carry most of a model's loss, so they have the wider half.
    preset("compact", CodecId::T4, CodecId::T2),
    // An eighth of f16.
    preset("tiny", CodecId::T2, CodecId::T2),
];

impl fmt::Display for KvCodecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.k.name(), self.v.name())
    }
}

impl Serialize for KvCodecs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A name that is neither a preset nor a codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec{or_preset} '{name}', accepted are {accepted}",
    or_preset = if *.preset { " or preset" } else { "" }, accepted = accepted(*.preset))]
pub(crate) struct UnknownCodec {
    name: String,
    /// Whether a preset would have been accepted here.
    preset: bool,
}

fn accepted(with_presets: bool) -> String {
    let codecs: Vec<_> = CodecId::ALL.iter().map(|codec| codec.name()).collect();
    let codecs = codecs.join(", ");
    if !with_presets {
        return codecs;
    }
    let presets: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    format!("{}, or K,V codecs (one name for both) of {codecs}", presets.join(", "))
}

/// The codec named `name`.
///
/// # Errors
/// [`UnknownCodec`], which lists the names.
pub(crate) fn parse_codec(name: &str) -> Result<CodecId, UnknownCodec> {
    CodecId::from_name(name).ok_or_else(|| UnknownCodec { name: name.to_string(), preset: false })
}

impl FromStr for KvCodecs {
    type Err = UnknownCodec;

    /// Reads a preset's name, `K,V`, or one codec for both.
    fn from_str(text: &str) -> Result<Self, UnknownCodec> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == text) {
            return Ok(preset.codecs);
        }
        let codec = |name: &str| {
            CodecId::from_name(name.trim())
                .ok_or_else(|| UnknownCodec { name: name.trim().to_string(), preset: true })
        };
        let (k, v) = text.split_once(',').unwrap_or((text, text));
        Ok(Self { k: codec(k)?, v: codec(v)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let codecs = text.parse::<KvCodecs>().map_err(|e| e.to_string())?;
        Ok(codecs.to_string())
    }

    #[test]
    fn presets_pairs_and_single_names_parse() {
        assert_eq!(parse("safe-lowbit").unwrap(), "i8,s4");
        assert_eq!(parse("balanced").unwrap(), "s4,s4");
        assert_eq!(parse("s3").unwrap(), "s3,s3");
        assert_eq!(parse("i8, n2").unwrap(), "i8,n2");
        for codec in CodecId::ALL {
            assert_eq!(parse_codec(codec.name()), Ok(*codec));
        }
    }

    #[test]
    fn unknown_names_list_what_is_accepted() {
        for (text, name) in [("turbo9", "'turbo9'"), ("s4,zz", "'zz'"), ("", "''"), ("s4,s4,s4", "'s4,s4'")] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(name), "{error}");
            assert!(error.contains("safe-lowbit") && error.contains("q4_0r"), "{error}");
            assert!(!error.contains('\n'));
        }
        assert!(!parse_codec("x").unwrap_err().to_string().contains("balanced"));
    }

    #[test]
    fn presets_have_distinct_names_that_no_codec_has_and_shrink() {
        let slot = |pair: KvCodecs| pair.k.block_bytes(128).unwrap() + pair.v.block_bytes(128).unwrap();
        let bytes: Vec<_> = PRESETS.iter().map(|preset| slot(preset.codecs)).collect();
        assert!(bytes.windows(2).all(|pair| pair[0] >= pair[1]), "{bytes:?}");
        for (i, preset) in PRESETS.iter().enumerate() {
            assert!(CodecId::from_name(preset.name).is_none());
            assert!(PRESETS[..i].iter().all(|p| p.name != preset.name));
        }
    }
}

//! Pairs of codecs for keys and values.
//!
//! Caches store a pair of [`CodecId`]. A pair of [`Choice`] may also hold formats of `tqkv_reference`, which
//! `eval` and `generate` simulate through their blocks. Names of pairs in other programs are accepted too.

use std::fmt;

use serde::{Serialize, Serializer};
use tqkv::cache::{KvPair, PRESETS, Preset};
use tqkv_core::CodecId;
use tqkv_reference::Choice;

/// The codec of the keys and the codec of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCodecs<T = CodecId> {
    /// Codec of the keys.
    pub k: T,
    /// Codec of the values.
    pub v: T,
}

/// A pair in which either side may be a reference format.
pub type Kv = KvCodecs<Choice>;

impl From<KvPair> for KvCodecs {
    fn from((k, v): KvPair) -> Self {
        Self { k, v }
    }
}

impl From<KvCodecs> for Kv {
    fn from(KvCodecs { k, v }: KvCodecs) -> Self {
        Self { k: k.into(), v: v.into() }
    }
}

impl Kv {
    /// The pair as stored codecs; `None` if either side is a reference format.
    pub fn own(self) -> Option<KvCodecs> {
        Some(KvCodecs { k: self.k.core()?, v: self.v.core()? })
    }
}

/// The preset that stands for a pair and nothing else.
pub(crate) fn of_pair(pair: KvCodecs) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.options.is_empty() && pair == preset.codecs.into())
}

/// The uncompressed pair, the reference of comparisons.
pub(crate) const F16: KvCodecs = KvCodecs { k: CodecId::F16, v: CodecId::F16 };

/// Names of pairs in other programs.
const ALIASES: [(&str, [&str; 2]); 7] = [
    // Three bits and the sign of a residual.
    ("experimental-max", ["p4", "p4"]),
    // Keys: three bits and the sign of a residual. Values: three bits.
    ("tq_k4v3", ["turbo4k", "turbo3v"]),
    // Types of vLLM's cache (host/reference/FORMATS.md).
    ("turboquant_k8v4", ["fp8", "u4"]),
    ("turboquant_4bit_nc", ["vtq4", "u4"]),
    ("turboquant_k3v4_nc", ["vtq3", "u4"]),
    ("turboquant_3bit_nc", ["vtq3", "u3"]),
    ("int4_per_token_head", ["int4h", "int4h"]),
];

impl fmt::Display for KvCodecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Kv::from(*self).fmt(f)
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.k.name(), self.v.name())
    }
}

impl Serialize for Kv {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Kv {
    /// Reads another program's name for a pair, `K,V`, or one format for both. `None` if the name is unknown.
    pub(crate) fn of_reference(text: &str) -> Option<Self> {
        let alias = ALIASES.iter().find(|(name, _)| *name == text).map(|(_, pair)| *pair);
        let [k, v] = alias.unwrap_or_else(|| text.split_once(',').unwrap_or((text, text)).into());
        Some(Self { k: Choice::from_name(k.trim())?, v: Choice::from_name(v.trim())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn formats_of_the_reference_and_names_of_other_programs_parse_where_they_are_accepted() {
        let parse = |text: &str| text.parse::<Kv>().map(|kv| (kv.to_string(), kv.own()));
        assert_eq!(parse("tq3").unwrap(), ("tq3,tq3".to_owned(), None));
        assert_eq!(parse("tq_k4v3").unwrap().0, "turbo4k,turbo3v");
        assert_eq!(parse("experimental-max").unwrap().0, "p4,p4");
        assert_eq!(parse("i8, p3").unwrap(), ("i8,p3".to_owned(), None));
        assert_eq!(parse("balanced").unwrap().1, "balanced".parse().ok());
        assert!(parse("tq5").is_err() && "p3".parse::<KvCodecs>().is_err());
        for (name, _) in ALIASES {
            assert!(Choice::from_name(name).is_none() && PRESETS.iter().all(|preset| preset.name != name));
        }
    }

    #[test]
    fn presets_have_distinct_names_that_no_codec_has_and_shrink() {
        let slot = |KvCodecs { k, v }: KvCodecs| k.block_bytes(128).unwrap() + v.block_bytes(128).unwrap();
        let oldest = |preset: &Preset| Policy::from(preset).oldest().unwrap();
        let bytes: Vec<_> = PRESETS.iter().map(|preset| slot(oldest(preset))).collect();
        assert!(bytes.windows(2).all(|pair| pair[0] >= pair[1]), "{bytes:?}");
        for (i, preset) in PRESETS.iter().enumerate() {
            assert!(CodecId::from_name(preset.name).is_none());
            assert!(PRESETS[..i].iter().all(|p| p.name != preset.name));
        }
    }
}

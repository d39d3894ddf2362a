//! Which codecs keep keys and values: `K,V` pairs, or the library's presets by name.
//!
//! A pair of [`CodecId`] is what caches store; a pair of [`Choice`] may be formats of `tqkv_reference` as well, which
//! `eval` and `generate` run through blocks and back, and then it has the names that other programs give to pairs.
//! Not the whole cache policy: windows, sinks and tiers are the cache's own specification.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use tqkv::cache::KvPair;
pub use tqkv::cache::PRESETS;
use tqkv_core::CodecId;
use tqkv_reference::Choice;

/// The codec of the keys and that of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCodecs<T = CodecId> {
    /// Codec of the keys.
    pub k: T,
    /// Codec of the values.
    pub v: T,
}

/// A pair of which either may be a format of the reference.
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
    /// The pair, where caches store both.
    pub fn own(self) -> Option<KvCodecs> {
        Some(KvCodecs { k: self.k.core()?, v: self.v.core()? })
    }
}

/// The uncompressed pair, with which others are compared.
pub(crate) const F16: KvCodecs = KvCodecs { k: CodecId::F16, v: CodecId::F16 };

/// Names that other programs give to pairs.
const ALIASES: [(&str, [&str; 2]); 2] = [
    // Three bits and the sign of a residual.
    ("experimental-max", ["p4", "p4"]),
    // Keys of three bits and the sign of a residual, values of three bits.
    ("tq_k4v3", ["turbo4k", "turbo3v"]),
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

/// A name that is neither a preset nor a codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec{or_preset} '{name}', accepted are {accepted}",
    or_preset = if *.presets { " or preset" } else { "" }, accepted = self.accepted())]
pub struct UnknownCodec {
    name: String,
    /// Whether a preset would have been accepted here.
    presets: bool,
    /// Whether a format of the reference would have been.
    reference: bool,
}

impl UnknownCodec {
    fn accepted(&self) -> String {
        let choices = Choice::all().filter(|choice| self.reference || choice.core().is_some());
        let codecs = choices.map(|choice| choice.name()).collect::<Vec<_>>().join(", ");
        let aliases = ALIASES.iter().map(|alias| alias.0).filter(|_| self.reference);
        let presets: Vec<_> = PRESETS.iter().map(|preset| preset.name).chain(aliases).collect();
        let elsewhere = match Choice::from_name(&self.name) {
            Some(Choice::Reference(_)) => " (it is a reference, for stats, eval and generate)",
            _ => "",
        };
        if self.presets {
            format!("{}, or K,V codecs (one name for both) of {codecs}{elsewhere}", presets.join(", "))
        } else {
            format!("{codecs}{elsewhere}")
        }
    }
}

/// The codec named `name`.
///
/// # Errors
/// [`UnknownCodec`], which lists the names.
pub(crate) fn parse_codec(name: &str) -> Result<CodecId, UnknownCodec> {
    let unknown = || UnknownCodec { name: name.to_string(), presets: false, reference: false };
    CodecId::from_name(name).ok_or_else(unknown)
}

/// The codec or the format of the reference named `name`.
///
/// # Errors
/// [`UnknownCodec`], which lists the names.
pub(crate) fn parse_choice(name: &str) -> Result<Choice, UnknownCodec> {
    let unknown = || UnknownCodec { name: name.to_string(), presets: false, reference: true };
    Choice::from_name(name).ok_or_else(unknown)
}

impl FromStr for KvCodecs {
    type Err = UnknownCodec;

    /// Reads a preset's name, `K,V`, or one codec for both.
    fn from_str(text: &str) -> Result<Self, UnknownCodec> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == text) {
            return Ok(preset.codecs.into());
        }
        let codec = |name: &str| {
            parse_codec(name.trim()).map_err(|unknown| UnknownCodec { presets: true, ..unknown })
        };
        let (k, v) = text.split_once(',').unwrap_or((text, text));
        Ok(Self { k: codec(k)?, v: codec(v)? })
    }
}

impl FromStr for Kv {
    type Err = UnknownCodec;

    /// Reads a preset's name, another program's for a pair, `K,V`, or one codec for both.
    fn from_str(text: &str) -> Result<Self, UnknownCodec> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == text) {
            return Ok(KvCodecs::from(preset.codecs).into());
        }
        let alias = ALIASES.iter().find(|(name, _)| *name == text).map(|(_, pair)| *pair);
        let [k, v] = alias.unwrap_or_else(|| text.split_once(',').unwrap_or((text, text)).into());
        let codec = |name: &str| {
            parse_choice(name.trim()).map_err(|unknown| UnknownCodec { presets: true, ..unknown })
        };
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
        let error = "p3".parse::<KvCodecs>().unwrap_err().to_string();
        assert!(error.contains("it is a reference, for stats, eval and generate"), "{error}");
    }

    #[test]
    fn formats_of_the_reference_and_names_of_other_programs_parse_where_they_are_accepted() {
        let parse = |text: &str| text.parse::<Kv>().map(|kv| (kv.to_string(), kv.own()));
        assert_eq!(parse("tq3").unwrap(), ("tq3,tq3".to_owned(), None));
        assert_eq!(parse("tq_k4v3").unwrap().0, "turbo4k,turbo3v");
        assert_eq!(parse("experimental-max").unwrap().0, "p4,p4");
        assert_eq!(parse("i8, p3").unwrap(), ("i8,p3".to_owned(), None));
        assert_eq!(parse("balanced").unwrap().1, "balanced".parse().ok());
        let error = parse("tq5").unwrap_err().to_string();
        assert!(error.contains("turbo4k") && error.contains("tq_k4v3") && error.contains("tiny"), "{error}");
        assert_eq!(parse_choice("f8e5m2").unwrap().name(), "f8e5m2");
        for (name, _) in ALIASES {
            assert!(Choice::from_name(name).is_none() && PRESETS.iter().all(|preset| preset.name != name));
        }
    }

    #[test]
    fn presets_have_distinct_names_that_no_codec_has_and_shrink() {
        let slot = |(k, v): KvPair| k.block_bytes(128).unwrap() + v.block_bytes(128).unwrap();
        let bytes: Vec<_> = PRESETS.iter().map(|preset| slot(preset.codecs)).collect();
        assert!(bytes.windows(2).all(|pair| pair[0] >= pair[1]), "{bytes:?}");
        for (i, preset) in PRESETS.iter().enumerate() {
            assert!(CodecId::from_name(preset.name).is_none());
            assert!(PRESETS[..i].iter().all(|p| p.name != preset.name));
        }
    }
}

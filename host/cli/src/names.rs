//! Names of codecs on the command line: the codecs of the library and the formats of `tqkv_reference`.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tqkv::error::CacheError;
use tqkv_core::CodecId;
use tqkv_reference::Choice;

use crate::preset::{Kv, KvCodecs};

/// Codecs that an error lists; `tqkv codecs --all` lists every one.
pub(crate) use tqkv::unstable::cache::COMMON_CODECS as COMMON;
use tqkv::unstable::cache::pair_of;

/// Reads a codec that caches and files store.
pub(crate) fn codec(text: &str) -> Result<CodecId, String> {
    choice(text)?.core().ok_or_else(|| no_codec_but_a_reference(text))
}

/// Reads a codec or a reference format.
pub fn choice(text: &str) -> Result<Choice, String> {
    let unknown =
        || format!("'{text}' is not a codec: expected {} or another; {ALL_LISTED}", COMMON.join(", "));
    Choice::from_name(&folded(text)).ok_or_else(unknown)
}

/// Reads the bits per weight, which stand for a codec of that width.
pub(crate) fn weight_bits() -> impl TypedValueParser<Value = CodecId> {
    PossibleValuesParser::new(["2", "3", "4", "8"]).map(|bits| match bits.as_str() {
        "2" => CodecId::T2,
        "3" => CodecId::T3,
        "4" => CodecId::T4,
        _ => CodecId::I8,
    })
}

/// Reads a preset, one codec for both, or `K,V`. Caches store all of them.
pub(crate) fn pair(text: &str) -> Result<KvCodecs, String> {
    kv(text)?.own().ok_or_else(|| no_codec_but_a_reference(text))
}

/// Reads the same; reference formats are accepted as well.
pub(crate) fn kv(text: &str) -> Result<Kv, String> {
    match pair_of(text).map_err(refusal) {
        Ok(pair) => Ok(KvCodecs::from(pair).into()),
        Err(why) => Kv::of_reference(&folded(text)).ok_or_else(|| format!("{why}; {ALL_LISTED}")),
    }
}

impl FromStr for KvCodecs {
    type Err = String;

    /// Reads a preset's name, `K,V`, or one codec for both.
    fn from_str(text: &str) -> Result<Self, String> {
        pair(text)
    }
}

impl FromStr for Kv {
    type Err = String;

    /// Reads a preset, another program's name for a pair, `K,V`, or one codec for both.
    fn from_str(text: &str) -> Result<Self, String> {
        kv(text)
    }
}

/// The reason in an error of the library, without the prefix that names the spec.
pub(crate) fn refusal(error: CacheError) -> String {
    match error {
        CacheError::BadSpec(why) => why,
        other => other.to_string(),
    }
}

const ALL_LISTED: &str = "tqkv codecs --all lists them";

/// The name in the spelling of the tables.
fn folded(text: &str) -> String {
    text.trim().to_ascii_lowercase()
}

fn no_codec_but_a_reference(text: &str) -> String {
    format!("'{text}' is stored in no cache and no file: it is a reference, for stats, eval and generate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case() {
        assert_eq!(codec(" S4 "), Ok(CodecId::S4));
        assert_eq!(choice("TQ3").map(|choice| choice.name()), Ok("tq3"));
        for (text, expected) in [
            ("Safe-LowBit", "i8,s4"),
            ("balanced", "s4,s4"),
            ("s3", "s3,s3"),
            ("i8, n2", "i8,n2"),
            ("I8, tq3", "i8,tq3"),
        ] {
            assert_eq!(kv(text).map(|kv| kv.to_string()), Ok(expected.to_owned()));
        }
        for name in COMMON {
            assert_eq!(codec(name).map(CodecId::name), Ok(name));
        }
    }

    #[test]
    fn refusals_name_what_is_wrong_and_little_of_what_is_right() {
        for (text, expected) in [
            ("balanced,s4", "'balanced' is a preset, which stands for both parts of K,V"),
            ("s4, Tiny", "'Tiny' is a preset"),
            ("s4,zz", "'zz' is not a codec"),
            ("zz,s4", "'zz' is not a codec"),
            ("s4,", "'' is not a codec"),
            ("s4,s4,s4", "'s4,s4,s4' has 3 parts"),
            (
                "zz",
                "expected kv=PRESET|K,V, such as kv=t4,t2: 'zz' is neither a preset (eight-bit, safe-lowbit",
            ),
            ("", "'' is neither a preset"),
            ("tq3", "'tq3' is stored in no cache and no file: it is a reference"),
        ] {
            let error = pair(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.len() < 300 && !error.contains("t2s8"), "{text}: {error}");
        }
        for error in [codec("zz").unwrap_err(), choice("zz").unwrap_err()] {
            assert!(error.contains("q4_0 or another; tqkv codecs --all"), "{error}");
        }
        assert!(codec("p3").unwrap_err().contains("it is a reference, for stats, eval and generate"));
    }
}

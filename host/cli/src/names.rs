//! Names of codecs as people type them: in any case, and with errors that say what a part of `K,V` may be.

use tqkv_core::CodecId;
use tqkv_reference::Choice;

use crate::preset::{Kv, KvCodecs, PRESETS};

/// Codecs that an error names; `tqkv codecs --all` lists every one.
pub(crate) const COMMON: [&str; 10] = ["f16", "i8", "t4", "s4", "t3", "s3", "t2", "s2", "q8_0", "q4_0"];

/// A codec that caches and files store.
pub fn codec(text: &str) -> Result<CodecId, String> {
    let name = folded(text);
    CodecId::from_name(&name).ok_or_else(|| match Choice::from_name(&name) {
        Some(_) => no_codec_but_a_reference(text),
        None => format!("unknown codec '{text}', {}", accepted_codecs()),
    })
}

/// A codec, or a format of the reference.
pub fn choice(text: &str) -> Result<Choice, String> {
    let unknown = || format!("unknown codec '{text}', {}", accepted_codecs());
    Choice::from_name(&folded(text)).ok_or_else(unknown)
}

/// A preset, one codec for both, or `K,V`, of codecs that caches store.
pub(crate) fn pair(text: &str) -> Result<KvCodecs, String> {
    kv(text)?.own().ok_or_else(|| no_codec_but_a_reference(text))
}

/// The same, where formats of the reference are accepted as well.
pub(crate) fn kv(text: &str) -> Result<Kv, String> {
    folded(text).parse::<Kv>().map_err(|_| refused_pair(text))
}

/// A name as the tables have it.
fn folded(text: &str) -> String {
    text.trim().to_ascii_lowercase()
}

fn accepted_codecs() -> String {
    format!("accepted are {} and others (tqkv codecs --all lists them)", COMMON.join(", "))
}

fn no_codec_but_a_reference(text: &str) -> String {
    format!("'{text}' is stored in no cache and no file: it is a reference, for stats, eval and generate")
}

/// Why `text` is no pair.
fn refused_pair(text: &str) -> String {
    let presets: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    if let [alone] = parts.as_slice() {
        return format!(
            "unknown codec or preset '{alone}', accepted are {}, one codec for both, or two as K,V: {}",
            presets.join(", "),
            COMMON.join(", ")
        );
    }
    if parts.len() > 2 {
        let count = parts.len();
        return format!("'{text}' has {count} parts, accepted are a preset, one codec, or two codecs as K,V");
    }
    if let Some(preset) = parts.iter().find(|part| presets.contains(&folded(part).as_str())) {
        let both = format!("'{preset}' is a preset, which stands for both parts of K,V");
        return format!("{both}; a part is a codec, {}", accepted_codecs());
    }
    let unknown = parts.iter().find(|part| Choice::from_name(&folded(part)).is_none());
    format!("unknown codec '{}', {}", unknown.unwrap_or(&""), accepted_codecs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case() {
        assert_eq!(codec(" S4 "), Ok(CodecId::S4));
        assert_eq!(choice("TQ3").map(|choice| choice.name()), Ok("tq3"));
        assert_eq!(pair("Safe-LowBit").map(|pair| pair.to_string()), Ok("i8,s4".to_owned()));
        assert_eq!(kv("I8, tq3").map(|kv| kv.to_string()), Ok("i8,tq3".to_owned()));
        for name in COMMON {
            assert_eq!(codec(name).map(CodecId::name), Ok(name));
        }
    }

    #[test]
    fn refusals_name_what_is_wrong_and_little_of_what_is_right() {
        for (text, expected) in [
            ("balanced,s4", "'balanced' is a preset, which stands for both parts of K,V; a part is a codec"),
            ("s4, Tiny", "'Tiny' is a preset"),
            ("s4,zz", "unknown codec 'zz'"),
            ("zz,s4", "unknown codec 'zz'"),
            ("s4,", "unknown codec ''"),
            ("s4,s4,s4", "'s4,s4,s4' has 3 parts, accepted are a preset, one codec, or two codecs as K,V"),
            ("zz", "unknown codec or preset 'zz', accepted are eight-bit, safe-lowbit"),
            ("", "unknown codec or preset ''"),
            ("tq3", "'tq3' is stored in no cache and no file: it is a reference"),
        ] {
            let error = pair(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.len() < 300 && !error.contains("t1s8"), "{text}: {error}");
        }
        for error in [codec("zz").unwrap_err(), choice("zz").unwrap_err()] {
            assert!(error.contains("q4_0 and others (tqkv codecs --all"), "{error}");
        }
        assert!(codec("p3").unwrap_err().contains("it is a reference, for stats, eval and generate"));
    }
}

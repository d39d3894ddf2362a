//! Settings of a user by environment variables.

use std::sync::OnceLock;
use tqkv::cache::PRESETS;
use tqkv_core::{AnyCodec, CodecId, Options as CodecOptions};
use tqkv_simd::Level;
use tqkv_simd::page::KeyPages;

/// Most exact tokens that may be asked for.
const MOST: usize = 1 << 20;

/// A codec for keys and one for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The codec of keys.
    pub key: CodecId,
    /// The codec of values.
    pub value: CodecId,
}

impl Pair {
    const fn of(key: CodecId, value: CodecId) -> Self {
        Self { key, value }
    }
}

/// How caches are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `TQKV_KV`; f16 for both keeps every row as it came.
    pub kv: Pair,
    /// `TQKV_HOT`: newest writes of a stream that stay f16.
    pub hot: usize,
    /// `TQKV_SINKS`: first slots of a stream that stay f16.
    pub sinks: usize,
    /// `TQKV_LOG`: whether bytes are printed.
    pub log: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { kv: Pair::of(CodecId::S4, CodecId::S4), hot: 64, sinks: 4, log: false }
    }
}

impl Options {
    /// From the variables of the environment.
    ///
    /// # Errors
    /// A line that names the variable, its value and what is accepted.
    pub fn from_environment() -> Result<Self, String> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// From variables that `get` looks up.
    ///
    /// # Errors
    /// As [`Options::from_environment`].
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut options = Self::default();
        if let Some(value) = get("TQKV_KV") {
            options.kv = pair(&value)?;
        }
        for (name, number) in [("TQKV_HOT", &mut options.hot), ("TQKV_SINKS", &mut options.sinks)] {
            if let Some(value) = get(name) {
                let tokens = value.parse().ok().filter(|&tokens| tokens <= MOST);
                *number = tokens
                    .ok_or_else(|| format!("{name}={value}: not a number of tokens from 0 to {MOST}"))?;
            }
        }
        if let Some(value) = get("TQKV_LOG") {
            options.log = match value.as_str() {
                "1" => true,
                "0" | "" => false,
                _ => return Err(format!("TQKV_LOG={value}: accepted are 0 and 1")),
            };
        }
        Ok(options)
    }
}

/// A preset, `K,V`, or one codec for both.
fn pair(text: &str) -> Result<Pair, String> {
    if let Some(preset) = PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(text)) {
        return Ok(Pair::of(preset.codecs.0, preset.codecs.1));
    }
    let (key, value) = text.split_once(',').unwrap_or((text, text));
    match (codec(key.trim()), codec(value.trim())) {
        (Some(key), Some(value)) => Ok(Pair { key, value }),
        _ => Err(refused(text)),
    }
}

fn refused(text: &str) -> String {
    let presets: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
    let codecs: Vec<&str> = CodecId::ALL.iter().filter(|id| serves(**id)).map(|id| id.name()).collect();
    format!("TQKV_KV={text}: accepted are {}, or K,V of {}", presets.join(", "), codecs.join(", "))
}

fn codec(name: &str) -> Option<CodecId> {
    name.parse().ok().filter(|id| serves(*id))
}

/// f16, and codecs that attention reads as they are.
fn serves(id: CodecId) -> bool {
    let pages = |codec: AnyCodec| KeyPages::new(&codec, 32).is_some();
    id == CodecId::F16 || AnyCodec::new(id, 128, CodecOptions::DEFAULT).is_ok_and(pages)
}

/// The user's settings, read once.
///
/// # Errors
/// A line that says what is wrong and what is accepted.
pub(crate) fn options() -> Result<&'static Options, &'static str> {
    static OPTIONS: OnceLock<Result<Options, String>> = OnceLock::new();
    let read = || {
        Level::detect().map_err(|error| error.to_string())?;
        Options::from_environment()
    };
    OPTIONS.get_or_init(read).as_ref().map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &'static str, value: &'static str) -> Result<Options, String> {
        Options::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn presets_pairs_and_single_codecs_are_understood() {
        assert_eq!(read("TQKV_KV", "compact").unwrap().kv, Pair::of(CodecId::T4, CodecId::T2));
        assert_eq!(read("TQKV_KV", "t4,t2").unwrap().kv, Pair::of(CodecId::T4, CodecId::T2));
        assert_eq!(read("TQKV_KV", "s4").unwrap().kv, Pair::of(CodecId::S4, CodecId::S4));
        assert_eq!(read("TQKV_HOT", "0").unwrap().hot, 0);
        assert!(read("TQKV_LOG", "1").unwrap().log);
        assert_eq!(Options::read(|_| None).unwrap(), Options::default());
    }

    #[test]
    fn what_is_unknown_is_refused_in_one_line_with_what_is_accepted() {
        for (name, value, part) in [
            ("TQKV_KV", "t4,q9", "compact"),
            ("TQKV_KV", "", "t4"),
            ("TQKV_HOT", "many", "from 0 to"),
            ("TQKV_SINKS", "-1", "from 0 to"),
            ("TQKV_LOG", "yes", "0 and 1"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.contains(part) && error.contains(name) && !error.contains('\n'), "{error}");
        }
    }
}

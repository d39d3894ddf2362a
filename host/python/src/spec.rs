//! Turns the arguments of a Python cache into a `CacheSpec`, through the texts of the library.

use crate::errors::Failure;
use tqkv::cache::CacheSpec;
#[cfg(feature = "cuda")]
use tqkv::cache::KvPair;
use tqkv::unstable::cache::OPTIONS;
#[cfg(feature = "cuda")]
use tqkv::unstable::cache::pair_of;

/// The spec of the first text, with what each further one says.
pub(crate) fn read(texts: &[String]) -> Result<CacheSpec, Failure> {
    let (first, others) = texts.split_first().map_or(("", texts), |(first, others)| (first.as_str(), others));
    Ok(others.iter().try_fold(first.parse::<CacheSpec>()?, |spec, text| spec.with(text))?)
}

/// Codecs of keys and values: a preset, "t4,t3", or one for both.
#[cfg(feature = "cuda")]
pub(crate) fn pair(kv: &str) -> Result<KvPair, Failure> {
    Ok(pair_of(kv)?)
}

/// Name and example of every option of a cache.
pub(crate) fn options() -> Vec<(&'static str, &'static str)> {
    OPTIONS.iter().map(|option| (option.name, option.example)).collect()
}

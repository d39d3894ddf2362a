//! Turns the arguments of a Python cache into a `CacheSpec`, through the texts of the library.

use crate::errors::{Failure, refused};
use std::sync::Arc;
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

/// The same for a cache of one layer of a model, if a map has a file of all of them.
pub(crate) fn read_layer(texts: &[String], layer: usize) -> Result<CacheSpec, Failure> {
    let mut spec = read(texts)?;
    if let Some(file) = spec.calibration.take() {
        let own = file.of_layer(layer).ok_or_else(|| {
            refused(format!("layer {layer} is not valid for map=: expected a layer of the file"))
        })?;
        spec.calibration = Some(Arc::new(own));
    }
    Ok(spec)
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

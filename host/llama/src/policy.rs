//! The policy texts that say how caches are held: `t4,t2 hot=64 sinks=4 last:t4`.

use tqkv::cache::{CacheSpec, KeyMap, KvPair, Policy};
use tqkv::error::CacheError;
use tqkv::unstable::slots;

/// More layers than models have, so that every step of a gradient has one.
const LAYERS: usize = 1024;

/// The policy of a process that sets none. Only the policy of the spec counts: shapes come with tensors.
pub(crate) fn default() -> CacheSpec {
    CacheSpec::new(LAYERS, 1, 1, 128)
}

/// Applies a policy text; settings that it does not name stay as in `old`.
///
/// # Errors
/// A line that says what is wrong and what is expected.
pub(crate) fn read(text: &str, old: &CacheSpec) -> Result<CacheSpec, String> {
    // A file of moments is not read in vain.
    let is_map = |word: &&str| word.starts_with("map=") && !["map=off", "map=pairs"].contains(word);
    if let Some(word) = text.split_whitespace().find(is_map) {
        return Err(format!(
            "{word} is not valid in llama.cpp: expected map=pairs or map=off, because rows come without positions"
        ));
    }
    let policy: Policy = text.parse().map_err(line)?;
    let spec = policy.apply(old.clone());
    slots::check(&spec).map_err(line)?;
    Ok(spec)
}

/// The line of an error. That of a spec needs no word that says so.
fn line(error: CacheError) -> String {
    match error {
        CacheError::BadSpec(why) => why,
        other => other.to_string(),
    }
}

/// Codecs of layer `layer`, counted from 0, in a model of `layers` layers. Keys without a map have one width.
pub(crate) fn codecs(spec: &CacheSpec, layer: usize, layers: usize) -> KvPair {
    let (key, value) = spec.layers.codecs(layer, layers.max(layer + 1), (spec.key, spec.value));
    (if spec.key_map == KeyMap::Off { key.of_one_width() } else { key }, value)
}

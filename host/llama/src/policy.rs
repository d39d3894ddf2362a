//! The policy texts that say how caches are held: `t4,t2 hot=64 sinks=4 last:t4`. A text may have several
//! policies, for models that are told apart by their number of layers: `t4,t2; layers=16: s4 hot=16`. One with
//! `layer-kv=each:` tells its number of layers itself.

use tqkv::cache::{CacheSpec, KeyMap, KvPair, LayerPolicy, Policy};
use tqkv::error::CacheError;
use tqkv::unstable::slots;

/// More layers than models have, so that every step of a gradient has one.
const LAYERS: usize = 1024;

/// The policy of a process that sets none. Only the policy of the spec counts: shapes come with tensors.
pub(crate) fn default() -> CacheSpec {
    CacheSpec::new(LAYERS, 1, 1, 128)
}

/// The parts of a text with several policies, each with the number of layers of its models; none for the policy
/// of all others.
///
/// # Errors
/// A line that says what is wrong and what is expected.
pub(crate) fn parts(text: &str) -> Result<Vec<(Option<usize>, &str)>, String> {
    let mut parts: Vec<(Option<usize>, &str)> = Vec::new();
    for part in text.split(';').map(str::trim) {
        let (of, policy) = match part.strip_prefix("layers=") {
            None => (None, part),
            Some(rest) => {
                let (number, policy) = rest.split_once(':').unwrap_or((rest, ""));
                let number = number.trim().parse().ok().filter(|&number: &usize| number > 0);
                let wrong = || format!("{part} is not valid: expected layers=NUMBER: and a policy");
                (Some(number.filter(|_| !policy.trim().is_empty()).ok_or_else(wrong)?), policy.trim())
            }
        };
        if parts.iter().any(|(other, _)| *other == of) {
            let models = of.map_or("all models".to_owned(), |layers| format!("models of {layers} layers"));
            return Err(format!("two policies for {models}: expected one"));
        }
        parts.push((of, policy));
    }
    // The others take what they do not name from the policy of all models.
    parts.sort_by_key(|(of, _)| *of);
    Ok(parts)
}

/// Applies a policy text for models of `layers` layers, or of any number; settings that it does not name stay as in `old`.
/// A rule that names each layer is for models of as many.
///
/// # Errors
/// A line that says what is wrong and what is expected.
pub(crate) fn read(text: &str, old: &CacheSpec, layers: Option<usize>) -> Result<CacheSpec, String> {
    let policy: Policy = text.parse().map_err(line)?;
    let mut spec = policy.apply(old.clone());
    spec.shape.num_layers = layers.or(each_layer(&spec)).unwrap_or(LAYERS);
    slots::check(&spec).map_err(line)?;
    Ok(spec)
}

/// The number of layers that the policy of a spec names one by one.
pub(crate) fn each_layer(spec: &CacheSpec) -> Option<usize> {
    match &spec.layers {
        LayerPolicy::Custom(pairs) => Some(pairs.len()),
        _ => None,
    }
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

//! Reads a policy text of the library into options: `t4,t2 hot=64 sinks=4 last:t4`.

use crate::options::Options;
use tqkv::cache::{CacheSpec, Policy};
use tqkv_core::{AnyCodec, CodecId, Options as CodecOptions};
use tqkv_simd::page::KeyPages;

/// Most exact tokens that a text may ask for.
const MOST: usize = 1 << 20;

/// Sets the options that a text names and leaves the rest.
///
/// # Errors
/// A line that says what is wrong and what is expected.
pub(crate) fn read(text: &str, options: &mut Options) -> Result<(), String> {
    let policy: Policy = text.parse().map_err(|error| format!("{error}"))?;
    let effort = CodecOptions::DEFAULT.effort(options.effort);
    let plain = CacheSpec::new(1, 1, 1, 128);
    let held = plain.clone().codecs(options.kv.0, options.kv.1).hot(options.hot).sinks(options.sinks);
    let spec = policy.apply(held.layers(options.layers.clone()).options(effort));
    let set = Options {
        kv: (spec.key, spec.value),
        layers: spec.layers.clone(),
        hot: spec.hot,
        sinks: spec.sinks,
        effort: spec.options.effort,
        log: options.log,
    };
    // Every other option must be as it is by default.
    let rest = spec.codecs(plain.key, plain.value).layers(plain.layers.clone());
    let rest = rest.hot(plain.hot).sinks(plain.sinks).options(plain.options);
    if rest != plain {
        return Err(format!(
            "{policy} is not valid: expected codecs, hot=, sinks=, effort= and layer-kv= in llama.cpp"
        ));
    }
    if set.hot.max(set.sinks) > MOST {
        return Err(format!("{policy} is not valid: expected at most {MOST} exact tokens"));
    }
    // Each codec that a layer has must be one that attention reads.
    let pairs = (0..LAYERS).map(|layer| set.codecs(layer, LAYERS));
    if let Some(codec) = pairs.flat_map(|(key, value)| [key, value]).find(|codec| !serves(*codec)) {
        let served = CodecId::ALL.iter().filter(|codec| serves(**codec)).map(|codec| codec.name());
        let served = served.collect::<Vec<_>>().join(", ");
        return Err(format!("{} is not valid in llama.cpp: expected one of {served}", codec.name()));
    }
    *options = set;
    Ok(())
}

/// More layers than models have, so that every step of a gradient has one.
const LAYERS: usize = 1024;

/// f16, and codecs that attention reads without decoding.
fn serves(id: CodecId) -> bool {
    let pages = |codec: AnyCodec| KeyPages::new(&codec, 32).is_some();
    id == CodecId::F16 || AnyCodec::new(id, 128, CodecOptions::DEFAULT).is_ok_and(pages)
}

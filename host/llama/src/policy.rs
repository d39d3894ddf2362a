//! How caches are held, and the policy texts that say so: `t4,t2 hot=64 sinks=4 last:t4`.

use tqkv::Effort;
use tqkv::cache::{CacheSpec, KvPair, LayerPolicy, Policy};
use tqkv::error::CacheError;
use tqkv::unstable::cache::KeyMap;
use tqkv_core::{CodecId, Options as CodecOptions};

/// Most exact tokens that a text may ask for.
const MOST: usize = 1 << 20;

/// How caches are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Codecs of keys and values; f16 for both keeps every row as it is written.
    pub kv: KvPair,
    /// Layers with codecs of their own.
    pub layers: LayerPolicy,
    /// Newest writes of a stream that stay f16.
    pub hot: usize,
    /// First slots of a stream that stay f16.
    pub sinks: usize,
    /// True if keys go through factors per RoPE pair.
    pub map: bool,
    /// How far the encoder searches.
    pub effort: Effort,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            kv: (CodecId::S4, CodecId::S4),
            layers: LayerPolicy::Uniform,
            hot: 64,
            sinks: 4,
            map: false,
            effort: Effort::Default,
        }
    }
}

impl Held {
    /// Codecs of layer `layer`, counted from 0, in a model of `layers` layers.
    pub fn codecs(&self, layer: usize, layers: usize) -> KvPair {
        self.layers.codecs(layer, layers.max(layer + 1), self.kv)
    }
}

/// Applies a policy text; settings that it does not name stay as in `held`.
///
/// # Errors
/// A line that says what is wrong and what is expected.
pub(crate) fn read(text: &str, held: &Held) -> Result<Held, String> {
    // A file of moments is not read in vain.
    let is_map = |word: &&str| word.starts_with("map=") && !["map=off", "map=pairs"].contains(word);
    if let Some(word) = text.split_whitespace().find(is_map) {
        return Err(format!(
            "{word} is not valid in llama.cpp: expected map=pairs or map=off, because rows come without positions"
        ));
    }
    let policy: Policy = text.parse().map_err(|error| match error {
        CacheError::BadSpec(why) => why,
        other => other.to_string(),
    })?;
    let effort = CodecOptions::DEFAULT.effort(held.effort);
    let plain = CacheSpec::new(1, 1, 1, 128);
    let mut old = plain.clone().codecs(held.kv.0, held.kv.1).hot(held.hot).sinks(held.sinks);
    old.key_map = if held.map { KeyMap::Pairs } else { KeyMap::Off };
    let mut spec = policy.apply(old.layers(held.layers.clone()).options(effort));
    let set = Held {
        kv: (spec.key, spec.value),
        layers: spec.layers.clone(),
        hot: spec.hot,
        sinks: spec.sinks,
        map: spec.key_map == KeyMap::Pairs,
        effort: spec.options.effort,
    };
    // Every other setting must be as it is by default.
    spec.key_map = plain.key_map;
    let rest = spec.codecs(plain.key, plain.value).layers(plain.layers.clone());
    let rest = rest.hot(plain.hot).sinks(plain.sinks).options(plain.options);
    if rest != plain {
        return Err(format!(
            "{policy} is not valid: expected codecs, hot=, sinks=, map=, effort= and layer-kv= in llama.cpp"
        ));
    }
    if set.hot.max(set.sinks) > MOST {
        return Err(format!("{policy} is not valid: expected at most {MOST} exact tokens"));
    }
    check_codecs(&set)?;
    Ok(set)
}

/// Codes of quarters are for keys with a map.
fn check_codecs(held: &Held) -> Result<(), String> {
    for (key, value) in (0..LAYERS).map(|layer| held.codecs(layer, LAYERS)) {
        if key.rotates_quarters() && !held.map {
            return Err(format!("{} is not valid in llama.cpp: expected map=pairs with it", key.name()));
        }
        if value.rotates_quarters() {
            return Err(format!("{} is not valid for values: expected a codec of one width", value.name()));
        }
    }
    Ok(())
}

/// More layers than models have, so that every step of a gradient has one.
const LAYERS: usize = 1024;

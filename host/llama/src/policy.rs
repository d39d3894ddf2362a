//! The policy text of a cache, such as `t4,t2 hot=64 sinks=4 layer-kv=tail:1:t4`.

use crate::options::Options;
use tqkv::Effort;
use tqkv::cache::{KvPair, LayerPolicy, PRESETS};
use tqkv_core::{AnyCodec, CodecId, Options as CodecOptions};
use tqkv_simd::page::KeyPages;

/// Upper limit of `hot` and `sinks`.
const MOST: usize = 1 << 20;

const WORDS: &str = "hot=TOKENS, sinks=TOKENS, effort=fast|default|best, layer-kv=boundary:N:K,V, layer-kv=tail:N:K,V \
                     and layer-kv=gradient:K,V/K,V/..";

/// Applies a policy text; settings that it does not name stay.
///
/// # Errors
/// A line that says what is wrong and what is accepted.
pub(crate) fn read(text: &str, options: &mut Options) -> Result<(), String> {
    let mut words = text.split_whitespace().peekable();
    if words.peek().is_none_or(|word| !word.contains('=')) {
        options.kv = pair(words.next().unwrap_or_default())?;
    }
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "hot" => options.hot = tokens(name, value)?,
            "sinks" => options.sinks = tokens(name, value)?,
            "effort" => {
                let refused = || format!("{word}: accepted are fast, default and best");
                options.effort = Effort::from_name(value).ok_or_else(refused)?;
            }
            "layer-kv" => options.layers = layers(value).map_err(|error| format!("{word}: {error}"))?,
            _ => return Err(format!("'{word}': accepted behind the codecs are {WORDS}")),
        }
    }
    Ok(())
}

fn tokens(name: &str, value: &str) -> Result<usize, String> {
    let tokens = value.parse().ok().filter(|&tokens| tokens <= MOST);
    tokens.ok_or_else(|| format!("{name}={value}: not a number of tokens from 0 to {MOST}"))
}

/// Layers with codecs of their own.
fn layers(text: &str) -> Result<LayerPolicy, String> {
    let count = |text: &str| text.parse().map_err(|_| format!("'{text}' is no number of layers"));
    Ok(match *text.split(':').collect::<Vec<_>>().as_slice() {
        ["boundary", n, kv] => LayerPolicy::Boundary { layers: count(n)?, codecs: pair(kv)? },
        ["tail", n, kv] => LayerPolicy::Tail { layers: count(n)?, codecs: pair(kv)? },
        ["gradient", steps] => LayerPolicy::Gradient(steps.split('/').map(pair).collect::<Result<_, _>>()?),
        _ => return Err("accepted are boundary:N:K,V, tail:N:K,V and gradient:K,V/K,V/..".to_owned()),
    })
}

/// A preset, `K,V`, or one codec for both.
fn pair(text: &str) -> Result<KvPair, String> {
    if let Some(preset) = PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(text)) {
        return Ok(preset.codecs);
    }
    let (key, value) = text.split_once(',').unwrap_or((text, text));
    match (codec(key), codec(value)) {
        (Some(key), Some(value)) => Ok((key, value)),
        _ => {
            let presets: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            let codecs = CodecId::ALL.iter().filter(|id| serves(**id)).map(|id| id.name());
            let codecs = codecs.collect::<Vec<_>>().join(", ");
            Err(format!("'{text}': accepted are {}, or K,V of {codecs}", presets.join(", ")))
        }
    }
}

fn codec(name: &str) -> Option<CodecId> {
    name.to_ascii_lowercase().parse().ok().filter(|id| serves(*id))
}

/// True for f16, and for codecs whose pages attention can read.
fn serves(id: CodecId) -> bool {
    let pages = |codec: AnyCodec| KeyPages::new(&codec, 32).is_some();
    id == CodecId::F16 || AnyCodec::new(id, 128, CodecOptions::DEFAULT).is_ok_and(pages)
}

//! The spec of a snapshot: the text of all its options, those with their default too, so that another default
//! changes no snapshot.

use crate::cache::chunks::refused;
use crate::cache::layer::{LayerKind, LayerPolicy};
use crate::cache::spec::{CacheSpec, Cold, KeyMap};
use crate::cache::text;
use crate::error::CacheError;
use std::path::PathBuf;

/// The text of a spec. The instruction set and the folder of the spill file belong to the machine, and the limit of
/// tokens to the program.
pub(super) fn write(spec: &CacheSpec) -> String {
    text::all_words(&elsewhere(spec, || ".".into()))
}

/// The spec of a payload, for this machine. A cache can have it.
pub(super) fn read(payload: &[u8]) -> Result<CacheSpec, CacheError> {
    let bad = |error: CacheError| match error {
        CacheError::BadSpec(why) => shortened(&why),
        other => other.to_string(),
    };
    let text = std::str::from_utf8(payload).ok().filter(|text| !text.contains(char::is_control));
    let Some(text) = text else { return refused("its spec is no text: expected words of options") };
    let spec = text.parse::<CacheSpec>().and_then(|spec| spec.check().map(|()| spec));
    let spec = spec.or_else(|error| refused(format!("its spec: {}", bad(error))))?;
    Ok(elsewhere(&spec, std::env::temp_dir))
}

/// The spec on another machine, which has its own instruction set and limit, and this folder for a spill file. It is only
/// asked for if there is such a file, because WebAssembly has no folders, and the question would panic there.
fn elsewhere(spec: &CacheSpec, folder: impl FnOnce() -> PathBuf) -> CacheSpec {
    let mut spec = CacheSpec { level: None, max_tokens: None, ..spec.clone() };
    if let Some((_, Cold::Spill(own))) = spec.cold.last_mut() {
        *own = folder();
    }
    spec
}

/// The start of a message, which may quote a word of any length.
fn shortened(why: &str) -> String {
    const MOST: usize = 300;
    why.char_indices().nth(MOST).map_or_else(|| why.to_owned(), |(end, _)| format!("{} ..", &why[..end]))
}

/// What a snapshot's spec has and what that of the cache has instead. `None` if the tokens of the snapshot are
/// tokens of the cache.
pub(super) fn difference(theirs: &CacheSpec, own: &CacheSpec) -> Option<String> {
    let specs = [theirs, own].map(essence);
    let rows = text::OPTIONS.iter();
    let mut rows = rows.map(|row| (row.name, specs.each_ref().map(|spec| row.words(spec).join(" "))));
    let (name, words) = rows.find(|(_, [theirs, own])| theirs != own)?;
    let [theirs, own] = match name {
        "kv" | "layer-kv" => in_first_layer(&specs, |spec, layer| {
            let (key, value) = spec.codecs_at(layer);
            format!("{},{}", key.name(), value.name())
        }),
        "kinds" | "sliding-window" => {
            in_first_layer(&specs, |spec, layer| match spec.kind_without_ring(layer) {
                LayerKind::Full => "full".to_owned(),
                LayerKind::None => "none".to_owned(),
                LayerKind::Sliding(window) => format!("{window} and {} sinks", spec.sinks_at(layer)),
            })
        }
        // Lists of all layers are too long for a message.
        "layer-shapes" | "sink-logits" => ["a", "another"].map(|which| format!("{which} {name}=")),
        _ => words,
    };
    Some(format!("the snapshot has {theirs}, this cache {own}"))
}

/// What two specs of as many layers say of the first layer in which they differ.
fn in_first_layer(specs: &[CacheSpec; 2], say: impl Fn(&CacheSpec, usize) -> String) -> [String; 2] {
    let said =
        (0..specs[1].shape.num_layers).map(|layer| (layer, specs.each_ref().map(|spec| say(spec, layer))));
    let (layer, [theirs, own]) =
        said.into_iter().find(|(_, [theirs, own])| theirs != own).unwrap_or_default();
    [format!("{theirs} in layer {layer}"), own]
}

/// What the tokens of a cache depend on. Words that mean the same are alike in it, and how a cache reads its
/// tokens, and how many it may have, is left out.
fn essence(spec: &CacheSpec) -> CacheSpec {
    let layers = 0..spec.shape.num_layers;
    let codecs: Vec<_> = layers.clone().map(|layer| spec.codecs_at(layer)).collect();
    let (key, value) = codecs.first().copied().unwrap_or((spec.key, spec.value));
    let is_uniform = codecs.iter().all(|pair| *pair == (key, value));
    // Sinks tell a window of the model from one of the cache.
    let of_cache = spec.sliding_window.filter(|_| spec.kinds.is_empty() && spec.sinks > 0);
    let kinds: Vec<_> = layers.clone().map(|layer| spec.kind_without_ring(layer)).collect();
    let is_plain = of_cache.is_some() || kinds.iter().all(|kind| *kind == LayerKind::Full);
    let could_map = layers.clone().any(|layer| spec.has_map(layer) || spec.may_get_map(layer));
    CacheSpec {
        key,
        value,
        layers: if is_uniform { LayerPolicy::Uniform } else { LayerPolicy::Custom(codecs) },
        kinds: if is_plain { Vec::new() } else { kinds },
        sliding_window: of_cache,
        key_map: if could_map { spec.key_map } else { KeyMap::Off },
        select: None,
        ..elsewhere(spec, PathBuf::new)
    }
}

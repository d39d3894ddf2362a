//! What a snapshot's spec has, and what that of the cache has instead.

use super::spec;
use crate::cache::layer::LayerKind;
use crate::cache::spec::CacheSpec;
use crate::cache::text;

/// Options of the text in each field of a snapshot, where both sides are short enough for a message.
const OPTIONS: &[(&str, &[&str])] = &[
    ("shape", &["layers", "heads", "kv-heads", "head-dim", "position-dim", "value-dim"]),
    ("rotation seed", &["seed"]),
    ("scale mode or effort", &["scale-mode", "effort"]),
    ("number of sinks", &["sinks"]),
    ("hot window", &["hot"]),
    ("centring or arithmetic", &["centring", "arithmetic"]),
    ("cold tier", &["tier"]),
    ("factor of the logits", &["scale"]),
    ("soft cap", &["soft-cap"]),
    (MORE, &["narrow-at", "ring", "map"]),
    ("number of bytes before narrowing", &["narrow-at", "ring", "map"]),
    ("ring", &["ring"]),
    ("key map", &["map"]),
];

/// The name of fields that only the snapshot has.
pub(super) const MORE: &str = "ring, key map or narrowing";

/// Both sides of a difference, as the end of an error. Empty where the snapshot's spec cannot be read, or
/// where the two cannot be told in few words.
pub(super) fn between(payload: &[u8], own: &CacheSpec, what: &str) -> String {
    let Ok(theirs) = spec::read(payload) else { return String::new() };
    let sides = match what {
        "codec of some layer" => first_layer(&theirs, own, |spec, layer| {
            let (key, value) = spec.codecs_at(layer);
            format!("{},{}", key.name(), value.name())
        }),
        "kind of some layer" => {
            first_layer(&theirs, own, |spec, layer| match spec.kind_without_ring(layer) {
                LayerKind::Full => "full".to_owned(),
                LayerKind::None => "none".to_owned(),
                LayerKind::Sliding(window) => format!("{window} and {} sinks", spec.sinks_at(layer)),
            })
        }
        _ => options(&theirs, own, what),
    };
    sides.map_or_else(String::new, |[theirs, own]| format!(": the snapshot has {theirs}, this cache {own}"))
}

fn first_layer(
    theirs: &CacheSpec,
    own: &CacheSpec,
    say: impl Fn(&CacheSpec, usize) -> String,
) -> Option<[String; 2]> {
    let both = |layer| [say(theirs, layer), say(own, layer)];
    let layer = (0..own.shape.num_layers).find(|&layer| both(layer)[0] != both(layer)[1])?;
    let [theirs, own] = both(layer);
    Some([format!("{theirs} in layer {layer}"), own])
}

fn options(theirs: &CacheSpec, own: &CacheSpec, what: &str) -> Option<[String; 2]> {
    let (_, names) = OPTIONS.iter().find(|(field, _)| *field == what)?;
    let rows = text::OPTIONS.iter().filter(|row| names.contains(&row.name));
    let differ = rows.map(|row| [theirs, own].map(|spec| row.words(spec).join(" ")));
    let differ: Vec<_> = differ.filter(|[theirs, own]| theirs != own).collect();
    let joined = |side: usize| differ.iter().map(|sides| sides[side].as_str()).collect::<Vec<_>>().join(" ");
    (!differ.is_empty()).then(|| [joined(0), joined(1)])
}

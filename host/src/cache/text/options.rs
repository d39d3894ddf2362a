//! The options of a cache, one row each: who has it, name, value, help, and how to read and write it.

use super::bytes::ByteSize;
use super::doors::Support::{self, Has, Ignores, Refuses};
use super::doors::{ALL, MAIN, SEQUENCE};
use super::values::Value;
use crate::cache::layer::KvPair;
use crate::cache::spec::{CacheSpec, Cold};
use std::path::PathBuf;
use std::sync::Arc;
use tqkv_core::KvShape;

/// Sets the fields of a spec that one word names.
pub(super) type Setter = Arc<dyn Fn(&mut CacheSpec) + Send + Sync>;

/// The subject of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionPart {
    /// The model: its shape and attention.
    Model,
    /// The way in which the cache keeps tokens.
    Policy,
}

/// An option of a cache.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SpecOption {
    /// The word before the `=`.
    pub name: &'static str,
    /// The form of the text after the `=`.
    pub value: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// A value in its shortest form, other than the default.
    pub example: &'static str,
    /// The subject of the option.
    pub part: OptionPart,
    /// What each cache makes of it, in the order of [`Door::ALL`](super::Door::ALL).
    pub(super) doors: [Support; 4],
    /// True if a full spec must have it.
    pub(super) is_needed: bool,
    /// Removes the earlier values first, for options that may be repeated.
    pub(super) clear: Option<fn(&mut CacheSpec)>,
    read: fn(&str) -> Result<Setter, String>,
    write: fn(&CacheSpec) -> Vec<String>,
}

/// The option whose name may be omitted.
pub(super) const CODECS: &str = "kv";
/// The option whose name may be omitted if the value has a colon.
pub(super) const LAYER_RULE: &str = "layer-kv";

/// Makes the option of a row mandatory in a full spec.
const fn needed(option: SpecOption) -> SpecOption {
    SpecOption { is_needed: true, ..option }
}

/// Makes the row of an option, from a field of [`CacheSpec`] or from a getter and a setter.
macro_rules! row {
    ($part:ident, $doors:expr, $name:expr, $value:expr, $example:expr, $help:expr, $($field:ident).+) => {
        row!($part, $doors, $name, $value, $example, $help, |spec| spec.$($field).+.write(), |spec, value| {
            spec.$($field).+ = value;
        })
    };
    ($part:ident, $doors:expr, $name:expr, $value:expr, $example:expr, $help:expr, $write:expr, $set:expr) => {
        SpecOption {
            name: $name,
            value: $value,
            help: $help,
            example: $example,
            part: OptionPart::$part,
            doors: $doors,
            is_needed: false,
            clear: None,
            read: |text| setter(text, $set),
            write: |spec| {
                let write: fn(&CacheSpec) -> String = $write;
                vec![write(spec)]
            },
        }
    };
}

/// Every option of a cache, in the order of reading and writing.
#[rustfmt::skip] // A row is two lines: who has it and what it is called, and what it does.
pub const OPTIONS: &[SpecOption] = &[
    needed(row!(Model, ALL, "layers", "N", "3",
        "Decoder layers.", shape.num_layers)),
    needed(row!(Model, ALL, "heads", "N", "8",
        "Query heads, and KV heads where kv-heads is not given.",
        |spec| spec.shape.num_heads.write(),
        |spec, n| (spec.shape.num_heads, spec.shape.num_kv_heads) = (n, n))),
    row!(Model, ALL, "kv-heads", "N", "1",
        "KV heads. They divide the query heads.", shape.num_kv_heads),
    needed(row!(Model, ALL, "head-dim", "N", "128",
        "Coordinates of a key, and of a value where value-dim is not given.",
        |spec| spec.shape.head_dim.write(),
        |spec, n| (spec.shape.head_dim, spec.shape.value_dim) = (n, n))),
    row!(Model, SEQUENCE, "position-dim", "N", "16",
        "Coordinates of head-dim that are the positional part of latent vectors (MLA).",
        |spec| spec.position_dim.write(), set_position_dim),
    row!(Model, [Has, Refuses, Has, Refuses], "value-dim", "N", "32",
        "Coordinates of a value or of a latent vector.", shape.value_dim),
    row!(Model, MAIN, "layer-shapes", "KV_HEADSxHEAD_DIM[xVALUE_DIM]/..", "2x64/1x128",
        "KV heads and coordinates of each layer, where layers differ. 5*2x64 stands for five layers.",
        layer_shapes),
    row!(Model, SEQUENCE, "kinds", "KIND/KIND/..", "128/full",
        "What queries of each layer see: full, a window of tokens, or none. 5*128 stands for five layers.",
        kinds),
    row!(Model, MAIN, "scale", "F", "0.25",
        "Factor of the logits. none stands for 1/sqrt(head_dim).", scale),
    row!(Model, MAIN, "soft-cap", "F", "30",
        "Logits l become F * tanh(l / F).", soft_cap),
    row!(Model, MAIN, "sink-logits", "F/F/..", "0.5/-1/0/2/0/0/1/1.5",
        "Learned sinks: one logit per query head of each layer.", sink_logits),
    row!(Policy, ALL, CODECS, "PRESET|K,V", "t4,t2",
        "A preset, one codec for both, or two. The name may be left out.",
        |spec| (spec.key, spec.value).write(),
        |spec, (key, value): KvPair| (spec.key, spec.value) = (key, value)),
    row!(Policy, [Has, Refuses, Has, Refuses], LAYER_RULE, "RULE", "boundary:1:i8,s4",
        "Codecs of some layers: last:K,V, tail:N:K,V, boundary:N:K,V, gradient:K,V/.. or each:N*K,V/..", layers),
    row!(Policy, ALL, "hot", "TOKENS", "32",
        "Newest tokens that stay f16.", hot),
    row!(Policy, SEQUENCE, "narrow-at", "SIZE", "8MiB",
        "Bytes up to which all tokens stay f16. From there on the oldest are encoded, until hot= are left.",
        |spec| spec.narrow_at.map(ByteSize).write(),
        |spec, bytes: Option<ByteSize>| spec.narrow_at = bytes.map(|bytes| bytes.0)),
    row!(Policy, ALL, "sinks", "TOKENS", "8",
        "First tokens that stay f16.", sinks),
    row!(Policy, SEQUENCE, "sliding-window", "TOKENS", "256",
        "Newest tokens that queries see besides the sinks.", sliding_window),
    row!(Policy, SEQUENCE, "select", "TOKENS", "2048",
        "Encoded tokens that single queries attend to, those whose keys promise most. Others are left out.", select),
    row!(Policy, SEQUENCE, "ring", "TOKENS", "4096",
        "Newest tokens that a cache of fixed memory holds besides the sinks. All memory is taken at the start.", ring),
    row!(Policy, [Refuses, Has, Refuses, Refuses], "max-tokens", "TOKENS", "4096",
        "Most tokens of a layer. What would be beyond it is refused.", max_tokens),
    SpecOption {
        clear: Some(|spec| spec.cold.retain(|(_, cold)| matches!(cold, Cold::Spill(_)))),
        write: tiers,
        ..row!(Policy, MAIN, "tier", "AFTER:K,V", "256:s2,s2",
            "Codecs of tokens older than AFTER. It may be repeated.", |_| String::new(), add_tier)
    },
    row!(Policy, SEQUENCE, "spill", "AFTER:FOLDER", "4096:/tmp",
        "Tokens older than AFTER go to a file in FOLDER.", spill, set_spill),
    row!(Policy, [Has, Ignores, Has, Ignores], "centring", "auto|on|off", "off",
        "Keys and values are stored less their means.", centring),
    row!(Policy, MAIN, "map", "auto|off|pairs", "pairs",
        "Keys go through a map that is learnt from the first page. auto stands for pairs of keys in m2 or m3, and of keys whose energy few pairs hold.",
        key_map),
    row!(Policy, [Refuses, Ignores, Ignores, Ignores], "arithmetic", "int8|f32", "f32",
        "Numbers in which single queries meet encoded tokens.", arithmetic),
    row!(Policy, ALL, "seed", "N", "7",
        "Seed of the rotation's signs.", options.seed),
    row!(Policy, ALL, "scale-mode", "raw|preserving|unbiased|mmse", "mmse",
        "How the scale of a block is chosen.", options.scale_mode),
    row!(Policy, ALL, "effort", "fast|default|best", "best",
        "How far the encoder searches.", options.effort),
    row!(Policy, [Has, Refuses, Ignores, Ignores], "level", "NAME", "portable",
        "Instruction set. none stands for that of TQKV_LEVEL, or the fastest.", level),
];

impl SpecOption {
    /// Parses a value. The error is a full message.
    pub(super) fn read(&self, text: &str) -> Result<Setter, String> {
        let Self { name, value, example, .. } = self;
        (self.read)(text).map_err(|detail| {
            let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
            format!("{name}={text} is not valid: expected {name}={value}, such as {name}={example}{detail}")
        })
    }

    /// The value that a cache has without this option. `None` if it is none.
    pub fn default(&self) -> Option<String> {
        (self.write)(&unset()).into_iter().find(|value| value != "none")
    }

    /// The words of this option that describe a spec.
    pub(in crate::cache) fn words(&self, spec: &CacheSpec) -> Vec<String> {
        // Codecs are written without a name.
        let name = if self.name == CODECS { String::new() } else { format!("{}=", self.name) };
        (self.write)(spec).into_iter().map(|value| format!("{name}{value}")).collect()
    }
}

/// A spec with only the defaults set.
pub(super) fn unset() -> CacheSpec {
    CacheSpec::from(KvShape::new(0, 0, 0, 0))
}

/// Lists the names of options.
pub(super) fn accepted(parts: &[OptionPart]) -> String {
    let options = OPTIONS.iter().filter(|option| parts.contains(&option.part));
    let names: Vec<_> = options.map(|option| format!("{}=", option.name)).collect();
    names.join(", ")
}

/// The message for an unknown name.
pub(super) fn unknown(name: &str, parts: &[OptionPart]) -> String {
    let accepted = accepted(parts);
    match OPTIONS.iter().any(|option| option.name == name) {
        true => format!("{name}= is not valid here, as it is a property of the model: expected {accepted}"),
        false => format!("{name}= is not valid: expected {accepted}"),
    }
}

fn setter<T: Value>(
    text: &str,
    set: impl Fn(&mut CacheSpec, T) + Send + Sync + 'static,
) -> Result<Setter, String> {
    let value = T::read(text)?;
    Ok(Arc::new(move |spec| set(spec, value.clone())))
}

fn set_position_dim(spec: &mut CacheSpec, dim: usize) {
    (spec.position_dim, spec.shape.value_dim) = (dim, spec.shape.head_dim.saturating_sub(dim));
}

/// Sorts tiers by age; a spill file comes last.
fn sort_by_age(spec: &mut CacheSpec) {
    spec.cold.sort_by_key(|(after, cold)| (matches!(cold, Cold::Spill(_)), *after));
}

fn add_tier(spec: &mut CacheSpec, tier: Option<(usize, KvPair)>) {
    spec.cold.extend(tier.map(|(after, (key, value))| (after, Cold::Demote { key, value })));
    sort_by_age(spec);
}

fn tiers(spec: &CacheSpec) -> Vec<String> {
    let tier = |(after, cold): &(usize, Cold)| match *cold {
        Cold::Demote { key, value } => Some((*after, (key, value)).write()),
        Cold::Spill(_) => None,
    };
    let found: Vec<_> = spec.cold.iter().filter_map(tier).collect();
    if found.is_empty() { vec![None::<usize>.write()] } else { found }
}

fn set_spill(spec: &mut CacheSpec, spill: Option<(usize, PathBuf)>) {
    spec.cold.retain(|(_, cold)| !matches!(cold, Cold::Spill(_)));
    spec.cold.extend(spill.map(|(after, folder)| (after, Cold::Spill(folder))));
    sort_by_age(spec);
}

fn spill(spec: &CacheSpec) -> String {
    let file = |(after, cold): &(usize, Cold)| match cold {
        Cold::Spill(folder) => Some((*after, folder.clone())),
        Cold::Demote { .. } => None,
    };
    spec.cold.iter().find_map(file).write()
}

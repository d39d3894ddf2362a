//! Values of options: parsed, and written in their shortest form.

use crate::cache::layer::{KvPair, LayerKind, LayerPolicy, LayerShape};
use crate::cache::preset::{PRESETS, Preset};
use crate::cache::spec::{Arithmetic, Centring, KeyMap};
use std::path::PathBuf;
use std::str::FromStr;
use tqkv_core::{CodecId, Effort, ScaleMode};
use tqkv_simd::Level;

/// Codecs that an error names. The full list is too long for a message.
pub const COMMON_CODECS: [&str; 10] = ["f16", "i8", "t4", "s4", "t3", "s3", "t2", "s2", "q8_0", "q4_0"];

/// The text of an unset option.
const NONE: &str = "none";

/// The text for layers that are all alike.
const UNIFORM: &str = "uniform";

/// A value of an option. The written text parses to the same value.
pub(super) trait Value: Clone + Send + Sync + Sized + 'static {
    /// Parses a text. The error gives details, or is empty if there are none beyond "not a value of this
    /// option".
    fn read(text: &str) -> Result<Self, String>;

    fn write(&self) -> String;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Value for $number {
            fn read(text: &str) -> Result<Self, String> {
                number(text)
            }

            fn write(&self) -> String {
                self.to_string()
            }
        })*
    };
}

numbers!(usize, u64);

/// A number that is finite: no setting has another, and `NaN` would not be equal to itself.
impl Value for f32 {
    fn read(text: &str) -> Result<Self, String> {
        let value: Self = number(text)?;
        if value.is_finite() { Ok(value) } else { Err(format!("{value} is not finite")) }
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| String::new())
}

impl<T: Value> Value for Option<T> {
    fn read(text: &str) -> Result<Self, String> {
        if text == NONE { Ok(None) } else { T::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.as_ref().map_or(NONE.to_owned(), T::write)
    }
}

/// A list of values, or an empty one.
impl Value for Vec<f32> {
    fn read(text: &str) -> Result<Self, String> {
        if text == NONE { Ok(Self::new()) } else { text.split('/').map(f32::read).collect() }
    }

    fn write(&self) -> String {
        if self.is_empty() { NONE.to_owned() } else { joined(self.iter().map(f32::write)) }
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join("/")
}

/// Finds a value by its name.
fn named<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    all.iter().copied().find(|value| name(*value).eq_ignore_ascii_case(text)).ok_or_else(String::new)
}

macro_rules! names {
    ($($option:ty),*) => {
        $(impl Value for $option {
            fn read(text: &str) -> Result<Self, String> {
                named(text, &Self::ALL, Self::name)
            }

            fn write(&self) -> String {
                self.name().to_owned()
            }
        })*
    };
}

names!(Effort, ScaleMode);

/// Options whose values are words.
macro_rules! words {
    ($($option:ident { $($value:ident = $word:literal),+ })+) => {$(
        impl Value for $option {
            fn read(text: &str) -> Result<Self, String> {
                named(text, &[$(Self::$value),+], |value| match value {
                    $(Self::$value => $word),+
                })
            }

            fn write(&self) -> String {
                match self {
                    $(Self::$value => $word),+
                }
                .to_owned()
            }
        }
    )+};
}

words! {
    Centring { Off = "off", On = "on", Auto = "auto" }
    KeyMap { Auto = "auto", Off = "off", Pairs = "pairs" }
    Arithmetic { Int8 = "int8", F32 = "f32" }
}

impl Value for Level {
    fn read(text: &str) -> Result<Self, String> {
        Self::from_name(text).map_err(|error| error.to_string())
    }

    fn write(&self) -> String {
        self.name().name().to_owned()
    }
}

/// A preset, one codec for keys and values, or two codecs.
impl Value for KvPair {
    fn read(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split(',').map(str::trim).collect();
        match parts.as_slice() {
            [one] => match Preset::find(one) {
                Some(preset) => Ok(preset.codecs),
                None => one.parse().map(|codec| (codec, codec)).map_err(|_| {
                    let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
                    format!("'{one}' is neither a preset ({}) nor {}", names.join(", "), a_codec())
                }),
            },
            [key, value] => {
                if let Some(both) = parts.iter().find(|part| Preset::find(part).is_some()) {
                    return Err(format!("'{both}' is a preset, which stands for both parts of K,V"));
                }
                Ok((codec(key)?, codec(value)?))
            }
            _ => Err(format!("'{text}' has {} parts", parts.len())),
        }
    }

    fn write(&self) -> String {
        format!("{},{}", self.0.name(), self.1.name())
    }
}

/// Reads the codecs of a tier, of some layers, or of a cache that has no tiers.
pub(super) fn codecs_of_some(text: &str) -> Result<KvPair, String> {
    match Preset::find(text.trim()).filter(|preset| !preset.options.is_empty()) {
        Some(preset) => Err(format!("'{}' is a policy for all tokens: expected codecs", preset.name)),
        None => KvPair::read(text),
    }
}

fn codec(name: &str) -> Result<CodecId, String> {
    name.parse().map_err(|_| format!("'{name}' is not {}", a_codec()))
}

fn a_codec() -> String {
    format!("a codec ({} and others)", COMMON_CODECS.join(", "))
}

/// Parses `AFTER:VALUE`.
fn after<T>(text: &str, read: fn(&str) -> Result<T, String>) -> Result<(usize, T), String> {
    let (after, value) = text.split_once(':').ok_or_else(String::new)?;
    let tokens = after.trim().parse().map_err(|_| format!("'{after}' is not a number of tokens"))?;
    Ok((tokens, read(value)?))
}

impl Value for (usize, KvPair) {
    fn read(text: &str) -> Result<Self, String> {
        after(text, codecs_of_some)
    }

    fn write(&self) -> String {
        format!("{}:{}", self.0, self.1.write())
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("the folder has no name".to_owned()) } else { Ok(text.into()) }
    }

    /// Writes a folder whose name is not Unicode with replacement characters.
    fn write(&self) -> String {
        self.display().to_string()
    }
}

impl Value for (usize, PathBuf) {
    fn read(text: &str) -> Result<Self, String> {
        after(text, PathBuf::read)
    }

    fn write(&self) -> String {
        format!("{}:{}", self.0, self.1.write())
    }
}

impl Value for LayerPolicy {
    fn read(text: &str) -> Result<Self, String> {
        let layers = |n: &str| n.parse().map_err(|_| format!("'{n}' is not a number of layers"));
        let pairs = |text: &str| text.split('/').map(codecs_of_some).collect::<Result<_, _>>();
        Ok(match *text.split(':').collect::<Vec<_>>().as_slice() {
            [UNIFORM] => Self::Uniform,
            ["last", kv] => Self::Tail { layers: 1, codecs: codecs_of_some(kv)? },
            ["tail", n, kv] => Self::Tail { layers: layers(n)?, codecs: codecs_of_some(kv)? },
            ["boundary", n, kv] => Self::Boundary { layers: layers(n)?, codecs: codecs_of_some(kv)? },
            ["gradient", steps] => Self::Gradient(pairs(steps)?),
            ["each", all] if all != UNIFORM => Self::Custom(layers_of(all, codecs_of_some)?),
            _ => {
                let rules = "last:K,V, tail:N:K,V, boundary:N:K,V, gradient:K,V/K,V/.., each:N*K,V/K,V/.. and uniform";
                return Err(format!("rules are {rules}"));
            }
        })
    }

    fn write(&self) -> String {
        let pairs = |pairs: &[KvPair]| joined(pairs.iter().map(KvPair::write));
        match self {
            Self::Uniform => UNIFORM.to_owned(),
            Self::Tail { layers, codecs } => format!("tail:{layers}:{}", codecs.write()),
            Self::Boundary { layers, codecs } => format!("boundary:{layers}:{}", codecs.write()),
            Self::Gradient(steps) => format!("gradient:{}", pairs(steps)),
            Self::Custom(all) => format!("each:{}", runs(all, KvPair::write)),
        }
    }
}

/// Limit on the layers of a list of kinds: more than any model has.
const MOST_LAYERS: usize = 1 << 16;

/// Kinds of layers. A run of equal kinds is written once.
impl Value for Vec<LayerKind> {
    fn read(text: &str) -> Result<Self, String> {
        layers_of(text, |kind| {
            Ok(match kind {
                "full" => LayerKind::Full,
                NONE => LayerKind::None,
                tokens => LayerKind::Sliding(tokens.parse().map_err(|_| format!("'{kind}' is not a kind"))?),
            })
        })
    }

    fn write(&self) -> String {
        runs(self, |kind| match kind {
            LayerKind::Full => "full".to_owned(),
            LayerKind::None => NONE.to_owned(),
            LayerKind::Sliding(tokens) => tokens.to_string(),
        })
    }
}

/// Shapes of layers. A run of equal shapes is written once.
impl Value for Vec<LayerShape> {
    fn read(text: &str) -> Result<Self, String> {
        layers_of(text, |word| {
            let numbers: Option<Vec<usize>> = word.split('x').map(|number| number.parse().ok()).collect();
            match numbers.as_deref() {
                Some(&[num_kv_heads, head_dim]) => {
                    Ok(LayerShape { num_kv_heads, head_dim, value_dim: head_dim })
                }
                Some(&[num_kv_heads, head_dim, value_dim]) => {
                    Ok(LayerShape { num_kv_heads, head_dim, value_dim })
                }
                _ => Err(format!("'{word}' is not a shape")),
            }
        })
    }

    fn write(&self) -> String {
        runs(self, |LayerShape { num_kv_heads, head_dim, value_dim }| {
            let value = if value_dim == head_dim { String::new() } else { format!("x{value_dim}") };
            format!("{num_kv_heads}x{head_dim}{value}")
        })
    }
}

/// Parses words of layers, parted by slashes. `5*WORD` stands for five layers, and [`UNIFORM`] for no list.
fn layers_of<T: Clone>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut layers = Vec::new();
    if text == UNIFORM {
        return Ok(layers);
    }
    for part in text.split('/') {
        let (n, word) = part.split_once('*').unwrap_or(("1", part));
        let free = MOST_LAYERS - layers.len();
        let n = n.parse::<usize>().ok().filter(|n| (1..=free).contains(n));
        let n = n.ok_or_else(|| format!("'{part}' does not stand for 1 to {free} layers"))?;
        layers.extend(std::iter::repeat_n(read(word)?, n));
    }
    Ok(layers)
}

/// The inverse of [`layers_of`].
fn runs<T: PartialEq>(layers: &[T], write: impl Fn(&T) -> String) -> String {
    if layers.is_empty() {
        return UNIFORM.to_owned();
    }
    joined(layers.chunk_by(PartialEq::eq).map(|run| {
        let word = write(&run[0]);
        if run.len() == 1 { word } else { format!("{}*{word}", run.len()) }
    }))
}

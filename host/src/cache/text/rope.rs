//! RoPE as a word: `10000` for all layers, `10000:64` for a part of each head, or a list of layers.

use super::values::{Value, layers_of, runs};
use crate::cache::spec::CacheSpec;
use crate::rope::{Pairs, Rope};
use tqkv_core::MAX_HEAD_DIM;

/// The text for RoPE that is not known.
const NONE: &str = "none";
/// A layer without RoPE.
const NOPE: &str = "nope";
const INTERLEAVED: &str = "interleaved";

/// RoPE of layers, with frequencies that may depend on the head dim.
#[derive(Clone)]
pub(super) struct Ropes(Vec<Word>);

#[derive(Clone, PartialEq)]
struct Word {
    pairs: Pairs,
    frequencies: Frequencies,
}

#[derive(Clone, PartialEq)]
enum Frequencies {
    /// Base, and the number of rotated coordinates if it is not the head dim.
    Base(f64, Option<usize>),
    /// Radians per position of each pair.
    List(Vec<f64>),
}

impl Value for Ropes {
    fn read(text: &str) -> Result<Self, String> {
        if text == NONE { Ok(Self(Vec::new())) } else { layers_of(text, word).map(Self) }
    }

    fn write(&self) -> String {
        if self.0.is_empty() { NONE.to_owned() } else { runs(&self.0, write) }
    }
}

fn word(text: &str) -> Result<Word, String> {
    let bad = || format!("'{text}' is neither a base nor frequencies");
    let (text, pairs) = match text.strip_suffix(INTERLEAVED).and_then(|text| text.strip_suffix(':')) {
        Some(text) => (text, Pairs::Interleaved),
        None => (text, Pairs::Half),
    };
    let number = |text: &str| text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    let frequencies = if text == NOPE {
        Some(Frequencies::List(Vec::new()))
    } else if text.contains(',') {
        let list = text.strip_suffix(',').unwrap_or(text);
        list.split(',').map(number).collect::<Option<_>>().map(Frequencies::List)
    } else {
        let (base, part) = text.split_once(':').unwrap_or((text, ""));
        let part = if part.is_empty() {
            Some(None)
        } else {
            part.parse().ok().filter(|part| *part <= MAX_HEAD_DIM).map(Some)
        };
        let base = number(base).filter(|base| *base > 0.0);
        base.zip(part).map(|(base, part)| Frequencies::Base(base, part))
    };
    frequencies.map(|frequencies| Word { pairs, frequencies }).ok_or_else(bad)
}

fn write(word: &Word) -> String {
    let frequencies = match &word.frequencies {
        Frequencies::Base(base, None) => base.to_string(),
        Frequencies::Base(base, Some(part)) => format!("{base}:{part}"),
        Frequencies::List(list) if list.is_empty() => NOPE.to_owned(),
        Frequencies::List(list) => list.iter().map(|x| format!("{x},")).collect(),
    };
    let pairs = if word.pairs == Pairs::Interleaved { format!(":{INTERLEAVED}") } else { String::new() };
    frequencies + &pairs
}

/// Sets the RoPE of a spec, whose head dim is known.
pub(super) fn set(spec: &mut CacheSpec, Ropes(words): Ropes) {
    let head_dim = spec.shape.head_dim;
    let rope = |Word { pairs, frequencies }| {
        let inv_freq = match frequencies {
            Frequencies::Base(base, part) => of_base(base, part.unwrap_or(head_dim)),
            Frequencies::List(list) => list,
        };
        Rope::new(0, pairs, inv_freq)
    };
    spec.rope = words.into_iter().map(rope).collect();
}

/// The word of a spec's RoPE. Frequencies of a whole base are written as that base.
pub(super) fn text(spec: &CacheSpec) -> String {
    let word = |rope: &Rope| {
        let list = &rope.inv_freq;
        let rotated = 2 * list.len();
        let part = (rotated != spec.shape.head_dim).then_some(rotated);
        let base = list.get(1).map(|x| libm::round(libm::pow(*x, -(list.len() as f64))));
        let base = base.filter(|base| of_base(*base, rotated) == *list);
        let frequencies =
            base.map_or_else(|| Frequencies::List(list.clone()), |base| Frequencies::Base(base, part));
        Word { pairs: rope.pairs, frequencies }
    };
    Ropes(spec.rope.iter().map(word).collect()).write()
}

/// Frequencies of the pairs of `rotated` coordinates. No cache has more than [`MAX_HEAD_DIM`] of them.
fn of_base(base: f64, rotated: usize) -> Vec<f64> {
    (0..rotated.min(MAX_HEAD_DIM) / 2).map(|i| libm::pow(base, -((2 * i) as f64) / rotated as f64)).collect()
}

//! A cache as text: `t4,t2 hot=32 tier=128:t2`. Every interface of the project reads this one grammar.
//!
//! The rows of [`OPTIONS`] define the words, and which caches have them. A new option is a field of [`CacheSpec`] and a
//! row there.

mod bytes;
mod conflicts;
mod doors;
mod options;
mod values;

pub use bytes::read_bytes;
pub use doors::Door;
pub use options::{OPTIONS, OptionPart, SpecOption};
pub use values::COMMON_CODECS;

use super::layer::{KvPair, LayerPolicy};
use super::preset::Preset;
use super::spec::{CacheSpec, KeyMap};
use crate::error::CacheError;
use doors::Support;
use std::fmt;
use std::str::FromStr;
use tqkv_core::KvShape;
use values::Value;

/// Limit on the words of an option that may be repeated: more than there are widths of codecs.
const MOST_TIERS: usize = 64;

const EVERY: &[OptionPart] = &[OptionPart::Model, OptionPart::Policy];

impl Door {
    /// What this cache makes of an option.
    fn support(self, row: &SpecOption) -> Support {
        row.doors[self as usize]
    }

    /// True if this cache does what the option says.
    pub fn has(self, row: &SpecOption) -> bool {
        self.support(row) == Support::Has
    }

    /// The words of a spec that this cache cannot follow.
    pub fn refused(self, spec: &CacheSpec) -> Vec<String> {
        // No map is what a cache without maps has.
        let key_map = if spec.key_map == KeyMap::Off { KeyMap::Off } else { KeyMap::Auto };
        let plain = CacheSpec { key_map, ..plain(spec) };
        let rows = OPTIONS.iter().filter(|row| self.support(row) == Support::Refuses);
        rows.filter(|row| row.words(spec) != row.words(&plain)).flat_map(|row| row.words(spec)).collect()
    }

    /// The options that this cache has, as a list for people.
    pub fn accepted(self, parts: &[OptionPart]) -> String {
        let rows = OPTIONS.iter().filter(|row| self.has(row) && parts.contains(&row.part));
        rows.map(|row| format!("{}=", row.name)).collect::<Vec<_>>().join(", ")
    }
}

/// Reads codecs for all tokens: a preset that stands for nothing else, one codec for both, or `K,V`.
///
/// # Errors
/// [`CacheError::BadSpec`] for another text.
pub fn pair_of(text: &str) -> Result<KvPair, CacheError> {
    Policy::new([(options::CODECS, text)])?;
    values::codecs_of_some(text).map_err(CacheError::BadSpec)
}

/// The spec of the same shape with the default of every option.
fn plain(spec: &CacheSpec) -> CacheSpec {
    let KvShape { num_layers, num_heads, head_dim, .. } = spec.shape;
    let mut plain = CacheSpec::new(num_layers, num_heads, num_heads, head_dim);
    plain.shape.value_dim = head_dim.saturating_sub(spec.position_dim);
    plain
}

/// How a cache keeps its tokens, as people write it: codecs, then options in any order.
///
/// ```text
/// balanced
/// t4,t2 hot=64 sinks=4
/// t4 last:i8 tier=4096:t2 'spill=32768:/my disk'
/// ```
///
/// A policy does not describe the model. [`Policy::apply`] leaves every field that the policy does not name
/// as it is. A word without `=` is a codec, a preset or, if it has a colon, a rule for layers. Words with
/// spaces are quoted as in a shell. The presets `tiered` and `tiny` also stand for options, except for those
/// that the text has itself.
///
/// ```
/// use tqkv::CodecId;
/// use tqkv::cache::{CacheSpec, Policy};
///
/// let policy: Policy = "t4,t2 hot=32".parse()?;
/// let spec = policy.apply(CacheSpec::new(32, 32, 8, 128));
/// assert_eq!((spec.key, spec.value, spec.hot), (CodecId::T4, CodecId::T2, 32));
/// assert_eq!(policy.to_string(), "t4,t2 hot=32");
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Clone, Default)]
pub struct Policy {
    /// In the order of [`OPTIONS`].
    words: Vec<Word>,
}

/// A parsed word.
#[derive(Clone)]
struct Word {
    /// Its row in [`OPTIONS`].
    row: usize,
    set: options::Setter,
}

impl Policy {
    /// Makes a policy of options, which are pairs of a name and a value.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`] for an unknown name, a value that the option does not accept, or a repeated
    /// option. The text says what is accepted.
    pub fn new<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, CacheError> {
        Self::of(options, &[OptionPart::Policy]).map_err(CacheError::BadSpec)
    }

    /// Returns `spec` with the settings of the policy. Tiers of the policy replace all tiers of the spec.
    #[must_use]
    pub fn apply(&self, mut spec: CacheSpec) -> CacheSpec {
        for row in OPTIONS.iter().enumerate().filter(|(row, _)| self.names(*row)).map(|(_, row)| row) {
            if let Some(clear) = row.clear {
                clear(&mut spec);
            }
        }
        self.words.iter().for_each(|word| (word.set)(&mut spec));
        spec
    }

    fn names(&self, row: usize) -> bool {
        self.words.iter().any(|word| word.row == row)
    }

    fn of<'a>(
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
        parts: &[OptionPart],
    ) -> Result<Self, String> {
        let given: Vec<_> = options.into_iter().collect();
        let codecs = given.iter().find(|(name, _)| *name == options::CODECS);
        let preset =
            codecs.and_then(|(_, value)| Preset::find(value)).map_or(&[][..], |preset| preset.options);
        let more = preset.iter().copied().filter(|(name, _)| given.iter().all(|own| own.0 != *name));
        let mut policy = Self::default();
        for (name, value) in given.iter().copied().chain(more) {
            let row = OPTIONS.iter().position(|row| row.name == name && parts.contains(&row.part));
            let Some(row) = row else { return Err(options::unknown(name, parts)) };
            match (OPTIONS[row].clear, policy.words.iter().filter(|word| word.row == row).count()) {
                (None, 1..) => return Err(format!("{name}={value} is not valid: {name} is given twice")),
                (Some(_), MOST_TIERS..) => {
                    return Err(format!("{name}= is given too often: expected at most {MOST_TIERS} of it"));
                }
                _ => {}
            }
            let set = OPTIONS[row].read(value)?;
            policy.words.push(Word { row, set });
        }
        policy.words.sort_by_key(|word| word.row);
        Ok(policy)
    }

    fn read(text: &str, parts: &[OptionPart]) -> Result<Self, String> {
        let refused = || format!("{text} is not valid: expected a closing quote");
        let words = shlex::split(text).ok_or_else(refused)?;
        if words.is_empty() {
            return Err(format!(
                "an empty text is not valid: expected codecs or {}",
                options::accepted(parts)
            ));
        }
        Self::of(words.iter().map(|word| parted(word)), parts)
    }
}

/// Splits a word into the name of its option and the value.
fn parted(word: &str) -> (&str, &str) {
    let is_option = |name: &str| OPTIONS.iter().any(|row| row.name == name);
    match word.split_once('=') {
        Some(parts) => parts,
        // The value is missing.
        None if is_option(word) => (word, ""),
        None if word.contains(':') => (options::LAYER_RULE, word),
        None => (options::CODECS, word),
    }
}

impl FromIterator<Policy> for Policy {
    /// Combines several policies. The last one wins if two set the same option; tiers accumulate.
    fn from_iter<I: IntoIterator<Item = Self>>(policies: I) -> Self {
        let mut words: Vec<_> = policies.into_iter().flat_map(|policy| policy.words).collect();
        words.sort_by_key(|word| word.row);
        Self { words }
    }
}

impl FromStr for Policy {
    type Err = CacheError;

    fn from_str(text: &str) -> Result<Self, CacheError> {
        Self::read(text, &[OptionPart::Policy]).map_err(CacheError::BadSpec)
    }
}

impl fmt::Display for Policy {
    /// Writes the words in the order of [`OPTIONS`], each in its shortest form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = self.apply(options::unset());
        let rows = OPTIONS.iter().enumerate().filter(|(row, _)| self.names(*row));
        write_words(f, rows.flat_map(|(_, row)| row.words(&spec)))
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({self})")
    }
}

impl PartialEq for Policy {
    /// True if both policies set the same options to the same values.
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl CacheSpec {
    /// Returns the spec with the settings of a text: the words of a [`Policy`] and those of the model
    /// (`scale=0.25`).
    ///
    /// ```
    /// use tqkv::cache::CacheSpec;
    ///
    /// let spec = CacheSpec::new(32, 32, 8, 128).with("t4,t2 hot=32 last:i8")?;
    /// assert_eq!(spec.to_string().parse::<CacheSpec>()?, spec);
    /// # Ok::<(), tqkv::error::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::BadSpec`] for an unknown word, a value that the option does not accept, or a repeated
    /// option. The text says what is accepted.
    pub fn with(self, text: &str) -> Result<Self, CacheError> {
        Ok(Policy::read(text, EVERY).map_err(CacheError::BadSpec)?.apply(self))
    }
}

impl FromStr for LayerPolicy {
    type Err = CacheError;

    /// Reads the value of `layer-kv=`.
    fn from_str(text: &str) -> Result<Self, CacheError> {
        Self::read(text).map_err(CacheError::BadSpec)
    }
}

impl fmt::Display for LayerPolicy {
    /// Writes the value of `layer-kv=`, where each run of equal layers stands once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.write())
    }
}

impl FromStr for CacheSpec {
    type Err = CacheError;

    /// Reads the shape and the policy: `layers=32 heads=32 kv-heads=8 head-dim=128 t4,t2 hot=32`. Without
    /// `kv-heads` there are as many KV heads as query heads.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`]. [`super::KvCache::new`] may still refuse a spec that this call accepts.
    fn from_str(text: &str) -> Result<Self, CacheError> {
        let words = Policy::read(text, EVERY).map_err(CacheError::BadSpec)?;
        for (row, option) in OPTIONS.iter().enumerate().filter(|(_, option)| option.is_needed) {
            if !words.names(row) {
                let name = option.name;
                return Err(CacheError::BadSpec(format!(
                    "{name} is missing: expected {name}={}",
                    option.value
                )));
            }
        }
        Ok(words.apply(options::unset()))
    }
}

impl fmt::Display for CacheSpec {
    /// Writes the text that [`CacheSpec::from_str`] reads back as the same spec. It has the shape, the
    /// codecs, and every setting that differs from [`CacheSpec::new`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = plain(self);
        let said = |row: &&SpecOption| {
            row.is_needed || row.name == options::CODECS || row.words(self) != row.words(&plain)
        };
        write_words(f, OPTIONS.iter().filter(said).flat_map(|row| row.words(self)))
    }
}

/// The text of a spec with the words of all options, those that have their default too.
pub(super) fn all_words(spec: &CacheSpec) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = write_words(&mut text, OPTIONS.iter().flat_map(|row| row.words(spec)));
    text
}

fn write_words(f: &mut dyn fmt::Write, words: impl Iterator<Item = String>) -> fmt::Result {
    for (i, word) in words.enumerate() {
        let space = if i == 0 { "" } else { " " };
        // A shell would treat stars and commas specially; this grammar does not, so they need no quotes.
        let is_plain = !word.contains(|c: char| c.is_whitespace() || c.is_control() || "'\"\\".contains(c));
        if is_plain {
            write!(f, "{space}{word}")?;
        } else {
            let quoted = shlex::Quoter::new().allow_nul(true).quote(&word).map_err(|_| fmt::Error)?;
            write!(f, "{space}{quoted}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! A row of a comparison: one `--kv`, which describes a cache in words or names a yardstick.
//!
//! The library reads the words ([`tqkv::cache::Policy`]). A yardstick is a format of `tqkv_reference`, which
//! no cache stores, or another program (`program=COMMAND`).

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use tqkv::cache::{CacheSpec, Cold, LayerPolicy, PAGE_TOKENS, Policy as Words, Preset};
use tqkv::unstable::cache::{Door, OPTIONS, OptionPart};

use crate::error::CliError;
use crate::names;
use crate::preset::{self, F16, Kv, KvCodecs};

/// Tokens that stay f16 under every codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncompressed {
    /// First tokens of the sequence.
    pub sinks: u64,
    /// Newest tokens.
    pub hot: u64,
}

/// The name of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    pub kv: Kv,
    /// The text of `--kv`, if it says more than the codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// True for the codec of another program. The pair is then that of its exact tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_program: bool,
}

impl Name {
    /// The label in a table: the policy, or the pair with the name of its preset if it has one. Layers in a row that
    /// have the same codecs are counted.
    pub fn label(&self) -> String {
        match (&self.policy, self.kv.own().and_then(preset::of_pair)) {
            (Some(policy), _) if self.is_program => policy.clone(),
            (Some(policy), _) => policy.split(' ').map(counted_layers).collect::<Vec<_>>().join(" "),
            (None, Some(preset)) => format!("{} {}", self.kv, preset.name),
            (None, None) => self.kv.to_string(),
        }
    }
}

/// A word of a policy, where a list of layers has each run of equal codecs once: `each:t2/t2/s4` as `each:2*t2/s4`.
fn counted_layers(word: &str) -> String {
    let at = word.find("each:").unwrap_or(word.len());
    let (name, rule) = word.split_at(at);
    rule.parse::<LayerPolicy>().map_or_else(|_| word.to_owned(), |rule| format!("{name}{rule}"))
}

impl Name {
    /// A cell with bytes; marked as simulated for a reference format, because no cache holds them.
    pub(crate) fn bytes(&self, bytes: String) -> String {
        let is_stored = self.kv.own().is_some() && !self.is_program;
        if is_stored { bytes } else { format!("{bytes} simulated") }
    }
}

impl From<Kv> for Name {
    fn from(kv: Kv) -> Self {
        Self { kv, policy: None, is_program: false }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.policy {
            Some(policy) => f.write_str(policy),
            None => self.kv.fmt(f),
        }
    }
}

/// The settings of a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: Name,
    words: Words,
    /// The command of another program's codec.
    program: Option<Vec<String>>,
}

impl From<Kv> for Policy {
    /// The pair with the default settings. A yardstick has the words of f16, in which its tokens are held
    /// decoded.
    fn from(kv: Kv) -> Self {
        Self { words: words_of(kv.own().unwrap_or(F16)), name: kv.into(), program: None }
    }
}

impl From<&Preset> for Policy {
    fn from(preset: &Preset) -> Self {
        let name = Name::from(Kv::from(KvCodecs::from(preset.codecs)));
        let words = Words::new([("kv", preset.name)]).unwrap_or_default();
        let policy = (!preset.options.is_empty()).then(|| preset.name.to_owned());
        Self { name: Name { policy, ..name }, words, program: None }
    }
}

impl From<KvCodecs> for Policy {
    fn from(codecs: KvCodecs) -> Self {
        Kv::from(codecs).into()
    }
}

/// The words that say the codecs alone.
fn words_of(KvCodecs { k, v }: KvCodecs) -> Words {
    let codecs = format!("{},{}", k.name(), v.name());
    Words::new([("kv", codecs.as_str())]).unwrap_or_default()
}

impl FromStr for Policy {
    type Err = String;

    /// Reads a preset, one codec for keys and values, `K,V`, a complete policy, the name of a yardstick, or
    /// the command of one.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((words, command)) = text.split_once(PROGRAM) {
            return program(words, command);
        }
        let words = match text.parse::<Words>() {
            Ok(words) => words,
            Err(error) => return yardstick(text, names::refusal(error)),
        };
        let CacheSpec { key, value, .. } = words.apply(placeholder());
        let codecs = KvCodecs { k: key, v: value };
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let policy = (words != words_of(codecs)).then_some(text);
        Ok(Self { name: Name { kv: codecs.into(), policy, is_program: false }, words, program: None })
    }
}

/// Reads a pair with a yardstick, and its window. `why` is the error of the library, which knows none of them.
fn yardstick(text: &str, why: String) -> Result<Policy, String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace(", ", ",");
    let words: Vec<_> = text.split(' ').collect();
    let is_yardstick = |word: &&str| names::kv(word).is_ok_and(|kv| kv.own().is_none());
    let Some(at) = words.iter().position(is_yardstick) else {
        let is_name = words.len() == 1 && !text.contains('=');
        return if is_name { names::kv(&text).map(Policy::from) } else { Err(why) };
    };
    let (kv, window) = (names::kv(words[at])?, [&words[..at], &words[at + 1..]].concat());
    if window.is_empty() {
        return Ok(kv.into());
    }
    let words = exact_tokens(&window, format_args!("the yardstick '{}', which no cache stores", words[at]))?;
    Ok(Policy { name: Name { policy: Some(text), ..kv.into() }, words, program: None })
}

/// Reads `hot=` and `sinks=`, the settings of what no cache stores. `whose` is named in an error.
fn exact_tokens(words: &[&str], whose: fmt::Arguments<'_>) -> Result<Words, String> {
    match words.iter().find(|word| !word.starts_with("hot=") && !word.starts_with("sinks=")) {
        Some(word) => Err(format!("'{word}' is not valid for {whose}: expected hot=TOKENS and sinks=TOKENS")),
        None => format!("f16 {}", words.join(" ")).parse().map_err(names::refusal),
    }
}

/// Begins the command of another program's codec.
const PROGRAM: &str = "program=";

/// Reads the command of another program's codec, with the words before it.
fn program(words: &str, command: &str) -> Result<Policy, String> {
    let given: Vec<_> = words.split_whitespace().collect();
    let exact = exact_tokens(&given, format_args!("the codec of another program"))?;
    let command = shlex::split(command).filter(|command| !command.is_empty());
    let command = command.ok_or_else(|| {
        "program= has no command, or a quote that does not end: expected program=COMMAND".to_owned()
    })?;
    let label = format!("{words}{PROGRAM}{}", command.join(" "));
    let name = Name { kv: F16.into(), policy: Some(label), is_program: true };
    Ok(Policy { name, words: exact, program: Some(command) })
}

/// A shape for settings that do not depend on it.
fn placeholder() -> CacheSpec {
    CacheSpec::new(1, 1, 1, 64)
}

impl Policy {
    /// Returns true if no cache stores the codecs.
    pub fn is_reference(&self) -> bool {
        self.name.is_program || self.name.kv.own().is_none()
    }

    /// The command of another program's codec.
    pub(crate) fn program(&self) -> Option<&[String]> {
        self.program.as_deref()
    }

    /// Applies the row to `spec`. A reference format becomes f16, in which its tokens are held decoded.
    pub fn apply(&self, spec: CacheSpec) -> CacheSpec {
        self.words.apply(spec)
    }

    /// The settings of the row, applied to a placeholder shape.
    fn settings(&self) -> CacheSpec {
        self.apply(placeholder())
    }

    /// The tokens that stay f16, however many there are.
    pub(crate) fn window(&self) -> Uncompressed {
        let CacheSpec { sinks, hot, .. } = self.settings();
        Uncompressed { sinks: sinks as u64, hot: hot as u64 }
    }

    /// True for a yardstick with settings, which keeps tokens exact as caches do. Without settings it codes every token.
    pub(crate) fn is_windowed_yardstick(&self) -> bool {
        self.is_reference() && self.name.policy.is_some()
    }

    /// Returns true if the tokens older than the window are not f16. A yardstick without a window is none of these.
    pub(crate) fn is_compressed(&self) -> bool {
        self.is_windowed_yardstick() || self.name.kv.own().is_some_and(|codecs| codecs != F16)
    }

    /// True if more tokens than [`Self::window`] stay f16 while there is memory.
    pub(crate) fn narrows(&self) -> bool {
        self.settings().narrow_at.is_some()
    }

    /// The least tokens of which a cache compresses some.
    pub(crate) fn least_compressed(&self) -> usize {
        let CacheSpec { sinks, hot, .. } = self.settings();
        // Tokens leave the hot window four at a time.
        hot.saturating_add(sinks).saturating_add(4)
    }

    /// The least tokens of which a cache has a page in a cold tier. `None` without tiers.
    pub(crate) fn least_cold(&self) -> Option<usize> {
        let CacheSpec { sinks, hot, cold, .. } = self.settings();
        let (after, _) = cold.first()?;
        // The first page is full, and its newest token is old enough and out of the hot window.
        let age = (*after).max(hot.saturating_add(3));
        Some(sinks.saturating_add(PAGE_TOKENS).saturating_add(age))
    }

    /// The row applied to `spec`, if the bytes of its tokens follow from their number. An error for yardsticks and files.
    pub fn planned(&self, spec: CacheSpec) -> Result<CacheSpec, String> {
        if self.is_reference() {
            return Err(CliError::not_stored("plan", &self.name).to_string());
        }
        let spec = self.apply(spec);
        match spec.cold.last() {
            Some((_, Cold::Spill(_))) => {
                Err(format!("{}: files are not planned: expected no spill=", self.name))
            }
            Some((_, Cold::Demote { .. })) | None => Ok(spec),
        }
    }

    /// Codecs of the oldest tokens of a long sequence. `None` for a yardstick.
    pub(crate) fn oldest(&self) -> Option<KvCodecs> {
        let tier = |(_, cold): &(usize, Cold)| match *cold {
            Cold::Demote { key, value } => Some(KvCodecs { k: key, v: value }),
            Cold::Spill(_) => None,
        };
        self.settings().cold.iter().rev().find_map(tier).or(self.name.kv.own())
    }

    /// Returns true if the pair alone decides how every token older than the window is stored.
    pub(crate) fn is_uniform(&self) -> bool {
        let settings = self.settings();
        settings.cold.is_empty() && settings.layers == LayerPolicy::Uniform
    }

    /// The reason why a cache on a GPU cannot have these settings.
    pub(crate) fn refused_by_gpu(&self) -> Option<String> {
        let lacking = Door::Gpu.refused(&self.settings()).join(" ");
        (!lacking.is_empty())
            .then(|| format!("{}: a cache on the GPU has no {lacking}: expected --device cpu", self.name))
    }
}

/// The examples of `--kv`.
const EXAMPLES: [&str; 5] = [
    "The cache in words, which may be repeated: each text is a row of the report.",
    "",
    "--kv balanced: a preset; `tqkv codecs` lists presets and codecs",
    "--kv t4,t2: a codec for keys and one for values; one word stands for both",
    "--kv \"t4,t2 hot=32 tier=4096:t2\": codecs and settings",
];

/// The help of `--kv` in each command.
pub(crate) fn short_help() -> String {
    format!("{}\n\n`tqkv help kv` lists the settings with their defaults.", EXAMPLES.join("\n"))
}

/// The text of `tqkv help kv`: examples, then each setting with its default.
pub(crate) fn help() -> String {
    let options: Vec<_> = OPTIONS.iter().filter(|option| option.part == OptionPart::Policy).collect();
    let words = options.iter().map(|option| format!("{}={}", option.name, option.value));
    let rows = options.iter().zip(words).flat_map(|(option, word)| {
        let default = option.default().map_or(String::new(), |default| format!(" [default: {default}]"));
        [format!("  {word}"), wrapped(&format!("{}{default}", option.help))]
    });
    let end = [
        "",
        "docs/options.md explains them, and says which other caches have each.",
        "",
        "eval, generate and plan also take yardsticks (tqkv codecs --all). These are simulated, so they save",
        "no memory, and their bytes are those of their blocks. They code every token, unless eval or generate",
        "is asked for a window: --kv \"nvfp4 hot=64 sinks=4\".",
        "",
        "--kv \"hot=64 program=python3 kivi.py\": in eval, the codec of another program, which is asked for",
        "what its codes give back (host/python/README.md). Of the settings it has hot= and sinks=.",
        "",
    ];
    let begin = EXAMPLES.into_iter().chain(["", "Settings:"]).map(str::to_owned);
    begin.chain(rows).chain(end.map(str::to_owned)).collect::<Vec<_>>().join("\n")
}

/// A text in lines of up to 100 columns, indented.
fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 100;
    let mut lines = vec![String::from("     ")];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + 1 + word.len() > COLUMNS) {
            lines.push(String::from("     "));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;

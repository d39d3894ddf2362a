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

/// A word of a policy, where a list of layers has each run of equal codecs once: `each:t2/t2/s4` as `each:2xt2/s4`.
fn counted_layers(word: &str) -> String {
    let Some((rule, layers)) = word.split_once("each:") else { return word.to_owned() };
    let layers: Vec<_> = layers.split('/').collect();
    let runs = layers.chunk_by(|a, b| a == b).map(|run| match run {
        [one] => (*one).to_owned(),
        _ => format!("{}x{}", run.len(), run[0]),
    });
    format!("{rule}each:{}", runs.collect::<Vec<_>>().join("/"))
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

    /// Reads a preset, one codec for keys and values, `K,V`, a whole policy, the name of a yardstick, or the
    /// command of one.
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

    /// Returns true if the tokens behind the window are not f16. A yardstick without a window is none of these.
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

    /// Returns true if the pair alone decides how every token behind the window is stored.
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
        "docs/options.md explains them. eval, generate and plan also take yardsticks (tqkv codecs --all). They are",
        "simulated, so they save no memory, and their bytes are those of their blocks. They code every token, unless",
        "eval or generate is asked for a window: --kv \"nvfp4 hot=64 sinks=4\".",
        "",
        "--kv \"hot=64 program=python3 kivi.py\": in eval, the codec of another program, which is asked for what",
        "its codes give back (host/python/README.md). Of the settings it has hot= and sinks=.",
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
mod tests {
    use super::*;
    use crate::plan::CacheShape;
    use tqkv::cache::{KvCache, LayerKind, PRESETS};
    use tqkv_core::CodecId;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    fn spec(text: &str) -> CacheSpec {
        policy(text).apply(CacheSpec::new(4, 2, 1, 128))
    }

    fn demote(codec: CodecId) -> Cold {
        Cold::Demote { key: codec, value: codec }
    }

    #[test]
    fn a_text_says_codecs_and_all_settings() {
        let bare = spec("t4,t2");
        assert_eq!((bare.key, bare.value), (CodecId::T4, CodecId::T2));
        assert_eq!((bare.hot, bare.sinks), (CacheSpec::DEFAULT_HOT, CacheSpec::DEFAULT_SINKS));
        let text = " t4,t4   hot=0 sinks=8 tier=128:t2 spill=600:/tmp layer-kv=boundary:2:i8,s4 ";
        let (written, made) = (policy(text), spec(text));
        assert_eq!(written.name.label(), text.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(made.cold, [(128, demote(CodecId::T2)), (600, Cold::Spill("/tmp".into()))]);
        assert_eq!(made.layers, LayerPolicy::Boundary { layers: 2, codecs: (CodecId::I8, CodecId::S4) });
        assert_eq!((made.hot, made.sinks), (0, 8));
        assert_eq!(spec("hot=32").key, CodecId::S4, "the default");
        assert!(policy("f16").is_uniform() && !policy("t4 last:i8").is_uniform());
    }

    /// A row is named by its pair where the text says no more.
    #[test]
    fn labels_name_the_pair_or_the_text() {
        for (text, label, has_text) in [
            ("s4", "s4,s4 balanced", false),
            ("balanced", "s4,s4 balanced", false),
            ("kv=s2,s3", "s2,s3", false),
            ("s2,  s3", "s2,s3", false),
            ("TQ3", "tq3,tq3", false),
            ("i8, p3", "i8,p3", false),
            ("s4 hot=64", "s4 hot=64", true),
            ("tiered", "tiered", true),
            ("m3,t4", "m3,t4", false),
        ] {
            let name = policy(text).name;
            assert_eq!((name.label().as_str(), name.policy.is_some()), (label, has_text), "{text}");
        }
        assert_eq!(policy("f16"), Policy::from(F16), "the reference of comparisons is named once");
        assert!(PRESETS.iter().all(|preset| policy(preset.name) == Policy::from(preset)));
        assert!(policy("tq3").is_reference() && policy("tq3").planned(placeholder()).is_err());
    }

    /// A table has runs of layers, and the name for programs has all of them.
    #[test]
    fn labels_count_layers() {
        let text = |layers: &[&str]| format!("m2,t2 hot=16 layer-kv=each:{}", layers.join("/"));
        let layers = [&["m2,t2"; 17][..], &["t4,t2"; 2], &["m2,t2"], &["t4,t2"; 10]].concat();
        let name = policy(&text(&layers)).name;
        assert_eq!(name.label(), text(&["17xm2,t2", "2xt4,t2", "m2,t2", "10xt4,t2"]));
        assert_eq!(name.to_string(), text(&layers));
        assert_eq!(policy("t4 each:t4/t2").name.label(), "t4 each:t4/t2");
    }

    #[test]
    fn the_codec_of_another_program_has_a_window_and_a_command() {
        let other = policy("hot=32 sinks=0 program=python3 'my codec.py' --bits 2");
        assert_eq!(other.program().unwrap(), ["python3", "my codec.py", "--bits", "2"]);
        assert_eq!(other.name.label(), "hot=32 sinks=0 program=python3 my codec.py --bits 2");
        assert!(other.is_reference() && other.is_compressed());
        let spec = other.apply(placeholder());
        assert_eq!((spec.key, spec.hot, spec.sinks), (CodecId::F16, 32, 0));
        assert_eq!(other.name.bytes("12".to_owned()), "12 simulated");
    }

    #[test]
    fn a_yardstick_codes_every_token_or_has_a_window() {
        let bare = policy("nvfp4");
        assert!(bare.is_reference() && !bare.is_compressed() && bare.name.policy.is_none());
        for text in ["nvfp4,u4 hot=16 sinks=0", "hot=16 nvfp4,u4 sinks=0"] {
            let windowed = policy(text);
            assert!(windowed.is_compressed() && windowed.is_reference() && windowed.program().is_none());
            assert_eq!(
                (windowed.name.label().as_str(), windowed.name.kv.to_string().as_str()),
                (text, "nvfp4,u4")
            );
            assert_eq!((windowed.window().hot, windowed.window().sinks), (16, 0));
            assert_eq!(windowed.least_compressed(), 20);
        }
        assert_eq!(policy("tq_k4v3 hot=8").window().sinks, CacheSpec::DEFAULT_SINKS as u64);
        assert_eq!(policy("p3, u4").name.kv.to_string(), "p3,u4");
    }

    /// The command is one of the interfaces to the same text. Each option makes the same spec as in the
    /// library.
    #[test]
    fn every_option_of_a_policy_is_one_of_the_command() {
        for option in OPTIONS.iter().filter(|option| option.part == OptionPart::Policy) {
            let text = format!("{}={}", option.name, option.example);
            let base = CacheSpec::new(2, 4, 2, 64);
            assert_eq!(policy(&text).apply(base.clone()), base.with(&text).unwrap(), "{text}");
            assert!(help().contains(&format!("\n  {}={}\n", option.name, option.value)), "{text}");
        }
        for (text, expected) in [
            ("", "'' is neither a preset"),
            ("s4 hot", "hot= is not valid: expected hot=TOKENS"),
            ("s4 tier=256", "tier=256 is not valid: expected tier=AFTER:K,V, such as"),
            ("s4 cold=2", "cold= is not valid: expected kv=, layer-kv=, hot="),
            ("zz", "tqkv codecs --all lists them"),
            (
                "p3 tier=9:t2",
                "'tier=9:t2' is not valid for the yardstick 'p3', which no cache stores: expected hot=",
            ),
            ("s4 p3", "'s4' is not valid for the yardstick 'p3'"),
            ("p3 hot=x", "hot=x is not valid"),
            ("s4 program=codec", "'s4' is not valid for the codec of another program: expected hot=TOKENS"),
            ("hot=x program=codec", "hot=x is not valid"),
            ("program=", "program= has no command"),
            ("program='codec", "a quote that does not end"),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_token_of_a_tier_is_where_a_cache_has_it() {
        for text in [
            "t4 tier=128:t2",
            "n4 tier=256:n3 tier=512:n2",
            "s4 sinks=9 hot=0 tier=0:s2",
            "s4 hot=200 tier=40:s2",
            "s4 hot=70 spill=300:/tmp",
            "f16 sinks=0 tier=131:q8_0",
        ] {
            let policy = policy(text);
            let mut cache = KvCache::new(policy.apply(placeholder())).unwrap();
            let token = [0.5; 64];
            while cache.stats().cold == 0 {
                cache.append(0, &token, &token).unwrap();
            }
            assert_eq!(policy.least_cold(), Some(cache.len()), "{text}");
        }
        assert_eq!(policy("s4").least_cold(), None);
    }

    #[test]
    fn a_gpu_refuses_what_it_does_not_do() {
        for text in ["t4 tier=256:t2", "s4 spill=9:/tmp", "s4 layer-kv=tail:1:i8", "s4 sliding-window=128"] {
            let why = policy(text).refused_by_gpu().unwrap();
            assert!(why.starts_with(text) && why.contains("--device cpu"), "{why}");
        }
        assert_eq!(policy("s4 hot=0").refused_by_gpu(), None);
    }

    /// The plan of a policy equals the bytes of its cache, in full layers and in sliding ones. Both are so
    /// long that almost all bytes lie in full pages.
    #[test]
    fn tiers_take_what_a_cache_allocates_for_them() {
        const TOKENS: usize = 40_000;
        for text in [
            "n4 sinks=0",
            "n4 sinks=0 tier=2000:n2",
            "n4 sinks=0 tier=4000:n3 tier=15000:n2",
            "i8 sinks=0 hot=256 tier=0:s4 tier=8192:s2",
            "f16 sinks=0 tier=3000:q8_0",
        ] {
            let policy = policy(text);
            for window in [None, Some(20_000)] {
                let kinds = vec![LayerKind::Full, window.map_or(LayerKind::Full, LayerKind::Sliding)];
                let base = CacheSpec::new(2, 1, 1, 128).kinds(kinds);
                let mut cache = KvCache::new(policy.apply(base)).unwrap();
                let zeros = vec![0.0; 1000 * 128];
                for layer in (0..TOKENS / 1000).flat_map(|_| [0, 1]) {
                    cache.append(layer, &zeros, &zeros).unwrap();
                }
                let shape = CacheShape::new(2, 1, 128);
                let shape = window.map_or(shape.clone(), |tokens| shape.with_windows(1, tokens));
                let plan = shape.plan(&policy).unwrap();
                let bytes = plan.bytes(TOKENS as u64).unwrap();
                let ratio = cache.stats().allocated_bytes as f64 / bytes as f64;
                println!("{text}, window {window:?}: {ratio:.4}");
                assert!((0.97..=1.0).contains(&ratio), "{text}, window {window:?}: {ratio} of {bytes}");
                // Where a page goes cold, fewer bytes hold more tokens.
                let apart = plan.max_tokens(bytes).abs_diff(TOKENS as u64);
                assert!(apart < 256 || window.is_some(), "{text}: {apart} apart");
            }
        }
        let error = policy("n4 spill=900:/tmp").planned(placeholder()).unwrap_err();
        assert!(error.starts_with("n4 spill=900:/tmp: files are not planned"), "{error}");
    }
}

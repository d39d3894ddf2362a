//! A row of a comparison: codecs, and the rules for tokens as they age.
//!
//! The options of the command line hold for every row. Each `--policy` adds a row of its own. Its text is
//! parsed by the library ([`tqkv::cache::Policy`]) and overrides the options.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use tqkv::cache::{CacheSpec, Cold, LayerPolicy, Policy as Words};
use tqkv::unstable::cache::{OPTIONS, Part};

use crate::args::{KvArgs, WindowArgs};
use crate::error::CliError;
use crate::names;
use crate::plan::{Life, Uncompressed};
use crate::preset::{F16, Kv, KvCodecs, PRESETS};

/// How tokens change with age in every row, unless the row's policy says otherwise.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgeArgs {
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    /// Codecs of tokens older than AFTER, counted from the newest. May be repeated with larger AFTER. Example
    /// of nested codecs, which drop bits: --kv n4 --tier 256:n3 --tier 512:n2.
    ///
    /// Pages of 128 tokens move as a whole. f16,f16 has no tiers.
    #[arg(long, value_name = "AFTER:K,V", value_parser = tier)]
    tier: Vec<Words>,
}

/// The storage of a token over its life in every row, unless the row's policy says otherwise.
#[derive(Clone, Debug, Args)]
pub struct LifeArgs {
    #[command(flatten)]
    ages: AgeArgs,
    /// Move tokens older than AFTER, unchanged, to an unnamed file in FOLDER. Example: --spill 4096:/tmp.
    #[arg(long, value_name = "AFTER:FOLDER", value_parser = spill)]
    spill: Option<Words>,
    /// Hold the sinks and this many newest tokens, in memory that is taken at the start. Older tokens are
    /// overwritten. Example: --ring 4096.
    #[arg(long, value_name = "TOKENS", value_parser = ring)]
    ring: Option<Words>,
    /// Codecs of some layers: boundary:1:i8,s4 (the first and the last layer), tail:2:i8,i8 (the last two),
    /// or gradient:i8,i8/s4,s4/s3,s3 (equal parts, first to last).
    ///
    /// f16,f16 has none. Measured: a gradient loses more than one width (s4/s3/s2: KL .021, s3 for all: .016
    /// at fewer bytes).
    #[arg(long, value_name = "RULE", value_parser = layer_kv)]
    layer_kv: Option<Words>,
}

/// The name of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    pub kv: Kv,
    /// The text of `--policy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

impl Name {
    /// The label in a table: the policy, or the pair with the name of its preset if it has one.
    pub fn label(&self) -> String {
        match (&self.policy, PRESETS.iter().find(|preset| Some(preset.codecs.into()) == self.kv.own())) {
            (Some(policy), _) => policy.clone(),
            (None, Some(preset)) => format!("{} {}", self.kv, preset.name),
            (None, None) => self.kv.to_string(),
        }
    }
}

impl Name {
    /// A cell with bytes; marked as simulated for a reference format, because no cache holds them.
    pub(crate) fn bytes(&self, bytes: String) -> String {
        if self.kv.own().is_some() { bytes } else { format!("{bytes} simulated") }
    }
}

impl From<Kv> for Name {
    fn from(kv: Kv) -> Self {
        Self { kv, policy: None }
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
    /// The final window, from the options and the text.
    pub(crate) window: WindowArgs,
    /// The settings from the options of all rows.
    options: Words,
    /// The settings from the text of this row.
    written: Words,
}

impl From<AgeArgs> for LifeArgs {
    /// The same codecs in all layers, and no spill file.
    fn from(ages: AgeArgs) -> Self {
        Self { ages, spill: None, ring: None, layer_kv: None }
    }
}

impl LifeArgs {
    /// The rows of the given pairs and policies, in order; the pairs of `default` if there are none.
    pub(crate) fn policies(&self, kv: &KvArgs, written: &[PolicyArg], default: &[KvCodecs]) -> Vec<Policy> {
        let pairs = match kv.given() {
            None if written.is_empty() => default.iter().map(|&pair| pair.into()).collect(),
            pairs => pairs.unwrap_or_default(),
        };
        let row = |kv: Kv| if kv.own() == Some(F16) { self.plain(F16) } else { self.policy(kv) };
        let written = written.iter().map(|policy| self.written(policy));
        pairs.into_iter().map(row).chain(written).collect()
    }

    /// The row of a pair.
    fn policy(&self, kv: Kv) -> Policy {
        Policy::new(kv.into(), self.ages.window, self.words(), Words::default())
    }

    /// The row of f16. Its tokens stay f16 under every option.
    pub(crate) fn plain(&self, kv: KvCodecs) -> Policy {
        Policy::new(Kv::from(kv).into(), self.ages.window, Words::default(), Words::default())
    }

    /// The row of `policy` over `window`, without the options of a command line.
    pub fn written_alone(window: WindowArgs, policy: &PolicyArg) -> Policy {
        Self::from(AgeArgs { window, tier: Vec::new() }).written(policy)
    }

    /// The row of a `--policy` over the options.
    fn written(&self, policy: &PolicyArg) -> Policy {
        let name = Name { kv: policy.kv.into(), policy: Some(policy.text.clone()) };
        Policy::new(name, self.ages.window, self.words(), policy.words.clone())
    }

    /// The options as a policy text.
    fn words(&self) -> Words {
        let others = [&self.spill, &self.ring, &self.layer_kv];
        self.ages.tier.iter().chain(others.into_iter().flatten()).cloned().collect()
    }
}

impl Policy {
    fn new(name: Name, window: WindowArgs, options: Words, written: Words) -> Self {
        let policy = Self { name, window, options, written };
        let CacheSpec { hot, sinks, .. } = policy.settings();
        Self { window: WindowArgs { hot, sinks }, ..policy }
    }

    /// The settings of the row, applied to a placeholder shape.
    fn settings(&self) -> CacheSpec {
        self.apply(CacheSpec::new(1, 1, 1, 64))
    }
}

impl Policy {
    /// Returns true if no cache stores the codecs.
    pub fn is_reference(&self) -> bool {
        self.name.kv.own().is_none()
    }

    /// Applies the row to `spec`. A reference format becomes f16, in which its tokens are held decoded.
    pub fn apply(&self, spec: CacheSpec) -> CacheSpec {
        let KvCodecs { k, v } = self.name.kv.own().unwrap_or(F16);
        let spec = spec.codecs(k, v).sinks(self.window.sinks).hot(self.window.hot);
        self.written.apply(self.options.apply(spec))
    }

    /// The tiers by age, from which memory is planned. An error if storage depends on more than age.
    pub fn life(&self) -> Result<Life, String> {
        let tier = |(after, cold): &(usize, Cold)| match *cold {
            Cold::Demote { key, value } => Some((*after as u64, KvCodecs { k: key, v: value })),
            Cold::Spill(_) => None,
        };
        let CacheSpec { hot, sinks, cold, layers, sliding_window, ring, key_map, .. } = self.settings();
        let kept = Uncompressed { sinks: sinks as u64, hot: hot as u64 };
        let codecs =
            self.name.kv.own().ok_or_else(|| CliError::not_stored("plan", self.name.kv).to_string())?;
        let tiers = cold.iter().map(tier).collect::<Option<_>>();
        let is_planned = layers == LayerPolicy::Uniform && sliding_window.is_none();
        let tiers = tiers.filter(|_| is_planned).ok_or_else(|| {
            format!(
                "{}: files, codecs by layer and windows are not planned: expected hot=, sinks=, tier=, ring= and map=",
                self.name
            )
        })?;
        let ring = ring.map(|tokens| tokens as u64);
        Ok(Life { codecs, kept, tiers, key_map, ring })
    }

    /// Returns true if the pair alone decides how every token behind the window is stored.
    pub(crate) fn is_uniform(&self) -> bool {
        let settings = self.settings();
        settings.cold.is_empty() && settings.layers == LayerPolicy::Uniform
    }

    /// The reason why a cache on a GPU cannot have these settings.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn refused_by_gpu(&self) -> Option<String> {
        let settings = self.settings();
        let CacheSpec { key, value, hot, sinks, centring, arithmetic, options, .. } = settings;
        // A GPU accepts these settings or ignores them safely: no token stays f16 there, and sums have one
        // form.
        let plain = CacheSpec::new(1, 1, 1, 64).codecs(key, value).hot(hot).sinks(sinks);
        let plain = plain.centring(centring).arithmetic(arithmetic).options(options);
        (settings != plain).then(|| {
            format!(
                "{self}: a cache on the GPU has codecs, seed, scale mode and effort alone; \
                 all other options need --device cpu",
                self = self.name
            )
        })
    }
}

/// The row of a `--policy`.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyArg {
    /// The text with single spaces.
    text: String,
    kv: KvCodecs,
    words: Words,
}

impl FromStr for PolicyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.parse::<Words>().map_err(names::refusal)?;
        let CacheSpec { key, value, .. } = words.apply(CacheSpec::new(1, 1, 1, 64));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Self { text, kv: KvCodecs { k: key, v: value }, words })
    }
}

/// The help of `--policy`, one line per setting.
pub(crate) fn help() -> String {
    let options = OPTIONS.iter().filter(|option| option.part == Part::Policy);
    let lines = options.map(|option| format!("{}={}: {}", option.name, option.value, option.help));
    let rows = [
        "A row with a policy of its own: codecs, and what differs from the options; may be repeated:",
        "--policy \"n4 hot=32 tier=256:n3 tier=512:n2\" --policy \"t2 last:i8 sinks=8 effort=best\"",
        "",
    ];
    rows.map(str::to_owned).into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// Reads the value of a command line option that is also a setting of a policy.
fn option(name: &str, value: &str) -> Result<Words, String> {
    Words::new([(name, value)]).map_err(names::refusal)
}

fn tier(text: &str) -> Result<Words, String> {
    option("tier", text)
}

fn spill(text: &str) -> Result<Words, String> {
    option("spill", text)
}

fn ring(text: &str) -> Result<Words, String> {
    option("ring", text)
}

fn layer_kv(text: &str) -> Result<Words, String> {
    option("layer-kv", text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CacheShape;
    use clap::Parser;
    use tqkv::cache::{Centring, KvCache, LayerKind};
    use tqkv_core::CodecId;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        life: LifeArgs,
    }

    fn life(args: &[&str]) -> LifeArgs {
        Line::try_parse_from([&["x"], args].concat()).unwrap().life
    }

    fn spec(policy: &Policy) -> CacheSpec {
        policy.apply(CacheSpec::new(4, 2, 1, 128))
    }

    fn demote(codec: CodecId) -> Cold {
        Cold::Demote { key: codec, value: codec }
    }

    #[test]
    fn a_policy_is_the_options_and_what_it_says_otherwise() {
        let life =
            life(&["--hot", "32", "--tier", "512:n2", "--tier", "256:n3,n3", "--layer-kv", "tail:1:i8"]);
        let n4 = "n4".parse().unwrap();
        let by_options = spec(&life.policy(n4));
        assert_eq!(by_options.cold, [(256, demote(CodecId::N3)), (512, demote(CodecId::N2))], "by age");
        assert_eq!(by_options.layers, LayerPolicy::Tail { layers: 1, codecs: (CodecId::I8, CodecId::I8) });
        assert_eq!(
            (by_options.key, by_options.hot, by_options.sinks),
            (CodecId::N4, 32, CacheSpec::DEFAULT_SINKS)
        );
        let text = " n4,n4   hot=0 sinks=8 tier=128:n2 spill=600:/tmp layer-kv=boundary:2:i8,s4 ";
        let written = life.written(&text.parse().unwrap());
        assert_eq!(written.name.label(), text.split_whitespace().collect::<Vec<_>>().join(" "));
        let written = spec(&written);
        assert_eq!(written.cold, [(128, demote(CodecId::N2)), (600, Cold::Spill("/tmp".into()))]);
        assert_eq!(written.layers, LayerPolicy::Boundary { layers: 2, codecs: (CodecId::I8, CodecId::S4) });
        assert_eq!((written.hot, written.sinks), (0, 8));
        let bare = life.written(&"t4 layer-kv=gradient:i8/s4,s3".parse().unwrap());
        assert_eq!(spec(&bare).cold, by_options.cold, "what it does not say is as the options say");
        let steps = vec![(CodecId::I8, CodecId::I8), (CodecId::S4, CodecId::S3)];
        assert_eq!(spec(&bare).layers, LayerPolicy::Gradient(steps));
        assert!(life.plain(F16).is_uniform() && !bare.is_uniform());
    }

    /// The command is one of the interfaces to the same text. Each option makes the same spec as in the
    /// library.
    #[test]
    fn every_option_of_a_policy_is_one_of_the_command() {
        for option in OPTIONS.iter().filter(|option| option.part == Part::Policy) {
            let text = format!("{}={}", option.name, option.example);
            let base = CacheSpec::new(2, 4, 2, 64);
            let policy = life(&[]).written(&text.parse().unwrap());
            assert_eq!(policy.apply(base.clone()), base.with(&text).unwrap(), "{text}");
            assert!(help().contains(&format!("\n{}={}: {}", option.name, option.value, option.help)));
        }
        for (text, expected) in
            [("", "an empty text is not valid"), ("n4 hot", "hot= is not valid: expected hot=TOKENS")]
        {
            let error = text.parse::<PolicyArg>().unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let error = Line::try_parse_from(["x", "--tier", "256"]).err().unwrap().to_string();
        assert!(error.contains("tier=256 is not valid: expected tier=AFTER:K,V, such as"), "{error}");
    }

    #[test]
    fn a_gpu_refuses_what_it_does_not_do() {
        let life = life(&[]);
        for text in ["n4 tier=256:n3", "s4 spill=9:/tmp", "s4 layer-kv=tail:1:i8", "s4 sliding-window=128"] {
            let why = life.written(&text.parse().unwrap()).refused_by_gpu().unwrap();
            assert!(why.starts_with(text) && why.contains("--device cpu"), "{why}");
        }
        assert_eq!(life.written(&"s4 hot=0".parse().unwrap()).refused_by_gpu(), None);
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
            let policy = life(&[]).written(&text.parse().unwrap());
            let planned = policy.life().unwrap();
            for window in [None, Some(20_000)] {
                let kinds = vec![LayerKind::Full, window.map_or(LayerKind::Full, LayerKind::Sliding)];
                let base = CacheSpec::new(2, 1, 1, 128).centring(Centring::Off).kinds(kinds);
                let mut cache = KvCache::new(policy.apply(base)).unwrap();
                let zeros = vec![0.0; 1000 * 128];
                for layer in (0..TOKENS / 1000).flat_map(|_| [0, 1]) {
                    cache.append(layer, &zeros, &zeros).unwrap();
                }
                let shape = CacheShape::new(2, 1, 128);
                let shape = window.map_or(shape.clone(), |tokens| shape.with_windows(1, tokens));
                let bytes = shape.bytes(&planned, TOKENS as u64).unwrap();
                let ratio = cache.stats().allocated_bytes as f64 / bytes as f64;
                println!("{text}, window {window:?}: {ratio:.4}");
                assert!((0.97..1.03).contains(&ratio), "{text}, window {window:?}: {ratio} of {bytes}");
                assert_eq!(shape.max_tokens(&planned, bytes).unwrap(), TOKENS as u64, "{text}");
            }
        }
        for text in ["n4 spill=9:/tmp", "n4 layer-kv=tail:1:i8", "n4 sliding-window=128"] {
            assert!(life(&[]).written(&text.parse().unwrap()).life().unwrap_err().starts_with(text));
        }
    }
}

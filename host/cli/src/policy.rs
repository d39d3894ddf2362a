//! What a row of a comparison is: codecs, and the life of a token under them.
//!
//! The options of the command line hold for every row; a `--policy` is a row of its own, written as `K,V` and what is
//! different, in the names of those options.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use tqkv::cache::{CacheSpec, Cold, KvPair, LayerPolicy};

use crate::args::{KvArgs, WindowArgs};
use crate::error::CliError;
use crate::names;
use crate::plan::{Life, Uncompressed};
use crate::preset::{F16, Kv, KvCodecs, PRESETS};

/// What tokens become with age in every row, but where its policy says otherwise.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgeArgs {
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    /// Codecs of tokens older than AFTER, counted from the newest; may be repeated for ever older ones. Pages of 128 tokens
    /// go as wholes. Codes that are nested drop bits: --kv n4 --tier 256:n3 --tier 512:n2. f16,f16 has no tiers.
    #[arg(long, value_name = "AFTER:K,V")]
    tier: Vec<Tier>,
}

/// The life of a token in every row, but where its policy says otherwise.
#[derive(Clone, Debug, Args)]
pub struct LifeArgs {
    #[command(flatten)]
    ages: AgeArgs,
    /// Keep tokens older than AFTER, as they are, in a file without a name in FOLDER: --spill 4096:/tmp
    #[arg(long, value_name = "AFTER:FOLDER")]
    spill: Option<Spill>,
    /// Codecs of some layers: boundary:1:i8,s4 those of the first and the last one, tail:2:i8,i8 those of the last two,
    /// gradient:i8,i8/s4,s4/s3,s3 by equal parts from the first to the last. f16,f16 has none. Measured: a gradient loses
    /// more than one width (s4/s3/s2: KL .021, s3 for all: .016 at fewer bytes).
    #[arg(long, value_name = "WHICH")]
    layer_kv: Option<LayerKv>,
    /// Skip encoded values whose weight is below this share of the largest, in runs of 32 tokens, where queries come one
    /// at a time (generate, eval --step 1): --sparse-values 1e-4. Measured: it saves no time at 4k to 128k tokens (MEASURED.md, M13), and two
    /// pages are no longer summed at once.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sparse_values: Option<f32>,
}

/// What a row is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    pub kv: Kv,
    /// As `--policy` was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

impl Name {
    /// In a table: the policy, or the pair and the preset's name where it is one.
    pub fn label(&self) -> String {
        match (&self.policy, PRESETS.iter().find(|preset| Some(preset.codecs.into()) == self.kv.own())) {
            (Some(policy), _) => policy.clone(),
            (None, Some(preset)) => format!("{} {}", self.kv, preset.name),
            (None, None) => self.kv.to_string(),
        }
    }
}

impl Name {
    /// Bytes as a table has them: of formats of the reference no cache holds them.
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

/// A setting of a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: Name,
    pub(crate) window: WindowArgs,
    /// From the newest tokens to the oldest.
    cold: Vec<(usize, Cold)>,
    layers: LayerPolicy,
    sparse_values: f32,
}

impl From<AgeArgs> for LifeArgs {
    /// All layers alike, and no file.
    fn from(ages: AgeArgs) -> Self {
        Self { ages, spill: None, layer_kv: None, sparse_values: None }
    }
}

impl LifeArgs {
    /// The rows of the pairs and policies asked for, in order; of the pairs of `default` where there are none.
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
        self.with(kv.into(), &Changes::default())
    }

    /// The row of f16, whose tokens stay f16 whatever is asked for.
    pub(crate) fn plain(&self, kv: KvCodecs) -> Policy {
        Policy {
            name: Kv::from(kv).into(),
            window: self.ages.window,
            cold: Vec::new(),
            layers: LayerPolicy::Uniform,
            sparse_values: 0.0,
        }
    }

    /// The policy as written, and for the rest `window`, without the options of a command line.
    pub fn written_alone(window: WindowArgs, policy: &PolicyArg) -> Policy {
        Self::from(AgeArgs { window, tier: Vec::new() }).written(policy)
    }

    /// The row that `--policy` says.
    fn written(&self, policy: &PolicyArg) -> Policy {
        self.with(Name { kv: policy.kv.into(), policy: Some(policy.text.clone()) }, &policy.changes)
    }

    fn with(&self, name: Name, changes: &Changes) -> Policy {
        let tiers = if changes.tiers.is_empty() { &self.ages.tier } else { &changes.tiers };
        let mut tiers = tiers.clone();
        tiers.sort_by_key(|tier| tier.after);
        let demote = |Tier { after, kv }: Tier| (after, Cold::Demote { key: kv.k, value: kv.v });
        let spill = changes.spill.as_ref().or(self.spill.as_ref());
        let spill = spill.map(|spill| (spill.after, Cold::Spill(spill.folder.clone())));
        let layers = changes.layers.as_ref().or(self.layer_kv.as_ref());
        Policy {
            name,
            window: WindowArgs {
                hot: changes.hot.unwrap_or(self.ages.window.hot),
                sinks: changes.sinks.unwrap_or(self.ages.window.sinks),
            },
            cold: tiers.into_iter().map(demote).chain(spill).collect(),
            layers: layers.map_or(LayerPolicy::Uniform, |layers| layers.0.clone()),
            sparse_values: changes.sparse_values.or(self.sparse_values).unwrap_or(0.0),
        }
    }
}

impl Policy {
    /// Whether no cache stores the codecs.
    pub fn is_reference(&self) -> bool {
        self.name.kv.own().is_none()
    }

    /// Codecs, windows, tiers and layers of a cache; of formats of the reference f16, in which decoded they might be held.
    pub fn apply(&self, spec: CacheSpec) -> CacheSpec {
        let KvCodecs { k, v } = self.name.kv.own().unwrap_or(F16);
        let spec = spec.codecs(k, v).sinks(self.window.sinks).hot(self.window.hot);
        let spec = self.cold.iter().fold(spec, |spec, (after, cold)| spec.cold(*after, cold.clone()));
        spec.layers(self.layers.clone()).sparse_values(self.sparse_values)
    }

    /// What memory is planned by; an error where not only age decides.
    pub fn life(&self) -> Result<Life, String> {
        let tier = |(after, cold): &(usize, Cold)| match *cold {
            Cold::Demote { key, value } => Some((*after as u64, KvCodecs { k: key, v: value })),
            Cold::Spill(_) => None,
        };
        let WindowArgs { hot, sinks } = self.window;
        let kept = Uncompressed { sinks: sinks as u64, hot: hot as u64 };
        let codecs =
            self.name.kv.own().ok_or_else(|| CliError::not_stored("plan", self.name.kv).to_string())?;
        let tiers = self.cold.iter().map(tier).collect::<Option<_>>();
        let tiers = tiers.filter(|_| self.layers == LayerPolicy::Uniform).ok_or_else(|| {
            format!(
                "{}: files and codecs by layer are not planned; accepted are hot=, sinks= and tier=",
                self.name
            )
        })?;
        Ok(Life { codecs, kept, tiers })
    }

    /// Whether the pair alone says how every token behind the window is kept.
    pub(crate) fn is_uniform(&self) -> bool {
        self.cold.is_empty() && self.layers == LayerPolicy::Uniform
    }

    /// Why no cache on a GPU is like this.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn refused_by_gpu(&self) -> Option<String> {
        (!self.is_uniform() || self.sparse_values > 0.0).then(|| {
            format!(
                "{self}: a cache on the GPU keeps all tokens in one pair of codecs; \
                 --tier, --spill, --layer-kv and --sparse-values need --device cpu",
                self = self.name
            )
        })
    }
}

/// Tokens of an age, and their codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tier {
    after: usize,
    kv: KvCodecs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Spill {
    after: usize,
    folder: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LayerKv(LayerPolicy);

/// The row of a `--policy`.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyArg {
    /// As written, with single spaces.
    text: String,
    kv: KvCodecs,
    changes: Changes,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Changes {
    hot: Option<usize>,
    sinks: Option<usize>,
    tiers: Vec<Tier>,
    spill: Option<Spill>,
    layers: Option<LayerKv>,
    sparse_values: Option<f32>,
}

fn number(text: &str, of: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| format!("'{text}' is no number of {of}"))
}

fn share(text: &str) -> Result<f32, String> {
    let share = text.parse::<f32>().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| "accepted are 0 to 1, 1 not included".to_owned())
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (after, kv) = text.split_once(':').ok_or("accepted is AFTER:K,V, such as 256:n3,n3")?;
        Ok(Self { after: number(after, "tokens")?, kv: names::pair(kv)? })
    }
}

impl FromStr for Spill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((after, folder)) if !folder.is_empty() => {
                Ok(Self { after: number(after, "tokens")?, folder: folder.into() })
            }
            _ => Err("accepted is AFTER:FOLDER, such as 4096:/tmp".to_owned()),
        }
    }
}

impl FromStr for LayerKv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |text: &str| names::pair(text).map(|kv| -> KvPair { (kv.k, kv.v) });
        let parts: Vec<_> = text.split(':').collect();
        Ok(Self(match *parts.as_slice() {
            ["boundary", n, kv] => LayerPolicy::Boundary { layers: number(n, "layers")?, codecs: pair(kv)? },
            ["tail", n, kv] => LayerPolicy::Tail { layers: number(n, "layers")?, codecs: pair(kv)? },
            ["gradient", steps] => {
                LayerPolicy::Gradient(steps.split('/').map(pair).collect::<Result<_, _>>()?)
            }
            _ => return Err("accepted are boundary:N:K,V, tail:N:K,V and gradient:K,V/K,V/..".to_owned()),
        }))
    }
}

impl FromStr for PolicyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let kv = names::pair(words.next().unwrap_or(""))?;
        let mut changes = Changes::default();
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let within = |error: String| format!("{name}={value}: {error}");
            match name {
                "hot" => changes.hot = Some(number(value, "tokens").map_err(within)?),
                "sinks" => changes.sinks = Some(number(value, "tokens").map_err(within)?),
                "tier" => changes.tiers.push(value.parse().map_err(within)?),
                "spill" => changes.spill = Some(value.parse().map_err(within)?),
                "layer-kv" => changes.layers = Some(value.parse().map_err(within)?),
                "sparse-values" => changes.sparse_values = Some(share(value).map_err(within)?),
                _ => {
                    return Err(format!(
                        "'{word}' is no part of a policy; accepted after its K,V are hot=, sinks=, tier=, spill=, layer-kv= \
                         and sparse-values="
                    ));
                }
            }
        }
        Ok(Self { text: text.split_whitespace().collect::<Vec<_>>().join(" "), kv, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{CacheShape, Windowed};
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
        let text =
            " n4,n4   hot=0 sinks=8 tier=128:n2 spill=600:/tmp sparse-values=1e-3 layer-kv=boundary:2:i8,s4 ";
        let written = life.written(&text.parse().unwrap());
        assert_eq!(written.name.label(), text.split_whitespace().collect::<Vec<_>>().join(" "));
        let written = spec(&written);
        assert_eq!(written.cold, [(128, demote(CodecId::N2)), (600, Cold::Spill("/tmp".into()))]);
        assert_eq!(written.layers, LayerPolicy::Boundary { layers: 2, codecs: (CodecId::I8, CodecId::S4) });
        assert_eq!((written.hot, written.sinks, written.sparse_values), (0, 8, 1e-3));
        let bare = life.written(&"t4 layer-kv=gradient:i8/s4,s3".parse().unwrap());
        assert_eq!(spec(&bare).cold, by_options.cold, "what it does not say is as the options say");
        let steps = vec![(CodecId::I8, CodecId::I8), (CodecId::S4, CodecId::S3)];
        assert_eq!(spec(&bare).layers, LayerPolicy::Gradient(steps));
        assert!(life.plain(F16).is_uniform() && !bare.is_uniform());
    }

    #[test]
    fn what_is_no_policy_hears_what_is() {
        for (text, expected) in [
            ("", "unknown codec or preset ''"),
            ("n5", "safe-lowbit"),
            ("n4 tier=256", "tier=256: accepted is AFTER:K,V, such as 256:n3,n3"),
            ("n4 tier=x:n3", "'x' is no number of tokens"),
            ("n4 tier=256:n9", "unknown codec or preset 'n9'"),
            ("n4 spill=256:", "accepted is AFTER:FOLDER, such as 4096:/tmp"),
            ("n4 spill=/tmp", "AFTER:FOLDER"),
            ("n4 hot=-1", "hot=-1: '-1' is no number of tokens"),
            ("n4 hot", "hot=: '' is no number of tokens"),
            ("n4 layer-kv=middle:1:i8", "boundary:N:K,V, tail:N:K,V and gradient:K,V/K,V/.."),
            ("n4 layer-kv=tail:i8,i8", "boundary:N:K,V"),
            ("n4 layer-kv=tail:one:i8,i8", "'one' is no number of layers"),
            ("n4 layer-kv=gradient:", "unknown codec or preset ''"),
            ("n4 sparse-values=1", "accepted are 0 to 1"),
            ("n4 sparse-values=nan", "accepted are 0 to 1"),
            ("n4 cold=256:n3", "accepted after its K,V are hot=, sinks=, tier="),
        ] {
            let error = text.parse::<PolicyArg>().unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_gpu_refuses_what_it_does_not_do() {
        let life = life(&[]);
        for text in ["n4 tier=256:n3", "s4 spill=9:/tmp", "s4 layer-kv=tail:1:i8", "s4 sparse-values=0.1"] {
            let why = life.written(&text.parse().unwrap()).refused_by_gpu().unwrap();
            assert!(why.starts_with(text) && why.contains("--device cpu"), "{why}");
        }
        assert_eq!(life.written(&"s4 hot=0".parse().unwrap()).refused_by_gpu(), None);
    }

    /// What is planned for a policy is what a cache of it holds, in layers that see all and in such that slide, where both are
    /// so long that little is held beside full pages.
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
                let windowed = window.map(|tokens| Windowed { layers: 1, tokens: tokens as u64 });
                let shape = CacheShape { windowed, ..CacheShape::new(2, 1, 128) };
                let bytes = shape.bytes(&planned, TOKENS as u64).unwrap();
                let ratio = cache.stats().allocated_bytes as f64 / bytes as f64;
                println!("{text}, window {window:?}: {ratio:.4}");
                assert!((0.97..1.03).contains(&ratio), "{text}, window {window:?}: {ratio} of {bytes}");
                assert_eq!(shape.max_tokens(&planned, bytes).unwrap(), TOKENS as u64, "{text}");
            }
        }
        for text in ["n4 spill=9:/tmp", "n4 layer-kv=tail:1:i8"] {
            assert!(life(&[]).written(&text.parse().unwrap()).life().unwrap_err().starts_with(text));
        }
    }
}

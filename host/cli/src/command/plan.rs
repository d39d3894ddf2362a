//! `tqkv plan`: bytes per token and longest context of a model, per pair of codecs; for a microcontroller,
//! tokens per KiB.

use std::path::PathBuf;

use crate::plan::{
    CacheShape, CodingTime, Foreign, Loads, Plan, PlanError, PlanSource, StorageTier, parse_bandwidth,
    parse_size,
};
use crate::policy::{Policy, Uncompressed};
use crate::preset::{self, F16, KvCodecs};
use clap::builder::RangedU64ValueParser;
use tqkv::cache::PRESETS;
use tqkv_core::CodecId;
use tqkv_storage::Budget;

use crate::args::budget;
use crate::cache_args::CacheArgs;
use crate::error::CliError;
use crate::output::{Output, counted};

use super::plan_loading::Loading;
use super::plan_ram;
use super::plan_table::{PlannedStep, PlannedWeights, Report, Row, human};

/// Compute the bytes per token of a model's cache, and the longest context for a memory budget.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: a 70B-class model from its config.json, a GGUF file, a shape
  tqkv plan --model Llama-3.3-70B/config.json --memory 34GB --kv balanced
  tqkv plan --model model.gguf --memory 2GB
  tqkv plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34GiB
Example: codes that narrow with age; bytes/token is the growth of a long context per token
  tqkv plan --model Llama-3.3-70B --memory 34GB --kv t4 --kv \"t4 hot=128 tier=4096:t2\"
Example: memory of a model that is larger than memory, with streamed weights
  tqkv plan --model Llama-3.3-70B --weights --memory 8GB
  tqkv plan --model Llama-3.3-70B/config.json --weight-bits 4.5 --memory 8GB
Example: the same model on four cards of 24 GB
  tqkv plan --model Llama-3.3-70B/config.json --weight-bits 4.5 --cards 4 --memory 24GB
Example: read time of a decode step at 32k tokens, on a GPU with 2 TB/s and 16 GB of weights
  tqkv plan --layers 32 --kv-heads 32 --head-dim 128 --tokens 32768 --bandwidth 2TB/s --weight-bytes 16GB
Example: stored tokens from a disk of 7 GB/s and a network of 3 GB/s, compared with computing 5,000 tokens per second
  tqkv plan --layers 32 --kv-heads 8 --head-dim 128 --tokens 32768 --storage 1.1 --bandwidth 7GB/s --bandwidth 3GB/s --prefill 5000 --cores 4
Example: rows for formats of other programs, by name or by bytes per head vector
  tqkv plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34GB --kv t3 --kv tq3 --other mine=72,68
Example: a microcontroller, one KV head of 64 coordinates
  tqkv plan --ram 64KiB --head-dim 64
Example: a language model on the microcontroller, from its flat file
  tqkv plan --ram 520KiB --firmware-model model.tqlm

Columns:
  bytes/token      bytes that a token adds while no window is full, with its share of the
                   maps of keys at --tokens, or at the longest context of the model
  f16 ratio        bytes of f16 over bytes/token, or over those of the cache with --tokens;
                   f32 ratio the same of f32
  past window      bytes that a token adds once the windows are full
  longest context  tokens that fit --memory
  cache            bytes of the cache with --tokens
  read ms          time to read that cache once at --bandwidth
  step ms          time to read cache and weights once, the least that a step of
                   generation takes

With --storage, --bandwidth is that of a disk, a network or a bus. A second table has the time to load the tokens from \
there, and the loads after which storing has paid:
  before f16 to          bandwidth up to which the form is there sooner than f16
  before computing from  bandwidth from which loading beats computing anew
Times of coding are those of M9 and M17 in MEASURED.md, per core with AVX-512.

Cache and longest context are upper bounds of what a cache holds: means of keys and values, and maps that heads may \
get by themselves (map=auto), are counted. Layers with a state of fixed size, which hybrids have, are not.")]
pub(crate) struct Args {
    /// Model: a .gguf file, a folder with config.json, a config.json, or - for a config.json on standard
    /// input.
    ///
    /// The file gives the heads, head dims and window of each layer, and the longest context. A missing key
    /// has the default of its family. Without a known family it is an error.
    #[arg(long, visible_alias = "config", value_name = "PATH")]
    model: Option<PathBuf>,
    /// Number of decoder layers, if there is no --model.
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = size())]
    layers: Option<u32>,
    /// Number of KV heads per layer.
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = size())]
    kv_heads: Option<u32>,
    /// Coordinates per head vector.
    #[arg(long, value_name = "D", conflicts_with = "model", value_parser = size())]
    head_dim: Option<u32>,
    /// RAM of a microcontroller for the cache, with its unit: shows tokens per KiB for the integer codecs.
    /// The default shape is one layer and one KV head.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "memory")]
    ram: Option<u64>,
    /// Flat file of a model for microcontrollers (tqkv export). Its working memory is subtracted from --ram.
    #[arg(long, value_name = "FILE", requires = "ram", conflicts_with_all = ["model", "layers", "kv_heads", "head_dim"])]
    firmware_model: Option<PathBuf>,
    /// Memory for the cache, with its unit: 34GB is 34*10^9 bytes, 34GiB and 34G are 34*2^30.
    ///
    /// With --weights or --weight-bits it is that of the weights too: the cache has what they leave. Weights
    /// larger than that are streamed by layer.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Show the memory of the weights of --model as well, in full and streamed by layer.
    ///
    /// See generate --stream-weights. Activations of the prompt take extra memory, for 1024 tokens at a time.
    #[arg(long, requires = "model")]
    weights: bool,
    /// Bits per weight for the same figures without weights on disk, counted from the config of --model.
    ///
    /// Encoders of images and sounds are not counted.
    #[arg(long, value_name = "BITS", requires = "model", conflicts_with = "weights", value_parser = weight_bits)]
    weight_bits: Option<f64>,
    /// Cards that share the model by tensor parallelism: each figure is then of one card, --memory and
    /// --bandwidth included.
    ///
    /// Weights and KV heads are divided evenly. A card has one KV head at least, and latent vectors are on
    /// every card.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "ram", value_parser = clap::value_parser!(u32).range(1..=1024))]
    cards: u32,
    /// Number of tokens in the cache: shows their memory.
    #[arg(long, value_name = "N", conflicts_with = "ram", value_parser = clap::value_parser!(u64).range(1..))]
    tokens: Option<u64>,
    /// Memory bandwidth of the GPU or CPU, such as 2TB/s: shows the time to read memory in a step of
    /// generation.
    ///
    /// With --storage that of a disk, a network or a bus: shows the time to load the tokens, and may be
    /// repeated.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_bandwidth, requires = "tokens")]
    bandwidth: Vec<u64>,
    /// Tokens per second that the model computes anew, for the break-even of stored tokens.
    #[arg(long, value_name = "TOKENS", requires_all = ["storage", "bandwidth"], value_parser = prefill)]
    prefill: Option<f64>,
    /// Cores that encode and decode stored tokens.
    #[arg(long, value_name = "N", requires_all = ["storage", "bandwidth"], default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: u32,
    /// Bytes of weights that a step reads, in place of --weights. For a mixture of experts, count the active
    /// ones.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "bandwidth")]
    weight_bytes: Option<u64>,
    /// A row for another program's format: a name, and its bytes per head vector. May be repeated. Examples:
    /// tq3=52, or turbo4=72,68 for keys and values.
    ///
    /// All its tokens count as encoded.
    #[arg(long, value_name = "NAME=BYTES", conflicts_with = "ram")]
    other: Vec<Foreign>,
    /// A row for tokens of the storage tier (encode --storage), in bits per value, with the bytes of their
    /// basis. May be repeated.
    #[arg(long, value_name = "BITS", value_parser = budget, conflicts_with = "ram")]
    storage: Vec<Budget>,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Tokens that share the maps of keys, where neither the command nor the model says how many there are.
const USUAL_TOKENS: u64 = 8192;

/// Parses a number of layers, heads or coordinates.
fn size() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

fn prefill(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| (1e-3..=1e9).contains(speed));
    speed.ok_or_else(|| "expected tokens per second, .001 to 1000000000".to_owned())
}

fn weight_bits(text: &str) -> Result<f64, String> {
    let bits = text.parse::<f64>().ok().filter(|bits| (0.1..=64.0).contains(bits));
    bits.ok_or_else(|| "expected 0.1 to 64".to_owned())
}

/// The rows without `--kv`: f16, the presets, and other codecs of one width.
fn default_rows() -> Vec<Policy> {
    let one = |codec| Policy::from(KvCodecs { k: codec, v: codec });
    let others = [CodecId::F16, CodecId::T3, CodecId::S3, CodecId::T2, CodecId::S2].map(one);
    let mut rows: Vec<_> = PRESETS.iter().map(Policy::from).chain(others).collect();
    let bytes = |codec: CodecId| codec.block_bytes(128).unwrap_or(0);
    let oldest = |policy: &Policy| policy.oldest().map_or(0, |codecs| bytes(codecs.k) + bytes(codecs.v));
    rows.sort_by_key(|policy| std::cmp::Reverse(oldest(policy)));
    rows
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if let (Some(ram), Some(path)) = (args.ram, &args.firmware_model) {
        return plan_ram::run_model(&args.cache, path, ram, out);
    }
    let source = args.model.as_deref().map(PlanSource::read).transpose()?;
    let shape = source.as_ref().map_or_else(|| shape(args), |source| Ok(source.shape()))?;
    if let Some(ram) = args.ram {
        return plan_ram::run(&args.cache, &shape, ram, out);
    }
    let policies = args.cache.policies(default_rows);
    let weights = source.as_ref().map_or(Ok(None), |source| weights(args, source))?;
    let given = args.weight_bytes.map(|bytes| bytes.div_ceil(args.cards.into()));
    let weight_bytes = given.or(weights.as_ref().map(|weights| weights.all));
    let left = |all: u64| weights.as_ref().map_or(all, |weights| weights.left_of(all));
    let memory = args.memory.map(left);
    let planner = Planner { shape: shape.of_card(args.cards), args, weight_bytes, memory };
    let rows = policies.iter().map(|policy| planner.row(policy));
    let others = args.other.iter().map(|other| planner.other(other).map_err(CliError::bad_input));
    let tier = (!args.storage.is_empty()).then(|| StorageTier::new(&planner.shape)).transpose()?;
    let stored = tier.iter().flat_map(|tier| args.storage.iter().map(|&bits| planner.stored(tier, bits)));
    let rows: Result<Vec<_>, CliError> = rows.chain(others).chain(stored).collect();
    let loading = tier.as_ref().map(|tier| planner.loading(tier, &policies)).transpose()?.flatten();
    let kept = window(&policies);
    let report = Report {
        memory: args.memory,
        cache_memory: planner.memory,
        streams_weights: weights
            .as_ref()
            .zip(args.memory)
            .is_some_and(|(weights, all)| weights.are_streamed(all)),
        weights,
        tokens: args.tokens,
        bandwidth: planner.bandwidth()?,
        weight_bytes: planner.bandwidth()?.and(weight_bytes),
        hot: kept.map(|kept| kept.hot),
        sinks: kept.map(|kept| kept.sinks),
        basis_bytes: tier.as_ref().map(|tier| tier.basis_bytes),
        rows: rows?,
        loading,
        cards: args.cards,
        ..Report::of(&shape, source.as_ref().map(PlanSource::kv))
    };
    out.print(&report, human)
}

/// The tokens that stay f16, where all rows agree and their bytes do not decide it.
fn window(policies: &[Policy]) -> Option<Uncompressed> {
    if policies.iter().any(Policy::narrows) {
        return None;
    }
    let mut windows = policies.iter().filter(|policy| policy.is_compressed()).map(Policy::window);
    let first = windows.next()?;
    windows.all(|window| window == first).then_some(first)
}

/// The inputs that all rows share.
struct Planner<'a> {
    shape: CacheShape,
    args: &'a Args,
    weight_bytes: Option<u64>,
    /// Bytes of memory for the cache.
    memory: Option<u64>,
}

impl Planner<'_> {
    fn row(&self, policy: &Policy) -> Result<Row, CliError> {
        if policy.is_windowed_yardstick() {
            return Err(CliError::not_stored("plan", &policy.name));
        }
        if policy.is_reference() {
            return self.other(&Foreign::reference(policy.name.kv)).map_err(CliError::bad_input);
        }
        self.planned(policy).map_err(CliError::bad_input)
    }

    fn planned(&self, policy: &Policy) -> Result<Row, PlanError> {
        let plan = self.shape.plan(policy)?;
        let per_token = (plan.bytes_per_token()? + self.map_share(&plan), plan.bytes_past_window()?);
        let max_tokens = self.memory.map(|memory| plan.max_tokens(memory));
        let tokens = self.args.tokens.or(plan.ring());
        let bytes = tokens.map(|tokens| plan.bytes(tokens)).transpose()?;
        let maps = tokens.map(|tokens| plan.map_bytes(tokens)).filter(|bytes| *bytes > 0);
        let figures = self.figures(per_token, max_tokens, bytes);
        // A ring holds fewer tokens than f16 would.
        let whole = self.args.tokens.zip(bytes).filter(|_| plan.ring().is_none());
        let f16_ratio = match whole {
            Some((tokens, bytes)) => plan.in_f16()?.bytes(tokens)? as f64 / bytes as f64,
            None => figures.f16_ratio,
        };
        let codecs = policy.name.kv.own();
        Ok(Row {
            codec_k: codecs.map(|codecs| codecs.k.name()),
            codec_v: codecs.map(|codecs| codecs.v.name()),
            preset: codecs
                .and_then(preset::of_pair)
                .filter(|_| policy.name.policy.is_none())
                .map(|preset| preset.name),
            policy: policy.name.policy.clone(),
            map_bytes: maps,
            f16_ratio,
            f32_ratio: 2.0 * f16_ratio,
            ..figures
        })
    }

    /// Bytes of the maps of keys per token.
    fn map_share(&self, plan: &Plan) -> u64 {
        let tokens = self.args.tokens.or(self.shape.context).unwrap_or(USUAL_TOKENS);
        plan.map_bytes(tokens).div_ceil(tokens.max(1))
    }

    fn other(&self, other: &Foreign) -> Result<Row, PlanError> {
        let max_tokens = self.memory.map(|memory| other.max_tokens(&self.shape, memory)).transpose()?;
        let bytes = self.args.tokens.map(|tokens| other.bytes(&self.shape, tokens)).transpose()?;
        let figures = self.figures(other.per_token(&self.shape)?, max_tokens, bytes);
        Ok(Row { other: Some(other.name.clone()), ..figures })
    }

    fn stored(&self, tier: &StorageTier, bits: Budget) -> Result<Row, CliError> {
        let per_token = tier.bytes_per_token(bits)?;
        let max_tokens = self.memory.map(|memory| memory / per_token.max(1));
        let bytes = self.args.tokens.map(|tokens| tokens.saturating_mul(per_token));
        let figures = self.figures((per_token, None), max_tokens, bytes);
        Ok(Row { other: Some(format!("stored at {}", counted(bits.bits(), "bit"))), ..figures })
    }

    /// The bandwidth of memory; `None` where it is that of stored tokens.
    fn bandwidth(&self) -> Result<Option<u64>, CliError> {
        match &self.args.bandwidth[..] {
            _ if !self.args.storage.is_empty() => Ok(None),
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            _ => Err(CliError::bad_input(
                "several --bandwidth are not valid for memory: expected --storage too",
            )),
        }
    }

    /// Loading all tokens as f16, in the codecs of the rows without tiers, and as chunks.
    fn loading(&self, tier: &StorageTier, policies: &[Policy]) -> Result<Option<Loading>, CliError> {
        let &Args { tokens: Some(tokens), cores, prefill, ref bandwidth, .. } = self.args else {
            return Ok(None);
        };
        if bandwidth.is_empty() {
            return Ok(None);
        }
        let values = self.shape.values_per_token();
        let all = |per_token: u64| tokens.saturating_mul(per_token);
        let coded = |codecs: KvCodecs| {
            let plan = self.shape.plan(&codecs.into()).map_err(CliError::bad_input)?;
            let bytes = all(plan.bytes_per_token().map_err(CliError::bad_input)?);
            Ok((codecs.to_string(), bytes, CodingTime::of_codecs(codecs, values / 2.0)))
        };
        let pairs =
            policies.iter().filter(|policy| policy.is_uniform()).filter_map(|policy| policy.name.kv.own());
        let mut forms = std::iter::once(F16)
            .chain(pairs.filter(|codecs| *codecs != F16))
            .map(coded)
            .collect::<Result<Vec<_>, CliError>>()?;
        let loads = Loads { tokens, cores, plain: forms[0].1, prefill };
        for &bits in &self.args.storage {
            let name = format!("stored at {}", counted(bits.bits(), "bit"));
            let time = CodingTime::of_storage(tier, bits, values);
            forms.push((name, all(tier.bytes_per_token(bits)?), time));
        }
        Ok(Some(Loading::new(loads, bandwidth, forms)))
    }

    fn figures(&self, per_token: (u64, Option<u64>), max_tokens: Option<u64>, bytes: Option<u64>) -> Row {
        let f16_ratio = 2.0 * self.shape.values_per_token() / per_token.0 as f64;
        let bandwidth = self.bandwidth().ok().flatten();
        let milliseconds = |bytes: u64| Some(1e3 * bytes as f64 / bandwidth? as f64);
        let all = |bytes: u64| self.weight_bytes.map(|weights| weights.saturating_add(bytes));
        Row {
            codec_k: None,
            codec_v: None,
            other: None,
            preset: None,
            policy: None,
            map_bytes: None,
            bytes_per_token: per_token.0,
            bytes_per_token_past_window: per_token.1,
            f16_ratio,
            f32_ratio: 2.0 * f16_ratio,
            max_tokens,
            step: PlannedStep {
                cache_bytes: bytes,
                read_ms: bytes.and_then(milliseconds),
                step_ms: bytes.and_then(all).and_then(milliseconds),
            },
        }
    }
}

/// The shape of the command line.
fn shape(args: &Args) -> Result<CacheShape, CliError> {
    let refused = |text: &str| Err(CliError::bad_input(text));
    let Args { layers, kv_heads, head_dim, ram, .. } = *args;
    let Some(head_dim) = head_dim else {
        return match (ram, layers.or(kv_heads)) {
            (Some(_), _) => refused("--ram needs the shape of the vectors: --head-dim, or a --model"),
            (None, Some(_)) => {
                refused("a shape needs --layers, --kv-heads and --head-dim; --head-dim is missing")
            }
            (None, None) => {
                refused("expected --model PATH, or a shape: --layers N --kv-heads N --head-dim D")
            }
        };
    };
    if ram.is_none() && (layers.is_none() || kv_heads.is_none()) {
        return refused("a shape needs --layers, --kv-heads and --head-dim");
    }
    let (layers, kv_heads) = (layers.unwrap_or(1), kv_heads.unwrap_or(1));
    Ok(CacheShape::new(layers as usize, kv_heads as usize, head_dim as usize))
}

fn weights(args: &Args, source: &PlanSource) -> Result<Option<PlannedWeights>, CliError> {
    let bytes = match args.weight_bits {
        Some(bits) => source.weights_of(bits)?,
        None if args.weights => source.weights()?,
        None => return Ok(None),
    };
    let of_card = |bytes: u64| bytes.div_ceil(args.cards.into());
    Ok(Some(PlannedWeights {
        all: of_card(bytes.all),
        beside_layers: of_card(bytes.beside),
        largest_layer: of_card(bytes.layer),
        streamed: of_card(bytes.streamed()),
    }))
}

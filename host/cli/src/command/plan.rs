//! `tqkv plan`: bytes per token and longest context of a model, per pair of codecs; tokens per KiB of a
//! microcontroller.

use std::path::PathBuf;

use crate::plan::{CacheShape, Foreign, PlanError, PlanSource, StorageTier, parse_bandwidth, parse_size};
use crate::policy::{self, AgeArgs, LifeArgs, Policy, PolicyArg};
use crate::preset::KvCodecs;
use clap::builder::RangedU64ValueParser;
use tqkv::cache::KvCache;
use tqkv_core::CodecId;
use tqkv_storage::Budget;

use crate::args::{KvArgs, budget};
use crate::error::CliError;
use crate::output::Output;

use super::plan_ram;
use super::plan_table::{Report, Row, Step, Weights, human};

/// Compute the bytes per token of a model's cache, and the longest context for a memory budget.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("whose").args(["layers", "ram"]).multiple(true))]
#[command(after_help = "Example: a 70B-class model from its config.json and from its shape, a GGUF file
  tqkv plan --model Llama-3.3-70B/config.json --memory 34GB --kv balanced
  tqkv plan --model model.gguf --memory 2GB
  tqkv plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34GiB
Example: codes that narrow with age; bytes/token is what a token adds to a long context
  tqkv plan --model Llama-3.3-70B --memory 34GB --kv n4 --tier 4096:n3 --tier 32768:n2
  tqkv plan --model Llama-3.3-70B --memory 34GB --policy \"n4 hot=128 tier=4096:n2\" --kv n4
Example: what a model takes that is larger than memory
  tqkv plan --model Llama-3.3-70B --weights --memory 8GB
  tqkv plan --model Llama-3.3-70B/config.json --weight-bits 4.5 --memory 8GB
Example: what of a decode step is reading, at 32k tokens on a GPU of 2 TB/s with 16 GB of weights
  tqkv plan --layers 32 --kv-heads 32 --head-dim 128 --tokens 32768 --bandwidth 2TB/s --weight-bytes 16GB
Example: beside formats of other programs, by name or by their bytes per head vector
  tqkv plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34GB --kv t3 --kv tq3 --other mine=72,68
Example: a microcontroller, one KV head of 64 coordinates
  tqkv plan --ram 64KiB --head-dim 64
Example: a language model on it, from its flat file
  tqkv plan --ram 520KiB --firmware-model model.tqlm

Columns: bytes/token is what a token adds while no window is full, f16 and f32 are the bytes of those over it. With --tokens, cache \
is all that so many tokens hold, read ms the time in which --bandwidth gives it, and step ms that with the weights: a step of \
generation reads both once, and is no faster than that. Layers with a state of fixed size, which hybrids have, are not counted.")]
pub(crate) struct Args {
    /// The model: a .gguf file, a folder with config.json, a config.json alone, or - for one on standard
    /// input. Sliding windows, layers without attention, latent attention and the longest context are taken
    /// from it.
    #[arg(long, visible_alias = "config", value_name = "PATH",
        required_unless_present_any = ["layers", "kv_heads", "head_dim", "ram"])]
    model: Option<PathBuf>,
    /// Decoder layers, in place of a config.json.
    #[arg(long, value_name = "N", requires_all = ["kv_heads", "head_dim"], conflicts_with = "model", value_parser = size())]
    layers: Option<u32>,
    /// KV heads per layer.
    #[arg(long, value_name = "N", requires_all = ["whose", "head_dim"], value_parser = size())]
    kv_heads: Option<u32>,
    /// Coordinates per head vector.
    #[arg(long, value_name = "D", requires = "whose", value_parser = size())]
    head_dim: Option<u32>,
    /// Memory of a microcontroller for the cache: tokens per KiB of the integer codecs. One layer and one KV
    /// head unless told otherwise.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["memory", "hot", "sinks", "tier", "policy"])]
    ram: Option<u64>,
    /// The flat file of a model for microcontrollers (tqkv export): what it works in is taken off the RAM.
    #[arg(long, value_name = "FILE", requires = "ram", conflicts_with_all = ["model", "layers", "kv_heads", "head_dim"])]
    firmware_model: Option<PathBuf>,
    /// Memory for the cache, with its unit: 34GB is 34*10^9 bytes, 34GiB is 34*2^30.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Say what the weights of --model take as well, in memory and streamed layer by layer
    /// (generate --stream-weights); activations of a prompt come on top, 1024 tokens at a time.
    #[arg(long, requires = "model")]
    weights: bool,
    /// The same without weights on disk: so many bits per weight, counted from the config of --model.
    #[arg(long, value_name = "BITS", requires = "model", conflicts_with = "weights", value_parser = weight_bits)]
    weight_bits: Option<f64>,
    /// Tokens in the cache: say what they take.
    #[arg(long, value_name = "N", conflicts_with = "ram", value_parser = clap::value_parser!(u64).range(1..))]
    tokens: Option<u64>,
    /// Bytes a second that the memory gives, of a GPU or a CPU: say how long reading takes in a step of
    /// generation.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_bandwidth, requires = "tokens")]
    bandwidth: Option<u64>,
    /// Bytes of the weights that a step reads, in place of those of --weights (of a mixture of experts, its
    /// active ones).
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "bandwidth")]
    weight_bytes: Option<u64>,
    /// A row for a format of another program: a name, and its bytes a head vector (of keys and of values
    /// where they differ). All its tokens count as encoded. May be repeated.
    #[arg(long, value_name = "NAME=BYTES", conflicts_with = "ram")]
    other: Vec<Foreign>,
    /// A row for tokens stored at so many bits a value (encode --storage), and the bytes of their basis; may
    /// be repeated.
    #[arg(long, value_name = "BITS", value_parser = budget, conflicts_with = "ram")]
    storage: Vec<Budget>,
    #[command(flatten)]
    kv: KvArgs,
    /// A row with a policy of its own: codecs, and what differs from the options; may be repeated (--help
    /// lists its words): --policy "n4 hot=32 tier=256:n3 tier=512:n2"
    #[arg(long, value_name = "POLICY", long_help = policy::help())]
    policy: Vec<PolicyArg>,
    #[command(flatten)]
    ages: AgeArgs,
}

/// A number of layers, heads or coordinates.
fn size() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

fn weight_bits(text: &str) -> Result<f64, String> {
    let bits = text.parse::<f64>().ok().filter(|bits| (0.1..=64.0).contains(bits));
    bits.ok_or_else(|| "accepted are 0.1 to 64".to_owned())
}

/// Rows without `--kv`.
const DEFAULT: [CodecId; 8] =
    [CodecId::F16, CodecId::I8, CodecId::T4, CodecId::S4, CodecId::T3, CodecId::S3, CodecId::T2, CodecId::S2];

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if let (Some(ram), Some(path)) = (args.ram, &args.firmware_model) {
        return plan_ram::run_model(&args.kv, path, ram, out);
    }
    let source = args.model.as_deref().map(PlanSource::read).transpose()?;
    let shape = shape(args, source.as_ref())?;
    if let Some(ram) = args.ram {
        return plan_ram::run(&args.kv, shape, ram, out);
    }
    let pairs = DEFAULT.map(|codec| KvCodecs { k: codec, v: codec });
    let policies = LifeArgs::from(args.ages.clone()).policies(&args.kv, &args.policy, &pairs);
    let weights = source.as_ref().map_or(Ok(None), |source| weights(args, source))?;
    let weight_bytes = args.weight_bytes.or(weights.as_ref().map(|weights| weights.all));
    let planner = Planner { shape, args, weight_bytes };
    let rows = policies.iter().map(|policy| planner.row(policy));
    let others = args.other.iter().map(|other| planner.other(other).map_err(CliError::bad_input));
    let tier = (!args.storage.is_empty()).then(|| StorageTier::new(&shape)).transpose()?;
    let stored = tier.iter().flat_map(|tier| args.storage.iter().map(|&bits| planner.stored(tier, bits)));
    let rows: Result<Vec<_>, CliError> = rows.chain(others).chain(stored).collect();
    let report = Report {
        layers: shape.num_layers,
        kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        value_dim: shape.value_dim,
        latent: shape.is_latent(),
        windowed_layers: shape.windowed.map_or(0, |windowed| windowed.layers),
        window: shape.windowed.map(|windowed| windowed.tokens),
        model_context: shape.context,
        memory: args.memory,
        weights,
        tokens: args.tokens,
        bandwidth: args.bandwidth,
        weight_bytes: args.bandwidth.and(weight_bytes),
        hot: args.ages.window.hot,
        sinks: args.ages.window.sinks,
        basis_bytes: tier.as_ref().map(|tier| tier.basis_bytes),
        rows: rows?,
    };
    out.print(&report, human)
}

/// What rows have in common.
struct Planner<'a> {
    shape: CacheShape,
    args: &'a Args,
    weight_bytes: Option<u64>,
}

impl Planner<'_> {
    fn row(&self, policy: &Policy) -> Result<Row, CliError> {
        let shape = &self.shape;
        if policy.is_reference() && policy.is_uniform() {
            let format = Foreign::reference(policy.name.kv, shape);
            return format.and_then(|format| self.other(&format)).map_err(CliError::bad_input);
        }
        let life = policy.life().map_err(CliError::bad_input)?;
        let tiers = life.tiers.iter().map(|(after, kv)| format!(" tier={after}:{kv}")).collect::<String>();
        let tiered = (!tiers.is_empty()).then(|| format!("{}{tiers}", life.codecs));
        let planned = |codecs: KvCodecs| {
            let per_token = (shape.bytes_per_token(codecs)?, shape.bytes_past_window(codecs)?);
            let max_tokens = self.args.memory.map(|memory| shape.max_tokens(&life, memory)).transpose()?;
            let bytes = self.args.tokens.map(|tokens| shape.bytes(&life, tokens)).transpose()?;
            Ok(Row {
                codec_k: Some(life.codecs.k.name()),
                codec_v: Some(life.codecs.v.name()),
                policy: policy.name.policy.clone().or_else(|| tiered.clone()),
                ..self.figures(per_token, max_tokens, bytes)
            })
        };
        let row = planned(life.oldest()).map_err(|error: PlanError| CliError::bad_input(error))?;
        if !life.tiers.is_empty() {
            // A cache says best which codecs can become which.
            KvCache::new(policy.apply(shape.spec()))
                .map_err(|error| CliError::bad_input(format_args!("{}: {error}", policy.name)))?;
        }
        Ok(row)
    }

    fn other(&self, other: &Foreign) -> Result<Row, PlanError> {
        let max_tokens = self.args.memory.map(|memory| other.max_tokens(&self.shape, memory));
        let bytes = self.args.tokens.map(|tokens| other.bytes(&self.shape, tokens)).transpose()?;
        let figures = self.figures(other.per_token(&self.shape)?, max_tokens, bytes);
        Ok(Row { other: Some(other.name.clone()), ..figures })
    }

    fn stored(&self, tier: &StorageTier, bits: Budget) -> Result<Row, CliError> {
        let per_token = tier.bytes_per_token(bits)?;
        let max_tokens = self.args.memory.map(|memory| memory / per_token.max(1));
        let bytes = self.args.tokens.map(|tokens| tokens.saturating_mul(per_token));
        let figures = self.figures((per_token, None), max_tokens, bytes);
        Ok(Row { other: Some(format!("stored at {} bits", bits.bits())), ..figures })
    }

    fn figures(&self, per_token: (u64, Option<u64>), max_tokens: Option<u64>, bytes: Option<u64>) -> Row {
        let values = self.shape.values_per_head() * self.shape.num_layers * self.shape.num_kv_heads;
        let f16_ratio = 2.0 * values as f64 / per_token.0 as f64;
        let milliseconds = |bytes: u64| Some(1e3 * bytes as f64 / self.args.bandwidth? as f64);
        let all = |bytes: u64| self.weight_bytes.map(|weights| weights.saturating_add(bytes));
        Row {
            codec_k: None,
            codec_v: None,
            other: None,
            policy: None,
            bytes_per_token: per_token.0,
            bytes_per_token_past_window: per_token.1,
            f16_ratio,
            f32_ratio: 2.0 * f16_ratio,
            max_tokens,
            step: Step {
                cache_bytes: bytes,
                read_ms: bytes.and_then(milliseconds),
                step_ms: bytes.and_then(all).and_then(milliseconds),
            },
        }
    }
}

fn shape(args: &Args, source: Option<&PlanSource>) -> Result<CacheShape, CliError> {
    if let Some(source) = source {
        return source.shape();
    }
    // The command line lets neither layers nor KV heads be absent without `--ram`.
    let Some(head_dim) = args.head_dim else {
        return Err(CliError::bad_input("--ram needs the shape of the vectors: --head-dim, or a --model"));
    };
    let (layers, kv_heads) = (args.layers.unwrap_or(1), args.kv_heads.unwrap_or(1));
    Ok(CacheShape::new(layers as usize, kv_heads as usize, head_dim as usize))
}

fn weights(args: &Args, source: &PlanSource) -> Result<Option<Weights>, CliError> {
    let bytes = match args.weight_bits {
        Some(bits) => source.weights_of(bits)?,
        None if args.weights => source.weights()?,
        None => return Ok(None),
    };
    Ok(Some(Weights {
        all: bytes.all,
        beside_layers: bytes.beside,
        largest_layer: bytes.layer,
        streamed: bytes.streamed(),
    }))
}

//! `tqkv plan`: bytes per token and longest context of a model, per pair of codecs; tokens per KiB of a
//! microcontroller.

use std::path::{Path, PathBuf};

use crate::plan::{CacheShape, PlanError, parse_size};
use crate::policy::{AgeArgs, LifeArgs, Policy, PolicyArg};
use crate::preset::KvCodecs;
use serde::Serialize;
use tqkv::cache::KvCache;
use tqkv_core::fixed::INTEGER_CODECS;
use tqkv_core::{CodecId, KvShape};
use tqkv_model::{WeightBytes, flat};

use crate::args::KvArgs;
use crate::error::CliError;
use crate::input;
use crate::output::{Output, grouped, table};

/// Compute the bytes per token of a model's cache, and the longest context for a memory budget.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("whose").args(["layers", "ram"]).multiple(true))]
#[command(after_help = "Example: a 70B-class model, from its config.json and from its shape
  tqkv plan --config Llama-3.3-70B/config.json --memory 34GB --kv balanced
  tqkv plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34GiB
Example: codes that narrow with age; bytes/token is what a token adds to a long context
  tqkv plan --config Llama-3.3-70B --memory 34GB --kv n4 --tier 4096:n3 --tier 32768:n2
  tqkv plan --config Llama-3.3-70B --memory 34GB --policy \"n4 hot=128 tier=4096:n2\" --kv n4
Example: what a model takes that is larger than memory
  tqkv plan --config Llama-3.3-70B --weights --memory 8GB
Example: a microcontroller, one KV head of 64 coordinates
  tqkv plan --ram 64KiB --head-dim 64
Example: a language model on it, from its flat file
  tqkv plan --ram 520KiB --model model.tqlm")]
pub(crate) struct Args {
    /// A model's Hugging Face config.json, the folder that holds it, or - for standard input. Sliding windows, layers
    /// without attention, latent attention and the longest context are taken from it.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["layers", "kv_heads", "head_dim", "ram"])]
    config: Option<PathBuf>,
    /// Decoder layers, in place of a config.json.
    #[arg(long, value_name = "N", requires_all = ["kv_heads", "head_dim"], conflicts_with = "config")]
    layers: Option<u32>,
    /// KV heads per layer.
    #[arg(long, value_name = "N", requires_all = ["whose", "head_dim"])]
    kv_heads: Option<u32>,
    /// Coordinates per head vector.
    #[arg(long, value_name = "D", requires = "whose")]
    head_dim: Option<u32>,
    /// Memory of a microcontroller for the cache: tokens per KiB of the integer codecs. One layer and one KV
    /// head unless told otherwise.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["memory", "hot", "sinks", "tier", "policy"])]
    ram: Option<u64>,
    /// The flat file of a model for microcontrollers (tqkv export): what it works in is taken off the RAM.
    #[arg(long, value_name = "FILE", requires = "ram", conflicts_with_all = ["config", "layers", "kv_heads", "head_dim"])]
    model: Option<PathBuf>,
    /// Memory for the cache, with its unit: 34GB is 34*10^9 bytes, 34GiB is 34*2^30.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Say what the weights in the folder of --config take as well, in memory and streamed layer by layer
    /// (generate --stream-weights); activations of a prompt come on top, 1024 tokens at a time.
    #[arg(long, requires = "config")]
    weights: bool,
    #[command(flatten)]
    kv: KvArgs,
    /// A row with a life of its own: K,V and what differs from the options, by their names; may be repeated:
    /// --policy "n4 hot=32 tier=256:n3 tier=512:n2"
    #[arg(long, value_name = "POLICY")]
    policy: Vec<PolicyArg>,
    #[command(flatten)]
    ages: AgeArgs,
}

/// Rows without `--kv`.
const DEFAULT: [CodecId; 8] =
    [CodecId::F16, CodecId::I8, CodecId::T4, CodecId::S4, CodecId::T3, CodecId::S3, CodecId::T2, CodecId::S2];

#[derive(Serialize)]
struct Report {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    /// Whether a token is one latent vector a layer, which the codec of K keeps.
    latent: bool,
    /// Layers with a sliding window, and its tokens.
    windowed_layers: usize,
    window: Option<u64>,
    /// Longest sequence that the model is made for, null where it is not said.
    model_context: Option<u64>,
    memory: Option<u64>,
    /// Where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Weights>,
    hot: usize,
    sinks: usize,
    rows: Vec<Row>,
}

/// Bytes of the weights as they are stored.
#[derive(Serialize)]
struct Weights {
    all: u64,
    /// Embedding, head and what else belongs to no layer.
    beside_layers: u64,
    largest_layer: u64,
    /// In memory at once where layers are streamed.
    streamed: u64,
}

#[derive(Serialize)]
struct Row {
    codec_k: &'static str,
    codec_v: &'static str,
    /// The `--policy`, or what would be one where tiers are those of the options.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// What a token adds, to the oldest tier where there are tiers.
    bytes_per_token: u64,
    /// The same where windows are full, null without windows.
    bytes_per_token_past_window: Option<u64>,
    /// Longest context in the budget, at most the model's; null without a budget.
    max_tokens: Option<u64>,
}

#[derive(Serialize)]
struct RamReport {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    ram: u64,
    /// Of it, what the model works in; its file is in flash.
    #[serde(skip_serializing_if = "Option::is_none")]
    work_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flash_bytes: Option<u64>,
    rows: Vec<RamRow>,
}

#[derive(Serialize)]
struct RamRow {
    codec_k: &'static str,
    codec_v: &'static str,
    bytes_per_token: u64,
    tokens_per_kib: f64,
    tokens: u64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if let (Some(ram), Some(path)) = (args.ram, &args.model) {
        let file = input::read(path)?;
        let model = flat::read(&file)
            .map_err(|error| CliError::bad_input(format_args!("{}: {error}", path.display())))?;
        let of = model.shape();
        let shape = CacheShape::new(of.layers.into(), of.kv_heads.into(), of.head_dim.into());
        let work = 4 * of.work_words() as u64;
        let report = microcontroller(args, shape, ram.saturating_sub(work)).map_err(CliError::bad_input)?;
        let report =
            RamReport { ram, work_bytes: Some(work), flash_bytes: Some(file.len() as u64), ..report };
        return out.print(&report, human_ram);
    }
    let shape = shape(args)?;
    if let Some(ram) = args.ram {
        return out.print(&microcontroller(args, shape, ram).map_err(CliError::bad_input)?, human_ram);
    }
    let pairs = DEFAULT.map(|codec| KvCodecs { k: codec, v: codec });
    let policies = LifeArgs::from(args.ages.clone()).policies(&args.kv, &args.policy, &pairs);
    let rows: Result<Vec<_>, CliError> =
        policies.iter().map(|policy| row(&shape, policy, args.memory)).collect();
    let report = Report {
        layers: shape.num_layers,
        kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        value_dim: shape.value_dim,
        latent: shape.latent,
        windowed_layers: shape.windowed.map_or(0, |windowed| windowed.layers),
        window: shape.windowed.map(|windowed| windowed.tokens),
        model_context: shape.context,
        memory: args.memory,
        weights: weights(args)?,
        hot: args.ages.window.hot,
        sinks: args.ages.window.sinks,
        rows: rows?,
    };
    out.print(&report, human)
}

fn row(shape: &CacheShape, policy: &Policy, memory: Option<u64>) -> Result<Row, CliError> {
    let life = policy.life().map_err(CliError::bad_input)?;
    let tiers = life.tiers.iter().map(|(after, kv)| format!(" tier={after}:{kv}")).collect::<String>();
    let tiered = (!tiers.is_empty()).then(|| format!("{}{tiers}", life.codecs));
    let planned = |codecs: KvCodecs| {
        Ok(Row {
            codec_k: life.codecs.k.name(),
            codec_v: life.codecs.v.name(),
            policy: policy.name.policy.clone().or_else(|| tiered.clone()),
            bytes_per_token: shape.bytes_per_token(codecs)?,
            bytes_per_token_past_window: shape.bytes_past_window(codecs)?,
            max_tokens: memory.map(|memory| shape.max_tokens(&life, memory)).transpose()?,
        })
    };
    let row = planned(life.oldest()).map_err(|error: PlanError| CliError::bad_input(error))?;
    if !life.tiers.is_empty() {
        // A cache says best which codecs can become which.
        let vectors = KvShape::new(1, 1, 1, shape.head_dim).with_value_dim(shape.value_dim);
        KvCache::new(policy.apply(vectors.into()))
            .map_err(|error| CliError::bad_input(format_args!("{}: {error}", policy.name)))?;
    }
    Ok(row)
}

fn microcontroller(args: &Args, shape: CacheShape, ram: u64) -> Result<RamReport, PlanError> {
    let rows = args.kv.pairs(&INTEGER_CODECS.map(|codec| KvCodecs { k: codec, v: codec })).into_iter();
    let rows = rows.map(|codecs| {
        let tokens = shape.ring_tokens(codecs, ram)?;
        let bytes_per_token = shape.ring_bytes_per_token(codecs)?;
        Ok(RamRow {
            codec_k: codecs.k.name(),
            codec_v: codecs.v.name(),
            bytes_per_token,
            tokens_per_kib: 1024.0 / bytes_per_token as f64,
            tokens,
        })
    });
    Ok(RamReport {
        layers: shape.num_layers,
        kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        ram,
        work_bytes: None,
        flash_bytes: None,
        rows: rows.collect::<Result<_, PlanError>>()?,
    })
}

fn shape(args: &Args) -> Result<CacheShape, CliError> {
    // The command line lets neither layers nor KV heads be absent without `--ram`.
    if let Some(head_dim) = args.head_dim {
        let (layers, kv_heads) = (args.layers.unwrap_or(1), args.kv_heads.unwrap_or(1));
        return Ok(CacheShape::new(layers as usize, kv_heads as usize, head_dim as usize));
    }
    let Some(mut path) = args.config.clone() else {
        return Err(CliError::bad_input(
            "--ram needs the shape of the vectors: --head-dim, or a model's --config",
        ));
    };
    if path.is_dir() {
        path.push("config.json");
    }
    let json = String::from_utf8_lossy(&input::read(&path)?).into_owned();
    CacheShape::from_config(&json).map_err(|e| CliError::bad_input(format_args!("{}: {e}", path.display())))
}

fn weights(args: &Args) -> Result<Option<Weights>, CliError> {
    let Some(path) = args.config.as_deref().filter(|_| args.weights) else { return Ok(None) };
    let folder = if path.is_dir() { Some(path) } else { path.parent().filter(|_| !input::is_stdin(path)) };
    let folder =
        folder.ok_or_else(|| CliError::bad_input("--weights needs the folder of a model as --config"))?;
    // The parent of a bare name is an empty path.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let bytes = WeightBytes::of(folder).map_err(|error| CliError::model(Some(folder), &error))?;
    Ok(Some(Weights {
        all: bytes.all,
        beside_layers: bytes.beside,
        largest_layer: bytes.layer,
        streamed: bytes.streamed(),
    }))
}

fn human_ram(report: &RamReport) -> String {
    let rows = report.rows.iter().map(|row| {
        vec![
            format!("{},{}", row.codec_k, row.codec_v),
            grouped(row.bytes_per_token),
            format!("{:.2}", row.tokens_per_kib),
            grouped(row.tokens),
        ]
    });
    let model = match (report.flash_bytes, report.work_bytes) {
        (Some(flash), Some(work)) => {
            format!("{} bytes of flash; {} of the RAM to work in\n", grouped(flash), grouped(work))
        }
        _ => String::new(),
    };
    format!(
        "{model}{} layers, {} KV heads, head dim {}, {} bytes for slots; {} bytes more a ring for signs and indices\n{}",
        report.layers,
        report.kv_heads,
        report.head_dim,
        grouped(report.ram - report.work_bytes.unwrap_or(0).min(report.ram)),
        grouped(ring_overhead(report.head_dim)),
        table(&["K,V", "bytes/token", "tokens/KiB", "tokens"], rows)
    )
}

/// Signs and scale mode of two codecs, and three words, on a 32-bit processor.
fn ring_overhead(head_dim: usize) -> u64 {
    (2 * (head_dim as u64 + 1)).next_multiple_of(4) + 3 * 4
}

fn human(report: &Report) -> String {
    let per_head = if report.latent { report.head_dim } else { report.head_dim + report.value_dim };
    let f16_values = per_head * report.layers * report.kv_heads;
    let rows = report.rows.iter().map(|row| {
        let pair = || format!("{},{}", row.codec_k, row.codec_v);
        let mut cells = vec![
            row.policy.clone().unwrap_or_else(pair),
            grouped(row.bytes_per_token),
            format!("{:.2}", 2.0 * f16_values as f64 / row.bytes_per_token as f64),
        ];
        cells.extend(row.bytes_per_token_past_window.map(grouped));
        cells.extend(row.max_tokens.map(|tokens| match tokens {
            u64::MAX => "no bound".to_owned(),
            tokens if Some(tokens) == report.model_context => format!("{} (the model's)", grouped(tokens)),
            tokens => grouped(tokens),
        }));
        cells
    });
    let mut head = vec!["K,V", "bytes/token", "f16 ratio"];
    let mut text =
        format!("{} layers, {} KV heads, head dim {}", report.layers, report.kv_heads, report.head_dim);
    if report.value_dim != report.head_dim {
        text.push_str(&format!(", that of values {}", report.value_dim));
    }
    if report.latent {
        text.push_str(", one latent vector for key and value, kept by the codec of K");
    }
    if let Some(window) = report.window {
        head.push("past window");
        text.push_str(&format!(
            "\n{} of the layers see the newest {} tokens only",
            report.windowed_layers,
            grouped(window)
        ));
    }
    if let Some(weights) = &report.weights {
        text.push_str(&format!(
            "\n{} bytes of weights, {} where layers are streamed: two of at most {}, {} beside them",
            grouped(weights.all),
            grouped(weights.streamed),
            grouped(weights.largest_layer),
            grouped(weights.beside_layers)
        ));
    }
    if let Some(memory) = report.memory {
        head.push("longest context");
        text.push_str(&format!(
            "\n{} bytes of cache, of it f16: {} first and {} newest tokens",
            grouped(memory),
            report.sinks,
            report.hot
        ));
    }
    format!("{text}\n{}", table(&head, rows))
}

//! `tqkv plan`: bytes per token and longest context of a model, per pair of codecs.

use std::path::PathBuf;

use serde::Serialize;
use tqkv::plan::{CacheShape, PlanError, Uncompressed, parse_size};
use tqkv::preset::KvCodecs;
use tqkv_core::CodecId;

use super::args::{KvArgs, WindowArgs};
use super::error::CliError;
use super::output::{Output, grouped, table};

/// Compute the bytes per token of a model's cache, and the longest context for a memory budget.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: a 70B-class model, from its config.json and from its shape
  tqkv plan --config Llama-3.3-70B/config.json --memory 34GB --kv balanced --kv i8,s3
  tqkv plan --layers 80 --kv-heads 8 --head-dim 128 --memory 34GiB")]
pub(crate) struct Args {
    /// A model's Hugging Face config.json, or the folder that holds it.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["layers", "kv_heads", "head_dim"])]
    config: Option<PathBuf>,
    /// Decoder layers, in place of a config.json.
    #[arg(long, value_name = "N", requires_all = ["kv_heads", "head_dim"], conflicts_with = "config")]
    layers: Option<u32>,
    /// KV heads per layer.
    #[arg(long, value_name = "N", requires = "layers")]
    kv_heads: Option<u32>,
    /// Coordinates per head vector.
    #[arg(long, value_name = "D", requires = "layers")]
    head_dim: Option<u32>,
    /// Memory for the cache: 34GB is 34*10^9 bytes, 34GiB is 34*2^30.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    window: WindowArgs,
}

/// Rows without `--kv`.
const DEFAULT: [CodecId; 5] = [CodecId::F16, CodecId::I8, CodecId::S4, CodecId::S3, CodecId::S2];

#[derive(Serialize)]
struct Report {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    memory: Option<u64>,
    hot: usize,
    sinks: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    codec_k: &'static str,
    codec_v: &'static str,
    bytes_per_token: u64,
    /// Longest context in the budget, null without one.
    max_tokens: Option<u64>,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let shape = shape(args)?;
    let kept = Uncompressed { sinks: args.window.sinks as u64, hot: args.window.hot as u64 };
    let rows = args.kv.pairs(&DEFAULT.map(|codec| KvCodecs { k: codec, v: codec })).into_iter();
    let rows: Result<Vec<_>, PlanError> = rows
        .map(|codecs| {
            let max_tokens = args.memory.map(|memory| shape.max_tokens(codecs, kept, memory));
            Ok(Row {
                codec_k: codecs.k.name(),
                codec_v: codecs.v.name(),
                bytes_per_token: shape.bytes_per_token(codecs)?,
                max_tokens: max_tokens.transpose()?,
            })
        })
        .collect();
    let report = Report {
        layers: shape.num_layers,
        kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        memory: args.memory,
        hot: args.window.hot,
        sinks: args.window.sinks,
        rows: rows.map_err(CliError::bad_input)?,
    };
    out.print(&report, human)
}

fn shape(args: &Args) -> Result<CacheShape, CliError> {
    if let (Some(layers), Some(kv_heads), Some(head_dim)) = (args.layers, args.kv_heads, args.head_dim) {
        return Ok(CacheShape {
            num_layers: layers as usize,
            num_kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
        });
    }
    let mut path = args.config.clone().unwrap_or_default();
    if path.is_dir() {
        path.push("config.json");
    }
    let json = std::fs::read_to_string(&path).map_err(|e| CliError::io(&path, &e))?;
    CacheShape::from_config(&json).map_err(|e| CliError::bad_input(format_args!("{}: {e}", path.display())))
}

fn human(report: &Report) -> String {
    let f16 = CodecId::F16.block_bytes(report.head_dim).unwrap_or(0) * 2 * report.layers * report.kv_heads;
    let rows = report.rows.iter().map(|row| {
        let mut cells = vec![
            format!("{},{}", row.codec_k, row.codec_v),
            grouped(row.bytes_per_token),
            format!("{:.2}", f16 as f64 / row.bytes_per_token as f64),
        ];
        cells.extend(row.max_tokens.map(grouped));
        cells
    });
    let mut head = vec!["K,V", "bytes/token", "f16 ratio"];
    let mut text =
        format!("{} layers, {} KV heads, head dim {}", report.layers, report.kv_heads, report.head_dim);
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

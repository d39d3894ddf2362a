//! `tqkv plan --ram`: tokens per KiB on a microcontroller.

use std::path::Path;

use serde::Serialize;
use tqkv_core::fixed::INTEGER_CODECS;
use tqkv_model::flat;

use crate::cache_args::CacheArgs;
use crate::error::CliError;
use crate::input;
use crate::output::{Output, bytes, grouped, table};
use crate::plan::{CacheShape, PlanError};
use crate::preset::KvCodecs;

use super::plan_table::title;

#[derive(Serialize)]
struct RamReport {
    layers: usize,
    /// Null where layers have several shapes.
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    /// Bytes of a ring besides its slots, and of its exact tokens.
    #[serde(skip)]
    overhead: [u64; 2],
    #[serde(skip)]
    title: String,
    ram: u64,
    /// Part of `ram` that the model works in; its file is in flash.
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

/// What takes the pairs, in errors.
const RAM: &str = "plan --ram";

/// Prints the number of tokens that ring caches in `ram` bytes hold.
pub(super) fn run(cache: &CacheArgs, shape: &CacheShape, ram: u64, out: &mut Output) -> Result<(), CliError> {
    let pairs = cache.pairs(RAM)?;
    out.print(&report(pairs, shape, ram).map_err(CliError::bad_input)?, human)
}

/// The same next to a language model, given by its flat file.
pub(super) fn run_model(cache: &CacheArgs, path: &Path, ram: u64, out: &mut Output) -> Result<(), CliError> {
    let file = input::read(path)?;
    let of = flat::read(&file)
        .map_err(|error| CliError::bad_input(format_args!("{}: {error}", path.display())))?;
    let shape = CacheShape::new(of.layers.into(), of.kv_heads.into(), of.head_dim.into());
    let work = 4 * of.work_words() as u64;
    let report = report(cache.pairs(RAM)?, &shape, ram.saturating_sub(work)).map_err(CliError::bad_input)?;
    let report = RamReport { ram, work_bytes: Some(work), flash_bytes: Some(file.len() as u64), ..report };
    out.print(&report, human)
}

fn report(pairs: Option<Vec<KvCodecs>>, shape: &CacheShape, ram: u64) -> Result<RamReport, PlanError> {
    let all = || INTEGER_CODECS.map(|codec| KvCodecs { k: codec, v: codec }).to_vec();
    let rows = pairs.unwrap_or_else(all).into_iter().map(|KvCodecs { k, v }| {
        // A ring cache has no map.
        let codecs = KvCodecs { k: k.of_one_width(), v };
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
    // Rings of the widest heads have the most besides their slots.
    let widest = shape.groups.iter().map(|(layer, _)| layer.head_dim).max().unwrap_or(0);
    Ok(RamReport {
        layers: shape.num_layers(),
        kv_heads: shape.uniform().map(|layer| layer.num_kv_heads),
        head_dim: shape.uniform().map(|layer| layer.head_dim),
        overhead: [ring_overhead(widest), exact_bytes(widest)],
        title: title(shape),
        ram,
        work_bytes: None,
        flash_bytes: None,
        rows: rows.collect::<Result<_, PlanError>>()?,
    })
}

fn human(report: &RamReport) -> String {
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
            format!("{} of flash; {} of the RAM to work in\n", bytes(flash), bytes(work))
        }
        _ => String::new(),
    };
    format!(
        "{model}{}, {} for slots; {} bytes more a ring for signs and indices, and {} more with 4 + 16 exact tokens\n{}",
        report.title,
        bytes(report.ram.saturating_sub(report.work_bytes.unwrap_or(0))),
        grouped(report.overhead[0]),
        grouped(report.overhead[1]),
        table(&["K,V", "bytes/token", "tokens/KiB", "tokens"], rows)
    )
}

/// `ExactTokens` of the language model and its C library: 4 + 16 tokens of two `i8` rows, and three
/// words, on a 32-bit processor.
fn exact_bytes(head_dim: usize) -> u64 {
    20 * 2 * (head_dim as u64 + 4) + 3 * 4
}

/// Signs and scale mode of two codecs and three words, on a 32-bit processor.
fn ring_overhead(head_dim: usize) -> u64 {
    (2 * (head_dim as u64 + 1)).next_multiple_of(4) + 3 * 4
}

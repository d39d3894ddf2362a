//! `tqkv plan --ram`: tokens per KiB of a microcontroller.

use serde::Serialize;
use tqkv_core::fixed::INTEGER_CODECS;

use crate::args::KvArgs;
use crate::error::CliError;
use crate::output::{Output, grouped, table};
use crate::plan::{CacheShape, PlanError};
use crate::preset::KvCodecs;

#[derive(Serialize)]
struct RamReport {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    ram: u64,
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

/// Prints what ring caches in `ram` bytes hold.
pub(super) fn run(kv: &KvArgs, shape: CacheShape, ram: u64, out: &mut Output) -> Result<(), CliError> {
    let pairs = kv.own("plan")?;
    out.print(&report(pairs, shape, ram).map_err(CliError::bad_input)?, human)
}

fn report(pairs: Option<Vec<KvCodecs>>, shape: CacheShape, ram: u64) -> Result<RamReport, PlanError> {
    let all = || INTEGER_CODECS.map(|codec| KvCodecs { k: codec, v: codec }).to_vec();
    let rows = pairs.unwrap_or_else(all).into_iter().map(|codecs| {
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
    format!(
        "{} layers, {} KV heads, head dim {}, {} bytes for slots; {} bytes more a ring for signs and indices\n{}",
        report.layers,
        report.kv_heads,
        report.head_dim,
        grouped(report.ram),
        grouped(ring_overhead(report.head_dim)),
        table(&["K,V", "bytes/token", "tokens/KiB", "tokens"], rows)
    )
}

/// Signs and scale mode of two codecs, and three words, on a 32-bit processor.
fn ring_overhead(head_dim: usize) -> u64 {
    (2 * (head_dim as u64 + 1)).next_multiple_of(4) + 3 * 4
}

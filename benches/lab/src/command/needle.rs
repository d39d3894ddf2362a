//! `tqkv-lab needle`: tests if a query finds its one token in a long cache, and measures the cost.

use std::time::Instant;

use clap::builder::RangedU64ValueParser;
use indicatif::ProgressBar;
use serde::Serialize;
use tqkv::cache::{KvCache, PRESETS};
use tqkv::error::CacheError;
use tqkv_cli::cache_args::{self, CacheArgs};
use tqkv_cli::device::Place;
use tqkv_cli::error::CliError;
use tqkv_cli::output::{Output, grouped, sized, table};
use tqkv_cli::plan::CacheShape;
use tqkv_cli::policy::{Name, Policy};

use tqkv_core::KvShape;

use super::needle_data::{CHUNK, Haystack};
use crate::stats::dot;

/// Hide needles in a long random cache and query for them: retrieval, bytes and time of one layer.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: one head at two lengths, then a layer of an 8B-class model
  tqkv-lab needle --tokens 131072,1048576 --kv f16 --kv s4 --kv s2
  tqkv-lab needle --kv-heads 8 --heads 32 --kv balanced --kv tiny
  tqkv-lab needle --kv t4 --kv \"t4 tier=16384:t2\"
  tqkv-lab needle --strength 14 --kv f16 --kv t2 --kv s2

Keys are normal around a common offset of twice their spread; values are normal. The norm of queries gives the logits \
of the tokens a spread of 1. A needle is a token whose key is moved along its query, so that its logit is --strength above the mean \
of the others. n other tokens weigh as much as one logit of ln n + 1/2 above that mean. The default of ln n + 5.5 thus gives \
the needle 0.993 of the weight in exact attention at every length, so any further loss comes from the cache. Lower strengths show \
which codec loses first.

Columns:
  retrieval      share of queries that return the right needle: its value is nearest
                 by cosine, above .9 (no 1-bit codec of values reaches that)
  top logit      share of queries whose largest logit is the needle's
  cosine         mean cosine of the answer and the needle's value
  weight         mean weight of the needle by the logits of the cache; exact: by
                 the logits of the uncompressed tokens
  bytes held     allocated bytes of the cache; planned: bytes by `tqkv plan`, if no
                 token is in a file and all layers have the same codecs
  ms, GB/s       median time of a query of all heads; planned bytes over that time,
                 or held bytes without a plan

Needles are spread evenly over the tokens. Query heads that share a KV head search for different needles.")]
pub(crate) struct Args {
    /// Lengths of the cache in tokens.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "131072",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 32))]
    tokens: Vec<usize>,
    /// Number of needles, and of queries that search for them.
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    needles: usize,
    /// Logit of a needle above the mean of the other tokens, in units of their standard deviation [default:
    /// ln of the tokens, and 5.5].
    #[arg(long, value_name = "LOGIT", value_parser = strength)]
    strength: Option<f32>,
    /// Coordinates per head vector.
    #[arg(long, value_name = "D", default_value_t = 128)]
    head_dim: usize,
    /// Number of KV heads of the layer.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    kv_heads: usize,
    /// Number of query heads, a multiple of the KV heads [default: the same number].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    heads: Option<usize>,
    /// Seed of the tokens and queries (seed= in --kv is that of the rotation).
    #[arg(long, value_name = "N", default_value_t = 1)]
    data_seed: u64,
    #[command(flatten)]
    cache: CacheArgs,
}

/// A needle is found if the cosine of the answer and its value is above this.
const FOUND: f32 = 0.9;

fn strength(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|x| (0.0..=1000.0).contains(x));
    number.ok_or_else(|| "expected 0 to 1000".to_owned())
}

#[derive(Serialize)]
struct Report {
    head_dim: usize,
    kv_heads: usize,
    heads: usize,
    needles: usize,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    tokens: usize,
    #[serde(flatten)]
    name: Name,
    strength: f32,
    /// Share of the queries that find their needle.
    retrieval: f64,
    top_logit: f64,
    cosine: f64,
    weight: f64,
    exact_weight: f64,
    resident_bytes: usize,
    /// Null with a spill file or with codecs by layer.
    planned_bytes: Option<u64>,
    ms_per_query: f64,
    gb_per_s: f64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let policies = args.cache.policies(|| PRESETS.iter().map(Policy::from).collect());
    cache_args::check_stored("needle", &policies)?;
    let shape = KvShape::new(1, args.heads.unwrap_or(args.kv_heads), args.kv_heads, args.head_dim);
    for &tokens in &args.tokens {
        if args.needles > tokens {
            return Err(CliError::bad_input(format_args!(
                "{} needles do not fit {tokens} tokens: expected --needles 1 to {tokens}",
                args.needles
            )));
        }
        cache_args::check_compresses(&policies, "--tokens", tokens)?;
    }
    cache_args::check(&Place::Cpu, &shape.into(), &policies)?;
    let bar = out.progress((args.tokens.iter().sum::<usize>() * policies.len()) as u64, "hiding needles");
    let settings = args.tokens.iter().flat_map(|&tokens| policies.iter().map(move |policy| (tokens, policy)));
    let results: Result<Vec<_>, CliError> =
        settings.map(|(tokens, policy)| measure(args, shape, tokens, policy, &bar)).collect();
    bar.finish_and_clear();
    let report = Report {
        head_dim: shape.head_dim,
        kv_heads: shape.num_kv_heads,
        heads: shape.num_heads,
        needles: args.needles,
        results: results?,
    };
    out.print(&report, human)
}

/// Fills a cache of `tokens` tokens and queries it for every needle.
fn measure(
    args: &Args,
    shape: KvShape,
    tokens: usize,
    policy: &Policy,
    bar: &ProgressBar,
) -> Result<Row, CliError> {
    let refused = |error: CacheError| CliError::bad_input(error);
    let strength = args.strength.unwrap_or((tokens as f32).ln() + 5.5);
    let mut hay = Haystack::new(shape, tokens, args.needles, strength, args.data_seed);
    let mut cache = KvCache::new(policy.apply(shape.into())).map_err(refused)?;
    for first in (0..tokens).step_by(CHUNK) {
        let (keys, values) = hay.chunk(first);
        cache.append(0, keys, values).map_err(refused)?;
        bar.inc(CHUNK.min(tokens - first) as u64);
    }
    let mut tally = Tally::default();
    let mut out = vec![0.0; shape.num_heads * shape.head_dim];
    for turn in 0..args.needles {
        let q = hay.queries(turn);
        let clock = Instant::now();
        cache.attend(0, &q, &mut out).map_err(refused)?;
        tally.seconds.push(clock.elapsed().as_secs_f64());
        for head in 0..shape.num_heads {
            let of_head = head * shape.head_dim..(head + 1) * shape.head_dim;
            let (asked, kv_head) = (hay.needle_of(turn, head), head / shape.group());
            let cosine = |needle: usize| cosine(&out[of_head.clone()], hay.value(needle, kv_head));
            let nearest = (0..args.needles).max_by(|&a, &b| cosine(a).total_cmp(&cosine(b)));
            tally.found += usize::from(nearest == Some(asked) && cosine(asked) > FOUND);
            tally.cosine += f64::from(cosine(asked));
            let logits = cache.scores(0, head, &q[of_head.clone()]).map_err(refused)?;
            let own = logits[hay.position(asked)];
            tally.on_top += usize::from(logits.iter().all(|&logit| logit <= own));
            tally.weight += 1.0 / logits.iter().map(|&logit| f64::from(logit - own).exp()).sum::<f64>();
        }
    }
    let planned = CacheShape::new(1, shape.num_kv_heads, shape.head_dim);
    let planned_bytes = planned.plan(policy).ok().and_then(|plan| plan.bytes(tokens as u64).ok());
    let resident_bytes = cache.stats().allocated_bytes;
    let seconds = tally.median_seconds();
    let asked = (args.needles * shape.num_heads) as f64;
    Ok(Row {
        tokens,
        name: policy.name.clone(),
        strength,
        retrieval: tally.found as f64 / asked,
        top_logit: tally.on_top as f64 / asked,
        cosine: tally.cosine / asked,
        weight: tally.weight / asked,
        exact_weight: hay.exact_weight(),
        resident_bytes,
        planned_bytes,
        ms_per_query: 1e3 * seconds,
        gb_per_s: planned_bytes.unwrap_or(resident_bytes as u64) as f64 / seconds / 1e9,
    })
}

/// Results of the queries under one setting.
#[derive(Default)]
struct Tally {
    found: usize,
    on_top: usize,
    cosine: f64,
    weight: f64,
    seconds: Vec<f64>,
}

impl Tally {
    fn median_seconds(&mut self) -> f64 {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds.get(self.seconds.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Returns 0 if either vector is zero.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE)
}

fn human(report: &Report) -> String {
    let rows = report.results.iter().map(|row| {
        vec![
            row.name.label(),
            grouped(row.tokens as u64),
            format!("{:.1} %", 100.0 * row.retrieval),
            format!("{:.1} %", 100.0 * row.top_logit),
            format!("{:.4}", row.cosine),
            format!("{:.4}", row.weight),
            format!("{:.4}", row.exact_weight),
            sized(row.resident_bytes as u64),
            row.planned_bytes.map_or_else(|| "-".to_owned(), sized),
            format!("{:.3}", row.ms_per_query),
            format!("{:.1}", row.gb_per_s),
        ]
    });
    let head = [
        "K,V",
        "tokens",
        "retrieval",
        "top logit",
        "cosine",
        "weight",
        "exact",
        "bytes held",
        "planned",
        "ms",
        "GB/s",
    ];
    format!(
        "{} needles, {} query heads over {} KV heads of {} coordinates\n{}",
        report.needles,
        report.heads,
        report.kv_heads,
        report.head_dim,
        table(&head, rows)
    )
}

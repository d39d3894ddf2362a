//! `tqkv eval`: perplexity and divergence of a model under compressed caches.

use std::path::PathBuf;

use crate::preset::KvCodecs;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;
use tqkv_model::eval::{EvalReport, EvalResult, EvalSpec, Setting, evaluate};
use tqkv_model::{Model, shipped};

use crate::cache_args::{CacheArgs, F16, ModelArgs, label};
use crate::device::{DeviceArgs, Place};
use crate::error::CliError;
use crate::output::{Output, table};

/// Measure what compressed caches do to a model's predictions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the presets, then every token quantised, then another model and text
  tqkv eval
  tqkv eval --windows 48 --kv s4 --kv s3 --kv s2 --hot 0 --sinks 0
  tqkv eval --step 1 --arithmetic f32 --kv balanced
  tqkv eval --model DIR --text book.txt --context 4096 --windows 8 --kv balanced --kv i8,s3

Columns:
  perplexity   exp of the mean surprise at the text's next token; 1 is certainty, less is better
  nll delta    the mean surprise less that with an f16 cache, in nats per token
  KL to f16    how far the predicted distributions are from those with an f16 cache; 0 is equal
  top-1        share of positions where the likeliest token is the same as with an f16 cache
  bytes/token  memory allocated by the cache at the end of a window, f16 sinks and hot window included")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to predict [default: the shipped held-out text].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens per window; each begins with an empty cache.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Windows to score, from the start of the text.
    #[arg(long, value_name = "N", default_value_t = 12)]
    windows: usize,
    /// Tokens fed at once [default: the whole window]; 1 attends as generation does, on codes.
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    step: Option<usize>,
    /// Compare the hidden states after every layer with those under f16 as well, by their cosine.
    #[arg(long)]
    layers: bool,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Serialize)]
struct Report {
    model: String,
    context: usize,
    windows: usize,
    results: Vec<Row>,
}

/// Figures of one setting.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) kv: KvCodecs,
    pub(crate) perplexity: f64,
    nll_delta: f64,
    pub(crate) kl_to_f16: f64,
    pub(crate) top1_agreement: f64,
    pub(crate) cache_bytes_per_token: f64,
    /// One per layer, where asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layer_cosine: Vec<f64>,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let text = match &args.text {
        Some(path) => std::fs::read(path).map_err(|e| CliError::io(path, &e))?,
        None => shipped::HELDOUT_TEXT.to_vec(),
    };
    let place = args.device.open()?;
    let model = args.model.load()?;
    let spec =
        EvalSpec { context: args.context, windows: Some(args.windows), step: args.step, layers: args.layers };
    let results = measure(&model, &place, &text, &spec, &args.cache, out)?;
    let (context, windows) = (args.context, args.windows);
    out.print(&Report { model: model.name().to_owned(), context, windows, results }, human)
}

/// Evaluates f16 and the settings asked for, f16 first.
pub(crate) fn measure(
    model: &Model,
    place: &Place,
    text: &[u8],
    spec: &EvalSpec,
    cache: &CacheArgs,
    out: &mut Output,
) -> Result<Vec<Row>, CliError> {
    let pairs = cache.pairs_beside_f16();
    let setting = |pair: KvCodecs| {
        // The reference is the CPU's on every device.
        let place = if pair == F16 { &Place::Cpu } else { place };
        let new_cache = move || -> Result<Box<dyn AttentionCache>, CacheError> {
            cache.cache(place, model.config(), pair)
        };
        Setting { name: pair.to_string(), new_cache: Box::new(new_cache) }
    };
    let settings: Vec<_> = pairs[1..].iter().map(|&pair| setting(pair)).collect();
    let bar = out.progress(0, "evaluating");
    let report = evaluate(model, text, spec, &setting(F16), &settings, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let EvalReport { reference, results, .. } = report.map_err(|e| CliError::model(None, &e))?;
    Ok(pairs.into_iter().zip(std::iter::once(reference).chain(results)).map(row).collect())
}

fn row((kv, result): (KvCodecs, EvalResult)) -> Row {
    Row {
        kv,
        perplexity: result.perplexity,
        nll_delta: result.nll_delta,
        kl_to_f16: result.kl,
        top1_agreement: result.top1_agreement,
        cache_bytes_per_token: result.cache_bytes_per_token,
        layer_cosine: result.layer_cosine,
    }
}

fn human(report: &Report) -> String {
    let rows = report.results.iter().map(|row| {
        vec![
            label(row.kv),
            format!("{:.4}", row.perplexity),
            format!("{:+.5}", row.nll_delta),
            format!("{:.6}", row.kl_to_f16),
            format!("{:.2} %", 100.0 * row.top1_agreement),
            format!("{:.0}", row.cache_bytes_per_token),
        ]
    });
    let head = ["K,V", "perplexity", "nll delta", "KL to f16", "top-1", "bytes/token"];
    let mut text = format!(
        "model {}, {} windows of {} tokens\n{}",
        report.model,
        report.windows,
        report.context,
        table(&head, rows)
    );
    if report.results.iter().any(|row| !row.layer_cosine.is_empty()) {
        text.push_str("\n\nCosine of the hidden state after each layer with that under f16\n");
        text.push_str(&layers(&report.results));
    }
    text
}

/// Layers down, settings across.
fn layers(results: &[Row]) -> String {
    let head: Vec<_> =
        std::iter::once("layer".to_owned()).chain(results.iter().map(|r| r.kv.to_string())).collect();
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    let count = results.first().map_or(0, |row| row.layer_cosine.len());
    table(
        &head,
        (0..count).map(|layer| {
            let cosines = results.iter().filter_map(|row| row.layer_cosine.get(layer));
            std::iter::once(layer.to_string()).chain(cosines.map(|c| format!("{c:.6}"))).collect()
        }),
    )
}

//! `tqkv eval`: perplexity and divergence of a model under compressed caches.

use std::path::PathBuf;

use crate::preset::KvCodecs;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;
use tqkv_model::eval::{EvalResult, EvalSpec, Progress, Setting, evaluate};
use tqkv_model::{Model, shipped};

use crate::cache_args::{CacheArgs, F16, ModelArgs, label};
use crate::device::{DeviceArgs, Place};
use crate::error::CliError;
use crate::input;
use crate::output::{Output, table, table_line};

/// Measure what compressed caches do to a model's predictions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the presets, then every token quantised, then another model and text
  tqkv eval
  tqkv eval --windows 48 --kv s4 --kv s3 --kv s2 --hot 0 --sinks 0
  tqkv eval --step 1 --arithmetic f32 --kv balanced
  tqkv eval --biased-keys 30 --centre off --kv s4
  tqkv eval --model DIR --text book.txt --context 4096 --kv i8,s3

Columns:
  perplexity   exp of the mean surprise at the next token; less is better
  nll delta    the mean surprise less that under f16, in nats per token
  KL to f16    how far the predictions are from those under f16; 0 is equal
  top-1        how often the likeliest token is the same as under f16
  bytes/token  memory of the cache at the end of a window, all included

A setting's row appears as soon as it is measured.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to predict, - for standard input [default: the shipped held-out text].
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
        Some(path) => input::read(path)?,
        None => shipped::HELDOUT_TEXT.to_vec(),
    };
    let place = args.device.open()?;
    let model = args.model.load()?;
    let spec =
        EvalSpec { context: args.context, windows: Some(args.windows), step: args.step, layers: args.layers };
    let (context, windows) = (args.context, args.windows);
    let first = label_width(&args.cache.pairs_beside_f16());
    let mut begun = false;
    let results = measure(&model, &place, &text, &spec, &args.cache, out, &mut |out, row| {
        if out.is_json() {
            return Ok(());
        }
        let mut text = String::new();
        if !std::mem::replace(&mut begun, true) {
            let title = format!("model {}, {windows} windows of {context} tokens", model.name());
            text = format!("{title}\n{}\n", line(first, HEAD.map(str::to_owned)));
        }
        Ok(out.write_text(&format!("{text}{}\n", line(first, cells(row))))?)
    })?;
    if out.is_json() {
        return out
            .print(&Report { model: model.name().to_owned(), context, windows, results }, |_| String::new());
    }
    if args.layers {
        out.write_text(&format!(
            "\nCosine of the hidden state after each layer with that under f16\n{}\n",
            layers(&results)
        ))?;
    }
    Ok(())
}

/// Evaluates f16 and the settings asked for, f16 first; `on_row` has each as soon as it is measured.
pub(crate) fn measure(
    model: &Model,
    place: &Place,
    text: &[u8],
    spec: &EvalSpec,
    cache: &CacheArgs,
    out: &mut Output,
    on_row: &mut dyn FnMut(&mut Output, &Row) -> Result<(), CliError>,
) -> Result<Vec<Row>, CliError> {
    let pairs = cache.pairs_beside_f16();
    if matches!(place, Place::Cpu) && pairs.len() > 1 {
        cache.check_compresses("--context", spec.context)?;
    }
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
    let (mut rows, mut printed) = (Vec::with_capacity(pairs.len()), Ok(()));
    let report = evaluate(model, text, spec, &setting(F16), &settings, &mut |progress| match progress {
        Progress::Passes(done, total) => {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        Progress::Result(result) => {
            let row = row((pairs[rows.len()], result.clone()));
            if printed.is_ok() {
                printed = bar.suspend(|| on_row(out, &row));
            }
            rows.push(row);
        }
    });
    bar.finish_and_clear();
    report.map_err(|e| CliError::model(None, &e))?;
    printed?;
    Ok(rows)
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

const HEAD: [&str; 6] = ["K,V", "perplexity", "nll delta", "KL to f16", "top-1", "bytes/token"];

fn cells(row: &Row) -> [String; 6] {
    [
        label(row.kv),
        format!("{:.4}", row.perplexity),
        format!("{:+.5}", row.nll_delta),
        format!("{:.6}", row.kl_to_f16),
        format!("{:.2} %", 100.0 * row.top1_agreement),
        format!("{:.0}", row.cache_bytes_per_token),
    ]
}

/// A line of the table. Its columns are as wide before the first row is known as after the last.
fn line(first: usize, cells: [String; 6]) -> String {
    let widths = [first, 10, 9, 9, 8, 11];
    let cells: Vec<_> = cells.iter().map(String::as_str).zip(widths).collect();
    table_line(&cells)
}

/// Width of the first column.
fn label_width(pairs: &[KvCodecs]) -> usize {
    pairs.iter().map(|&pair| label(pair).len()).max().unwrap_or(0)
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

//! `tqkv demo`: the shipped model on real text, under f16 and every preset, in one table.

use std::ops::ControlFlow;

use clap::{Args as _, FromArgMatches};
use serde::Serialize;
use tqkv_model::eval::EvalSpec;
use tqkv_model::{Model, shipped};

use super::demo_speed::{self, Timing};
use super::demo_text::{self, Outcome};
use super::eval;
use super::generate::{Made, SamplingArgs, continue_prompt};
use crate::cache_args::{self, CacheArgs, ModelArgs};
use crate::device::Place;
use crate::error::CliError;
use crate::output::{Output, counted, table};

/// Columns of the text table.
pub const HEAD: [&str; 9] =
    ["K,V", "perplexity", "KL to f16", "top-1", "bytes/token", "ratio", "ms at 32k", "spread", "speed-up"];

/// Show on a real model what a compressed cache costs and saves, in under a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv demo
  tqkv demo --prompt \"A trait object\" --tokens 64 --kv s3 --kv s2

Columns (`tqkv eval --help` explains more):
  perplexity   exp of the mean surprise at the next token; lower is better
  KL to f16    distance of the predictions from those under f16; 0 is equal
  top-1        how often the likeliest token is the same as under f16
  ratio        bytes per token of f16 over those of the setting
  ms at 32k    attention of one token over 32,768 random tokens in one layer
               (32 heads, 8 KV heads, head dim 128): smallest time of 40 rounds
  spread       median time over the smallest; above 1.5 the time is left out
  speed-up     time of f16 over the time of the setting")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue [default: the first paragraph of the held-out text].
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens to generate per setting.
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Tokens per window of the perplexity measurement.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Number of windows of the perplexity measurement.
    #[arg(long, value_name = "N", default_value_t = 4)]
    windows: usize,
    #[command(flatten)]
    cache: CacheArgs,
}

impl Args {
    /// The arguments of `tqkv demo` without options.
    pub(crate) fn defaults() -> Result<Self, CliError> {
        let command = Self::augment_args(clap::Command::new("demo"));
        let matches = command.try_get_matches_from(["demo"]);
        matches.and_then(|matches| Self::from_arg_matches(&matches)).map_err(|e| CliError::usage(&e))
    }
}

#[derive(Serialize)]
struct Report {
    model: String,
    context: usize,
    windows: usize,
    prompt: String,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    quality: eval::Row,
    /// Bytes per token of f16 over those of the setting.
    ratio: f64,
    /// Time of attention for one token over one layer of 32,768 random tokens; null if the spread is too
    /// wide.
    long_step_ms: Option<f64>,
    /// Median of these times over the smallest.
    long_step_spread: f64,
    /// This time for f16 over the time for the setting.
    long_speedup: Option<f64>,
    #[serde(flatten)]
    made: Made,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let model = args.model.load()?;
    let prompt = args.prompt.clone().unwrap_or_else(first_paragraph);
    let made = generate_all(args, &model, &prompt, out)?;
    let (context, windows) = (args.context, args.windows);
    let spec = EvalSpec::new(context, Some(windows));
    let measured = eval::measure(
        &model,
        &Place::Cpu,
        (shipped::HELDOUT_TEXT, None),
        &spec,
        &args.cache,
        out,
        &mut |_, _| Ok(()),
    )?;
    let f16 = measured.first().map_or(0.0, |row| row.cache_bytes_per_token);
    let steps = time_long_steps(args, out)?;
    let f16_step = steps.first().and_then(Timing::milliseconds);
    let rows = measured.into_iter().zip(made).zip(steps);
    let results = rows
        .map(|((quality, made), step)| Row {
            ratio: f16 / quality.cache_bytes_per_token,
            long_step_ms: step.milliseconds(),
            long_step_spread: step.spread,
            long_speedup: f16_step.zip(step.milliseconds()).map(|(f16, own)| f16 / own),
            quality,
            made,
        })
        .collect();
    out.print(&Report { model: model.name().to_owned(), context, windows, prompt, results }, human)
}

fn first_paragraph() -> String {
    let text = String::from_utf8_lossy(shipped::HELDOUT_TEXT);
    let end = text.find("\n\n").map_or(text.len(), |at| at + 2);
    text[..end].to_owned()
}

/// Continues the prompt under each setting.
fn generate_all(args: &Args, model: &Model, prompt: &str, out: &mut Output) -> Result<Vec<Made>, CliError> {
    let policies = args.cache.policies_beside_f16(&Place::Cpu);
    cache_args::check_stored("demo", &policies)?;
    cache_args::check_model(&Place::Cpu, model.config(), &policies)?;
    let spec = args.sampling.spec(args.tokens);
    let bar = out.progress((policies.len() * args.tokens) as u64, "generating");
    let made = policies.iter().map(|policy| {
        continue_prompt(model, &Place::Cpu, prompt, &spec, policy, &mut |_| {
            bar.inc(1);
            ControlFlow::Continue(())
        })
    });
    let made = made.collect();
    bar.finish_and_clear();
    made
}

/// Times a step over a long cache under each setting.
fn time_long_steps(args: &Args, out: &mut Output) -> Result<Vec<Timing>, CliError> {
    let bar = out.progress(demo_speed::rounds(), "timing attention over 32k tokens");
    let steps = demo_speed::time(&args.cache.policies_beside_f16(&Place::Cpu), &mut || bar.inc(1));
    bar.finish_and_clear();
    steps.map_err(CliError::bad_input)
}

/// The text in place of a time with too wide a spread.
pub fn withheld() -> String {
    "-".to_owned()
}

const NOISY: &str =
    "\n\n-: the median of the times is more than 1.5 times the least, as something else runs on this machine";

fn human(report: &Report) -> String {
    let rows = report.results.iter().map(|row| {
        vec![
            row.quality.name.label(),
            format!("{:.4}", row.quality.perplexity),
            format!("{:.6}", row.quality.kl_to_f16),
            format!("{:.2} %", 100.0 * row.quality.top1_agreement),
            format!("{:.0}", row.quality.cache_bytes_per_token),
            format!("{:.2}", row.ratio),
            row.long_step_ms.map_or_else(withheld, |ms| format!("{ms:.2}")),
            format!("{:.2}", row.long_step_spread),
            row.long_speedup.map_or_else(withheld, |times| format!("{times:.2}")),
        ]
    });
    let noisy = report.results.iter().any(|row| row.long_speedup.is_none());
    let why = if noisy { NOISY } else { "" };
    let texts = report.results.iter().map(|row| (&row.quality.name, row.made.text.as_str()));
    let outcomes = report.results.iter().map(|row| Outcome {
        name: &row.quality.name,
        ratio: row.ratio,
        kl: row.quality.kl_to_f16,
        top1: row.quality.top1_agreement,
    });
    format!(
        "model {}: predictions over {} of {} tokens, then what each cache writes\n\n{}{why}\n\n[prompt]\n{}{}{}",
        report.model,
        counted(report.windows, "window"),
        report.context,
        table(&HEAD, rows),
        report.prompt.trim_end(),
        demo_text::texts(texts),
        demo_text::closing(outcomes)
    )
}

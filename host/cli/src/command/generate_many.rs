//! `tqkv generate --sequences N`: several continuations of one prompt in one batch.

use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;
use tqkv_model::generate::{Caches, Continuations, GenerateSpec, generate_many};
use tqkv_model::{Model, ModelError};

use super::generate_window;
use crate::cache_args;
use crate::device::Place;
use crate::error::CliError;
use crate::memory::Memory;
use crate::output::{Output, sized, table};
use crate::policy::{Name, Policy};
use crate::signals;

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    prompt: &'a str,
    sequences: usize,
    #[serde(flatten)]
    memory: Memory,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    name: Name,
    /// In the order of their seeds.
    texts: Vec<String>,
    /// Generated tokens of all sequences.
    tokens: usize,
    prompt_tokens: usize,
    /// Time until every sequence has the prompt.
    prefill_seconds: f64,
    /// Prompt tokens per second. The prompt counts once, even if it ran for each sequence.
    prefill_tokens_per_second: f64,
    /// Time of a step, which makes one token per sequence; 0 without steps after the prompt.
    ms_per_step: f64,
    /// Tokens per second of all sequences together, without the time of the prompt.
    tokens_per_second: f64,
    /// Bytes of all caches at the end, shared ones counted once, and the bytes of f16 for the same tokens.
    cache_bytes: usize,
    /// Bytes of the caches if they shared nothing.
    unshared_bytes: usize,
    f16_bytes: usize,
    /// Tokens of the longest sequence at the end.
    #[serde(skip)]
    cache_tokens: usize,
}

/// Continues `prompt` `sequences` times under each of `policies`.
pub(crate) fn run(
    (model, place): (&Model, &Place),
    prompt: &str,
    spec: &GenerateSpec,
    sequences: usize,
    policies: &[Policy],
    out: &mut Output,
) -> Result<(), CliError> {
    cache_args::check_stored("--sequences", policies)?;
    let bar = out.progress((policies.len() * sequences * spec.max_new_tokens) as u64, "generating");
    let row = |policy: &Policy| {
        let each = || -> Result<Box<dyn AttentionCache>, CacheError> {
            cache_args::cache(place, model.config(), policy)
        };
        let shared = matches!(place, Place::Cpu);
        let caches = if shared {
            cache_args::cpu_cache(model.config(), policy).map(|cache| Caches::Forked(Box::new(cache)))
        } else {
            Ok(Caches::Each(&each))
        };
        let made = caches.map_err(ModelError::from).and_then(|caches| {
            generate_many(model, prompt.as_bytes(), spec, sequences, caches, &mut |tokens| {
                bar.inc(tokens as u64);
                signals::unless_interrupted()
            })
        });
        made.and_then(|made| row(model, policy, made, shared)).map_err(|e| CliError::model(None, &e))
    };
    let results: Result<Vec<_>, CliError> =
        policies.iter().take_while(|_| !signals::interrupted()).map(row).collect();
    bar.finish_and_clear();
    let memory = Memory::of(model);
    out.print(&Report { model: model.name(), prompt, sequences, memory, results: results? }, |report| {
        let lengths = report.results.iter().map(|row| row.cache_tokens);
        human(report, &generate_window::note((model.config(), place), policies.iter().zip(lengths)))
    })?;
    signals::ended()
}

fn row(model: &Model, policy: &Policy, made: Continuations, shared: bool) -> Result<Row, ModelError> {
    let tokens_per_second = made.decode_tokens_per_second();
    // The prompt already gives the first token of each sequence.
    let longest = made.sequences.iter().map(|sequence| sequence.tokens.len()).max();
    let steps = longest.unwrap_or(0).saturating_sub(1);
    let lengths: Vec<_> = made.sequences.iter().map(|sequence| sequence.cache_tokens).collect();
    let f16_bytes = cache_args::f16_bytes(model.config(), made.prompt_tokens, &lengths, shared)?;
    Ok(Row {
        name: policy.name.clone(),
        cache_tokens: lengths.into_iter().max().unwrap_or(0),
        prompt_tokens: made.prompt_tokens,
        prefill_seconds: made.prefill_seconds,
        prefill_tokens_per_second: made.prefill_tokens_per_second(),
        ms_per_step: 1000.0 * made.decode_seconds / steps.max(1) as f64,
        cache_bytes: made.cache_bytes,
        unshared_bytes: made.sequences.iter().map(|sequence| sequence.cache_bytes).sum(),
        tokens: made.sequences.iter().map(|sequence| sequence.tokens.len()).sum(),
        texts: made.sequences.into_iter().map(|sequence| sequence.text).collect(),
        tokens_per_second,
        f16_bytes,
    })
}

fn human(report: &Report<'_>, note: &str) -> String {
    let rows = report.results.iter().map(|row| {
        vec![
            row.name.label(),
            report.sequences.to_string(),
            row.prompt_tokens.to_string(),
            format!("{:.0}", 1000.0 * row.prefill_seconds),
            format!("{:.0}", row.prefill_tokens_per_second),
            row.tokens.to_string(),
            format!("{:.2}", row.ms_per_step),
            format!("{:.0}", row.tokens_per_second),
            row.name.bytes(sized(row.cache_bytes as u64)),
            sized((row.unshared_bytes.saturating_sub(row.cache_bytes)) as u64),
            format!("{:.2}", row.f16_bytes as f64 / row.cache_bytes as f64),
        ]
    });
    let head = [
        "K,V",
        "sequences",
        "prompt",
        "prefill ms",
        "prefill/s",
        "tokens",
        "ms/step",
        "tokens/s",
        "cache bytes",
        "saved by sharing",
        "f16 ratio",
    ];
    let texts = report.results.iter().flat_map(|row| {
        let texts = row.texts.iter().enumerate();
        texts.map(|(i, text)| format!("\n\n[{}, sequence {}]\n{}", row.name, i + 1, text.trim_end()))
    });
    format!("{}{}{note}{}", table(&head, rows), report.memory.line(), texts.collect::<String>())
}

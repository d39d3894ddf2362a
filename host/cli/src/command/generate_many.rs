//! `tqkv generate --sequences N`: several continuations of one prompt, made together.

use std::ops::ControlFlow;

use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;
use tqkv_model::generate::{Continuations, GenerateSpec, generate_many};
use tqkv_model::{Model, ModelError};

use crate::cache_args::{CacheArgs, F16, label};
use crate::device::Place;
use crate::error::CliError;
use crate::output::{Output, grouped, table};
use crate::preset::KvCodecs;

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    prompt: &'a str,
    sequences: usize,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    kv: KvCodecs,
    /// In the order of their seeds.
    texts: Vec<String>,
    /// Tokens generated, of all sequences.
    tokens: usize,
    /// Of all sequences a second, the prompt's time apart.
    tokens_per_second: f64,
    /// Bytes of all caches at the end, and what f16 takes for the same tokens.
    cache_bytes: usize,
    #[serde(skip)]
    f16_bytes: usize,
}

/// Continues `prompt` `sequences` times under each of `pairs`.
pub(crate) fn run(
    (model, place, cache): (&Model, &Place, &CacheArgs),
    prompt: &str,
    spec: &GenerateSpec,
    sequences: usize,
    pairs: &[KvCodecs],
    out: &mut Output,
) -> Result<(), CliError> {
    let bar = out.progress((pairs.len() * sequences * spec.max_new_tokens) as u64, "generating");
    let row = |&kv: &KvCodecs| {
        let new_cache =
            || -> Result<Box<dyn AttentionCache>, CacheError> { cache.cache(place, model.config(), kv) };
        let made = generate_many(model, prompt.as_bytes(), spec, sequences, &new_cache, &mut |tokens| {
            bar.inc(tokens as u64);
            ControlFlow::Continue(())
        });
        made.and_then(|made| row(model, cache, kv, made)).map_err(|e| CliError::model(None, &e))
    };
    let results: Result<Vec<_>, CliError> = pairs.iter().map(row).collect();
    bar.finish_and_clear();
    out.print(&Report { model: model.name(), prompt, sequences, results: results? }, human)
}

fn row(model: &Model, cache: &CacheArgs, kv: KvCodecs, made: Continuations) -> Result<Row, ModelError> {
    let tokens_per_second = made.decode_tokens_per_second();
    let cache_bytes = made.sequences.iter().map(|sequence| sequence.cache_bytes).sum();
    let f16_bytes = if kv == F16 {
        cache_bytes
    } else {
        let of = |tokens| cache.f16_bytes(model.config(), made.prompt_tokens, tokens);
        made.sequences
            .iter()
            .try_fold(0, |sum, sequence| Ok(sum + of(sequence.cache_tokens)?))
            .map_err(|error: CacheError| ModelError::from(error))?
    };
    Ok(Row {
        kv,
        tokens: made.sequences.iter().map(|sequence| sequence.tokens.len()).sum(),
        texts: made.sequences.into_iter().map(|sequence| sequence.text).collect(),
        tokens_per_second,
        cache_bytes,
        f16_bytes,
    })
}

fn human(report: &Report<'_>) -> String {
    let rows = report.results.iter().map(|row| {
        vec![
            label(row.kv),
            report.sequences.to_string(),
            row.tokens.to_string(),
            format!("{:.0}", row.tokens_per_second),
            grouped(row.cache_bytes as u64),
            format!("{:.2}", row.f16_bytes as f64 / row.cache_bytes as f64),
        ]
    });
    let head = ["K,V", "sequences", "tokens", "tokens/s", "cache bytes", "f16 ratio"];
    let texts = report.results.iter().flat_map(|row| {
        let texts = row.texts.iter().enumerate();
        texts.map(|(i, text)| format!("\n\n[{}, sequence {}]\n{}", row.kv, i + 1, text.trim_end()))
    });
    format!("{}{}", table(&head, rows), texts.collect::<String>())
}

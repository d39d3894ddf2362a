//! `tqkv-lab eval --storage`: measures a model on a prefix that was stored and read back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use tqkv_cli::args::budget;
use tqkv_cli::command::eval::Subject;
use tqkv_cli::error::CliError;
use tqkv_cli::output::{Output, counted, table};
use tqkv_cli::preset::KvCodecs;
use tqkv_core::CodecId;
use tqkv_model::eval::EvalResult;
use tqkv_model::stored::{StoredPrefix, StoredSpec, evaluate_stored};
use tqkv_storage::{Basis, Budget, Follower, StorageCodec};

/// The stored part, and its form.
#[derive(Debug, clap::Args)]
pub(crate) struct StorageArgs {
    /// Store the first part of each window at this many bits per value, read it back and score the rest. May
    /// be repeated. The codecs of --kv are measured in the same way.
    #[arg(long, value_name = "BITS", value_parser = budget,
        conflicts_with_all = ["step", "layers", "attention_error", "device"])]
    storage: Vec<Budget>,
    /// Basis from `tqkv basis` [default: none; each channel has its own width].
    #[arg(long, value_name = "FILE", requires = "storage")]
    basis: Option<PathBuf>,
    /// Let the basis follow the text first: pass this many windows after those to evaluate through a store
    /// at the first of --storage. The last basis that the store makes is the one that is measured.
    #[arg(long, value_name = "N", requires = "storage")]
    follow: Option<usize>,
    /// Number of tokens to store of each window [default: three quarters].
    #[arg(long, value_name = "TOKENS", requires = "storage")]
    prefix: Option<usize>,
}

/// Codecs to compare with, if `--kv` names none.
const BESIDE: [CodecId; 5] = [CodecId::I8, CodecId::T4, CodecId::T3, CodecId::T2, CodecId::T1];

#[derive(Serialize)]
struct Report {
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    basis: Option<String>,
    /// Bases that were made with `--follow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    followed: Option<usize>,
    context: usize,
    prefix: usize,
    windows: usize,
    seconds: f64,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    store: String,
    perplexity: f64,
    kl_to_f16: f64,
    kl_p99: f64,
    top1_agreement: f64,
    bytes_per_token: f64,
    bits_per_value: f64,
}

impl StorageArgs {
    pub(crate) fn is_asked(&self) -> bool {
        !self.storage.is_empty()
    }

    pub(crate) fn run(
        &self,
        subject: &Subject,
        kv: Option<Vec<KvCodecs>>,
        out: &mut Output,
    ) -> Result<(), CliError> {
        let Subject { model, text, context, windows, .. } = subject;
        let (context, windows) = (*context, *windows);
        let refused = |error| CliError::model(None, &error);
        let shape = model.storage_shape().map_err(refused)?;
        let basis = match &self.basis {
            None => None,
            Some(path) => {
                let basis = Basis::load(path).map_err(|error| CliError::storage(path, &error))?;
                basis.check(model.name(), &shape).map_err(|error| CliError::storage(path, &error))?;
                Some(Arc::new(basis))
            }
        };
        let prefix = self.prefix.unwrap_or(context * 3 / 4);
        let spec = StoredSpec { context, prefix, windows: Some(windows) };
        if let (Some(basis), Some(path)) = (&basis, &self.basis) {
            let learned = model.learned_windows(text, &spec, basis).map_err(refused)?;
            if learned > 0 {
                return Err(CliError::bad_input(format_args!(
                    "{}: it was learned from {learned} of {}, so figures on them do not hold for other text: \
                     expected --text that it was not learned from",
                    path.display(),
                    counted(windows, "window")
                )));
            }
        }
        let join = basis.as_ref().map_or_else(|| shape.join(), |basis| basis.join());
        let mut codec = StorageCodec::new(shape, basis).map_err(CliError::bad_input)?;
        let mut followed = None;
        if let (Some(more), Some(&budget)) = (self.follow, self.storage.first()) {
            let mut follower =
                Follower::new(model.name(), codec, join, budget).map_err(CliError::bad_input)?;
            let made = model.follow(text, context, (windows, more), &mut follower).map_err(refused)?;
            (codec, followed) = (follower.codec().clone(), Some(made));
        }
        let kv = kv.unwrap_or_else(|| BESIDE.map(|id| KvCodecs { k: id, v: id }).to_vec());
        let blocks = kv.iter().map(|kv| StoredPrefix::blocks(model, kv.k, kv.v).map_err(refused));
        let mut stores = blocks.collect::<Result<Vec<_>, _>>()?;
        let named = |budget: &Budget| format!("storage {}", budget.bits());
        stores.extend(self.storage.iter().map(|budget| StoredPrefix::chunks(named(budget), &codec, *budget)));
        let bar = out.progress(0, "evaluating");
        let clock = Instant::now();
        let results = evaluate_stored(model, text, &spec, &stores, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })
        .map_err(refused)?;
        bar.finish_and_clear();
        let values = model.config().cached_values();
        let report = Report {
            model: model.name().to_owned(),
            basis: codec.basis().map(|basis| basis.id().to_string()),
            followed,
            context,
            prefix,
            windows,
            seconds: clock.elapsed().as_secs_f64(),
            results: results.iter().map(|result| row(result, values)).collect(),
        };
        out.print(&report, text_of)
    }
}

/// `values` is the number of values per token.
fn row(result: &EvalResult, values: usize) -> Row {
    Row {
        store: result.name.clone(),
        perplexity: result.perplexity,
        kl_to_f16: result.kl,
        kl_p99: result.kl_p99,
        top1_agreement: result.top1_agreement,
        bytes_per_token: result.cache_bytes_per_token,
        bits_per_value: 8.0 * result.cache_bytes_per_token / values as f64,
    }
}

fn text_of(report: &Report) -> String {
    let Report { model, context, prefix, windows, seconds, results, .. } = report;
    let mut basis =
        report.basis.as_ref().map_or_else(|| "no basis".to_owned(), |basis| format!("basis {basis}"));
    if let Some(made) = report.followed {
        basis.push_str(&format!(", after {made} new ones"));
    }
    let head = ["stored as", "perplexity", "KL to f16", "KL 99 %", "top-1", "bytes/token", "bits"];
    let rows = results.iter().map(|row| {
        vec![
            row.store.clone(),
            format!("{:.4}", row.perplexity),
            format!("{:.6}", row.kl_to_f16),
            format!("{:.4}", row.kl_p99),
            format!("{:.2} %", 100.0 * row.top1_agreement),
            format!("{:.0}", row.bytes_per_token),
            format!("{:.3}", row.bits_per_value),
        ]
    });
    format!(
        "model {model}, {} of {context} tokens, {prefix} of them stored; {basis}\n{}\n\n{seconds:.1} seconds",
        counted(windows, "window"),
        table(&head, rows)
    )
}

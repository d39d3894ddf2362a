//! `tqkv tune`: finds a policy for the cache of one model within a budget of bytes.

use std::path::PathBuf;
use std::time::Instant;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv::cache::CacheSize;
use tqkv_model::eval::{EvalResult, EvalSpec, Progress, Recall};
use tqkv_model::tune::{self, Candidate, HeadScore, KINDS, LOOKS_BACK, Limit};
use tqkv_model::{Model, shipped};

use crate::cache_args::ModelArgument;
use crate::error::CliError;
use crate::input;
use crate::output::{Output, counted, grouped, table};
use crate::plan::parse_size;
use crate::policy::Policy;

/// Find the policy that loses least of one model within a budget of bytes, and print it as a text for --kv.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: the best policy in the bytes of the preset tiny, in 4,500 bytes per token, in 2 GB at 64k tokens
  tqkv tune model.gguf
  tqkv tune model.gguf --bytes 4500
  tqkv tune --model DIR --memory 2GB --context 65536 --text book.txt
Example: a sharper choice, on three texts of 2,048 tokens of each kind
  tqkv tune model.gguf --texts 3 --text-tokens 2048 --json

A few KV heads of a model do most of its copying from earlier tokens. Their scores are found without a text: random tokens \
come twice, and the score is the share of attention that the best query head of a KV head gives to the token after the \
earlier occurrence of the newest one. Each candidate gives wide keys to the layers with a head of 0.1 or more, those of the \
largest scores first, and then wider keys to others, as long as the budget allows. In models with sliding windows the layers \
without one are another candidate for wide keys. The largest preset within the budget is shown too. A preset whose codes narrow with age is not chosen, because the texts are shorter than the context.

Columns:
  bytes/token  upper bound of the bytes of a cache of --context tokens, as `tqkv plan` counts them, over the tokens
  KL           distance of the predictions from those with an f16 cache; the geometric mean of the kinds, then each \
kind of text, as `tqkv eval --recall` makes them, with other facts and from the end of the text

The last lines have the chosen policy as an option of every command and as a variable for llama.cpp. Python, C and Rust \
read the same text."
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Bytes per token that the cache may take at --context tokens [default: those of the preset tiny].
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    bytes: Option<u64>,
    /// Memory that the whole cache may take at --context tokens, with its unit, such as 2GB or 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "bytes", requires = "context")]
    memory: Option<u64>,
    /// Tokens of the cache whose bytes count [default: 8192, or the context of the model if it is shorter].
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    context: Option<usize>,
    /// Text whose words and sentences the texts are made of, - for standard input [default: the shipped held-out
    /// text].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Texts of each kind.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    texts: usize,
    /// Tokens of a text [default: 1024, or the context of the model if it is shorter].
    #[arg(long, value_name = "TOKENS")]
    text_tokens: Option<usize>,
    /// Kinds of text, those of eval --recall [default: prose,copy,table,facts,json,chat].
    #[arg(long, value_name = "KIND,KIND,..", value_delimiter = ',')]
    kinds: Vec<Recall>,
}

/// Tokens of a cache, unless the model's context is shorter.
const USUAL_TOKENS: usize = 8192;

/// Tokens of a text, unless the model's context is shorter.
const TEXT_TOKENS: usize = 1024;

/// The output for programs.
#[derive(Serialize)]
struct Report {
    model: String,
    /// Tokens of the cache whose bytes count, and their bytes at most.
    context: usize,
    budget_bytes: u64,
    budget_bytes_per_token: f64,
    /// One per KV head of each layer.
    heads: Vec<HeadScore>,
    /// Those first whose heads look back most.
    ranked_layers: Vec<usize>,
    /// Texts of each kind, and the tokens of one.
    texts: usize,
    text_tokens: usize,
    candidates: Vec<Row>,
    /// The policy that loses least.
    kv: String,
    /// Time of the search, without loading the model.
    seconds: f64,
}

#[derive(Serialize)]
struct Row {
    kv: String,
    bytes: u64,
    bytes_per_token: f64,
    wide_layers: Vec<usize>,
    /// False for a preset whose codes narrow with age.
    may_be_chosen: bool,
    kl: f64,
    kl_of_kinds: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    text: &'static str,
    kl: f64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let text = match &args.text {
        Some(path) => input::read(path)?,
        None => shipped::HELDOUT_TEXT.to_vec(),
    };
    let model = args.model.load()?;
    let clock = Instant::now();
    let refused = |error| CliError::model(None, &error);
    let limit = limit(args, &model)?;
    let spec = model.config().cache_spec();
    // What the budget refuses is known before any work is done.
    tune::candidates(&spec, (&[], &[]), limit).map_err(refused)?;
    let heads = find_heads(&model, out)?;
    let ranked_layers = tune::ranked_layers(&heads);
    let candidates = tune::candidates(&spec, (&ranked_layers, &tune::layers_that_look_back(&heads)), limit)
        .map_err(refused)?;
    let kinds = if args.kinds.is_empty() { &KINDS[..] } else { &args.kinds };
    let tokens = args.text_tokens.unwrap_or_else(|| TEXT_TOKENS.min(model.config().context));
    let eval = EvalSpec::new(tokens, Some(args.texts));
    let results = measure(&model, &candidates, (&text, kinds), &eval, out)?;
    let kl: Vec<_> = results.iter().map(|results| tune::mean_kl(results)).collect();
    let best = tune::best(&candidates, &kl)
        .ok_or_else(|| CliError::failure("no candidate was measured, although the budget allows one"))?;
    let report = Report {
        model: model.name().to_owned(),
        context: limit.tokens,
        budget_bytes: limit.bytes,
        budget_bytes_per_token: per_token(limit.bytes, limit),
        heads,
        ranked_layers,
        texts: args.texts,
        text_tokens: eval.context,
        kv: candidates[best].text.clone(),
        candidates: candidates.into_iter().zip(&results).map(|one| Row::new(one, kinds, limit)).collect(),
        seconds: clock.elapsed().as_secs_f64(),
    };
    out.print(&report, human)
}

/// The budget of the options.
fn limit(args: &Args, model: &Model) -> Result<Limit, CliError> {
    let tokens = args.context.unwrap_or_else(|| USUAL_TOKENS.min(model.config().context));
    let smallest = || {
        let size = model.config().cache_spec().with("tiny").and_then(|spec| CacheSize::of(&spec));
        Ok::<_, CliError>(size.map_err(CliError::bad_input)?.at(tokens).total())
    };
    let of_each = |bytes: u64| bytes.saturating_mul(tokens as u64);
    let bytes = args.memory.or(args.bytes.map(of_each)).map_or_else(smallest, Ok)?;
    Ok(Limit { tokens, bytes })
}

fn find_heads(model: &Model, out: &Output) -> Result<Vec<HeadScore>, CliError> {
    let bar = out.progress(0, "finding heads");
    let heads = tune::look_back(model, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    heads.map_err(|error| CliError::model(None, &error))
}

fn measure(
    model: &Model,
    candidates: &[Candidate],
    texts: (&[u8], &[Recall]),
    spec: &EvalSpec,
    out: &Output,
) -> Result<Vec<Vec<EvalResult>>, CliError> {
    let bar = out.progress(0, "measuring candidates");
    let results = tune::measure(model, candidates, texts, spec, &mut |progress| {
        if let Progress::Passes(done, total) = progress {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    });
    bar.finish_and_clear();
    results.map_err(|error| CliError::model(None, &error))
}

fn per_token(bytes: u64, limit: Limit) -> f64 {
    bytes as f64 / limit.tokens as f64
}

impl Row {
    fn new((candidate, results): (Candidate, &Vec<EvalResult>), kinds: &[Recall], limit: Limit) -> Self {
        let cell = |(kind, result): (&Recall, &EvalResult)| Cell { text: kind.name(), kl: result.kl };
        Self {
            bytes: candidate.bytes,
            bytes_per_token: per_token(candidate.bytes, limit),
            may_be_chosen: !candidate.narrows_with_age,
            kl: tune::mean_kl(results),
            kl_of_kinds: kinds.iter().zip(results).map(cell).collect(),
            kv: candidate.text,
            wide_layers: candidate.wide,
        }
    }

    /// The text with runs of layers counted.
    fn label(&self) -> String {
        self.kv.parse::<Policy>().map_or_else(|_| self.kv.clone(), |policy| policy.name.label())
    }
}

fn human(report: &Report) -> String {
    let Report { model, context, texts, text_tokens, kv, seconds, .. } = report;
    let (tokens, of_text) = (grouped(*context as u64), grouped(*text_tokens as u64));
    let budget = grouped(report.budget_bytes_per_token as u64);
    format!(
        "model {model}, at most {budget} bytes per token at {tokens} tokens\n\n{}\n\n\
         KL to f16 on {} of {of_text} tokens of each kind\n{}\n\n{seconds:.1} seconds\n\n--kv '{kv}'\nTQKV_KV='{kv}'",
        found(&report.heads),
        counted(texts, "text"),
        losses(&report.candidates)
    )
}

/// The heads that look back, the strongest first.
fn found(heads: &[HeadScore]) -> String {
    let mut strongest: Vec<_> = heads.iter().filter(|head| head.score >= LOOKS_BACK).collect();
    strongest.sort_by(|a, b| b.score.total_cmp(&a.score));
    let count =
        format!("{} of {} KV heads look back (score {LOOKS_BACK} or more)", strongest.len(), heads.len());
    let line = |head: &&HeadScore| {
        let [first, second] = head.of_seeds.map(|score| format!("{score:.3}"));
        vec![head.layer.to_string(), head.kv_head.to_string(), format!("{:.3}", head.score), first, second]
    };
    match &strongest[..] {
        [] => count,
        all => format!(
            "{count}\n{}",
            table(&["layer", "KV head", "score", "of one seed", "of another"], all.iter().map(line))
        ),
    }
}

fn losses(rows: &[Row]) -> String {
    let kinds = rows.iter().take(1).flat_map(|row| &row.kl_of_kinds).map(|cell| cell.text);
    let head: Vec<_> = ["K,V", "bytes/token", "KL"].into_iter().chain(kinds).collect();
    let line = |row: &Row| {
        let kinds = row.kl_of_kinds.iter().map(|cell| format!("{:.4}", cell.kl));
        let first = [row.label(), grouped(row.bytes_per_token.ceil() as u64), format!("{:.4}", row.kl)];
        first.into_iter().chain(kinds).collect()
    };
    table(&head, rows.iter().map(line))
}

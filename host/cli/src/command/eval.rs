//! `tqkv eval`: perplexity and divergence of a model under compressed caches.

use std::path::PathBuf;
use std::time::Instant;

use crate::policy::{Name, Policy};
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv_model::eval::{
    EvalResult, EvalSpec, HeadFigures, Marked, Progress, Prompt, Recall, ScoreFigures, evaluate,
    evaluate_marked,
};
use tqkv_model::{Model, shipped};

pub use super::eval_subject::Subject;
use super::eval_subject::{Report, settings};
use super::{eval_recall, eval_scores};
use crate::cache_args::{CacheArgs, ModelArgument};
use crate::device::{DeviceArgs, Place};
use crate::error::CliError;
use crate::input;
use crate::memory::Memory;
use crate::output::{Output, counted, grouped, table, table_line};
use crate::preset::KvCodecs;

/// Measure how compressed caches change the predictions of a model.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the presets, every token encoded, attention on codes, another model
  tqkv eval
  tqkv eval --windows 48 --kv \"s4 hot=0 sinks=0\" --kv \"s2 hot=0 sinks=0\"
  tqkv eval --step 1 --kv \"balanced arithmetic=f32\"
  tqkv eval --model DIR --text book.txt --context 4096 --kv i8,s3
Example: codes that narrow with age, and one width for all, with the attention error
  tqkv eval --kv t4 --kv \"t4 hot=32 tier=256:t2\" --kv \"t2 hot=128\" --attention-error
Example: formats of GPU engines, with every token coded and with the window of a cache
  tqkv eval --kv nvfp4 --kv fp8 --kv \"s4 hot=0 sinks=0\" --kv \"nvfp4 hot=64 sinks=4\" --kv s4
Example: what a hit of a prefix cache costs in an engine whose prompts read exact keys
  tqkv eval --recall --kinds facts --prompt cold --kv t4,t2
  tqkv eval --recall --kinds facts --prompt restored --kv t4,t2
Example: the paper's code for dot products and a scalar code of the same size
  tqkv eval --kv p3 --kv tq3
Example: texts that ask for what stands far back, and running text
  tqkv eval --recall --model DIR --text book.txt --context 2048 --kv tiny --kv tiered --kv s4
  tqkv eval --recall --kinds table,facts --windows 2 --kv t4,t2
Example: questions as RULER asks them, eight texts of each kind
  tqkv eval --recall --kinds needles,variables,words,documents --windows 8 --kv t4,t2
Example: answers in a text of your own, such as \"The code is <<48213>>.\"
  tqkv eval --text answers.txt --marks '<<' '>>' --kv tiny --kv s4
  tqkv eval --recall --model DIR --text book.txt --windows 3 --markdown

Columns:
  perplexity   exp of the mean surprise at the next token; lower is better
  nll delta    mean surprise minus that under f16, in nats per token
  KL to f16    distance of the predictions from those under f16; 0 is equal
  KL 99 %      one position of a hundred exceeds it (99.9 %: one of a thousand)
  top-1        how often the likeliest token is the same as under f16
  bytes/token  memory of the whole cache at the end of a window; for a yardstick
               the bytes of its blocks, because the cache holds f32
  bits         the same in bits per value, uncompressed values included
  attention    squared error of the attention outputs over their squared norm,
               against an f16 cache with the same input; mean over the layers

Columns of --layers, one table per setting; means over windows and KV heads, but bytes are sums over the heads:
  cosine       between the hidden states after the layer and those under f16
  key error    squared error of keys at their first encoding over their squared
               norm, from one token per page of 128; 0 until a page is full
  value error  the same for values
  energy left  energy of the keys after their mean is subtracted; 1 without
               centring
  bytes        memory of the layer at the end of a window

Columns of --attention, one table per setting; each row shows means over the query heads, then the least. Every 64 tokens, \
the queries of the newest token are scored against all earlier tokens, exactly and from the codes.
  cosine       between the two vectors of scores, before the softmax
  top-1        how often the token with the largest score is the same
  top-5        how often that token is among the five largest from the codes

--json lists every head, with the number of means that its keys have had, and has the KL of each window (kl_of_windows; \
with --recall kl_of_texts, and kl_by_depth with first_page, middle and end).

Texts of --recall. Each is one window long: what must be remembered, then running text, then what asks for it. \
Only the tokens are scored that follow from the first part. Table, facts, json and chat tell at every depth of the running \
text, and a second table has their KL for what was told on the first page of 128 tokens, in the middle and at the end; \
windows of 1024 tokens are long enough for them, and 512 for the others.
  prose        running text as it is, every token scored
  copy         a passage that comes again, word for word
  list         a list of words and numbers of five digits that comes again
  table        rows of tables, asked for in another order
  facts        facts that are scattered in running text
  json         calls in JSON that are repeated
  chat         a chat of turns, and questions about it
  code         structs of Rust that are written again, in another order
  turns        facts that a user told in a conversation
  calls        calls of tools whose arguments were listed
  sums         sums of two prices that were told
  change       running text after as many tokens of code and numbers
  needles      four keys with numbers in running text, of which one is asked for
  variables    all variables that a chain of assignments gives one value
  words        the words that come most often in a list
  documents    a question about one of several documents
  tools        a call in JSON, of a tool whose schema was given
  arithmetic   sums of two small numbers after unrelated text
A cell is the KL to f16 and how often the likeliest token is the right one.

Another table has the answers that are right, f16 first. Needles, variables, words and documents follow the rules of RULER \
(needles: four keys, one asked): each text has one question, the setting generates the answer greedily, and its score is \
the share of the wanted strings that it has. So does tools. In the other kinds an answer is right if each of its tokens is the \
likeliest one. Where f16 has fewer than half, the model says nothing about a cache.

The row of a setting appears as soon as it is measured.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Text to predict, - for standard input [default: the shipped held-out text].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens per window; every window begins with an empty cache.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Number of windows to score, from the start of the text [default: 12, or all if the text has fewer].
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Tokens per step [default: the whole window]. 1 attends on codes, as generation does. What comes before the
    /// first scored token is one step.
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    step: Option<usize>,
    /// First position of a window that is scored; earlier tokens are input only.
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    from: usize,
    /// What the tokens of a prompt read: codes, as in the caches here; or what they read in engines that compute the
    /// attention of a prompt over exact keys and values. With restored the text before the first question was such a
    /// prompt, and the questions read its codes, as after a hit of a prefix cache. With cold each question is part of the
    /// prompt as well, and only the answers read codes.
    #[arg(long, value_name = "codes|restored|cold", default_value = "codes")]
    prompt: Prompt,
    /// Score only what stands between the marks BEGIN and END in the text, such as answers. The marks are taken out
    /// before the model reads it. Windows without any are left out, and all others count unless --windows says less.
    #[arg(long, num_args = 2, value_names = ["BEGIN", "END"], conflicts_with_all = ["from", "recall"])]
    marks: Option<Vec<String>>,
    /// Score texts whose answers stand far back instead of running text alone, one of each kind unless
    /// --windows says more.
    #[arg(long, conflicts_with_all = ["from", "layers", "attention", "attention_error"])]
    recall: bool,
    /// Kinds of text of --recall [default: all].
    #[arg(long, value_name = "KIND,KIND,..", value_delimiter = ',', requires = "recall")]
    kinds: Vec<Recall>,
    /// Print the tables of --recall in Markdown, with the spread over the texts and bytes at three lengths.
    #[arg(long, requires = "recall")]
    markdown: bool,
    /// Add a table per setting with the figures of each layer: hidden states, errors of keys and values,
    /// bytes.
    #[arg(long)]
    layers: bool,
    /// Add the error of the attention outputs against an f16 cache with the same input.
    #[arg(long)]
    attention_error: bool,
    /// Add a table per setting with the attention scores of each layer, on codes against exact keys.
    ///
    /// Queries and keys are those of the model. All tokens that a query sees count; hot=0 and sinks=0
    /// in --kv leave only encoded ones.
    #[arg(long)]
    attention: bool,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Figures of one setting.
#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) name: Name,
    pub(crate) perplexity: f64,
    nll_delta: f64,
    pub(crate) kl_to_f16: f64,
    /// That of each window.
    kl_of_windows: Vec<f64>,
    pub(crate) kl_p99: f64,
    pub(crate) kl_p999: f64,
    pub(crate) top1_agreement: f64,
    pub(crate) cache_bytes_per_token: f64,
    bits_per_value: f64,
    /// With --attention-error.
    #[serde(skip_serializing_if = "Option::is_none")]
    attention_error: Option<f64>,
    /// With --layers, one per layer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layer_cosine: Vec<f64>,
    /// With --layers, one per KV head; means over the windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    heads: Vec<HeadFigures>,
    /// With --attention, one per query head.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) scores: Vec<ScoreFigures>,
}

impl Args {
    /// Opens the model and the text of the evaluation. `change` turns the loaded model into another one.
    ///
    /// # Errors
    /// A missing device, text or model.
    pub fn subject(
        &self,
        change: impl FnOnce(Model) -> Result<Model, CliError>,
    ) -> Result<Subject, CliError> {
        let text = match &self.text {
            Some(path) => input::read(path)?,
            None => shipped::HELDOUT_TEXT.to_vec(),
        };
        let place = self.device.open()?;
        let model = change(self.model.load()?)?;
        let context = self.context;
        let marked = self.marks.as_deref().map(|marks| marked(&text, marks)).transpose()?;
        let windows = match (self.windows, &marked) {
            (Some(windows), _) => windows,
            (None, Some(marked)) => {
                marked.count_windows(&model, context).map_err(|error| CliError::model(None, &error))?
            }
            (None, None) if self.recall => 1,
            (None, None) => some_windows(&model, &text, context),
        };
        let text = marked.as_ref().map_or(text, |marked| marked.text().as_bytes().to_vec());
        Ok(Subject { model, text, marked, context, windows, place })
    }

    /// The pairs of `--kv`, if any. `what` needs pairs that caches store.
    ///
    /// # Errors
    /// Formats that no cache stores.
    pub fn pairs(&self, what: &str) -> Result<Option<Vec<KvCodecs>>, CliError> {
        self.cache.pairs(what)
    }
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    evaluate_subject(args, &args.subject(Ok)?, out)
}

/// Measures the caches of `args` on `subject`, and prints their cost.
///
/// # Errors
/// A cache that does not fit the model, or a text that is too short.
pub fn evaluate_subject(args: &Args, subject: &Subject, out: &mut Output) -> Result<(), CliError> {
    let Subject { model, text, marked, place, .. } = subject;
    let (context, windows) = (subject.context, subject.windows);
    if args.prompt != Prompt::Codes && args.from == 0 && !args.recall && marked.is_none() {
        return Err(CliError::bad_input(
            "--prompt: nothing comes before what is scored: expected --recall, --marks or --from",
        ));
    }
    if args.recall {
        let (step, prompt) = (args.step, args.prompt);
        let spec = EvalSpec { step, prompt, ..EvalSpec::new(context, Some(windows)) };
        let kinds = if args.kinds.is_empty() { &Recall::ALL[..] } else { &args.kinds };
        if args.markdown && out.is_json() {
            return Err(CliError::bad_input("--markdown and --json: expected one of them"));
        }
        let shape = args.markdown.then(|| args.model.shape()).transpose()?;
        return eval_recall::run(subject, (&spec, kinds), (&args.cache, shape.as_ref()), out);
    }
    let spec = EvalSpec {
        step: args.step,
        from: args.from,
        prompt: args.prompt,
        layers: args.layers,
        attention: args.attention_error,
        scores: args.attention,
        ..EvalSpec::new(context, Some(windows))
    };
    let names =
        args.cache.policies_beside_f16(place).into_iter().map(|policy| policy.name.label().chars().count());
    let simulated = args.cache.policies_beside_f16(place).iter().any(Policy::is_reference);
    let widths = (names.max().unwrap_or(0), if simulated { 18 } else { 11 });
    let mut begun = false;
    let clock = Instant::now();
    let results =
        measure(model, place, (text, marked.as_ref()), &spec, &args.cache, out, &mut |out, row| {
            if out.is_json() {
                return Ok(());
            }
            let mut text = String::new();
            if !std::mem::replace(&mut begun, true) {
                let title =
                    format!("model {}, {} of {context} tokens", model.name(), counted(windows, "window"));
                text = format!("{title}\n{}\n", line(widths, &head(args.attention_error)));
            }
            Ok(out.write_text(&format!("{text}{}\n", line(widths, &cells(row))))?)
        })?;
    let seconds = clock.elapsed().as_secs_f64();
    if out.is_json() {
        return out.print(&Report::new(subject, seconds, results), |_| String::new());
    }
    out.write_text(&format!("\n{seconds:.1} seconds{}\n", Memory::of(model).line()))?;
    for row in results.iter().filter(|_| args.layers) {
        out.write_text(&format!("\n[{}]\n{}\n", row.name, layers(row)))?;
    }
    for row in results.iter().filter(|row| !row.scores.is_empty()) {
        out.write_text(&format!(
            "\n[{}] attention scores\n{}\n",
            row.name,
            eval_scores::table_of(&row.scores)
        ))?;
    }
    Ok(())
}

/// A text without its two marks.
fn marked(text: &[u8], marks: &[String]) -> Result<Marked, CliError> {
    let [begin, end] = marks else { return Err(CliError::bad_input("--marks: expected BEGIN and END")) };
    Marked::new(text, [begin, end]).map_err(|error| CliError::model(None, &error))
}

/// Number of windows by default.
const WINDOWS: usize = 12;

/// Number of windows in the text, at least one: the evaluation reports a text that is too short.
fn some_windows(model: &Model, text: &[u8], context: usize) -> usize {
    model.count_windows(text, context).unwrap_or(0).clamp(1, WINDOWS)
}

/// Evaluates f16 and then the given settings. `on_row` takes each row as soon as it is measured.
pub(crate) fn measure(
    model: &Model,
    place: &Place,
    (text, marked): (&[u8], Option<&Marked>),
    spec: &EvalSpec,
    cache: &CacheArgs,
    out: &mut Output,
    on_row: &mut dyn FnMut(&mut Output, &Row) -> Result<(), CliError>,
) -> Result<Vec<Row>, CliError> {
    let policies = cache.policies_beside_f16(place);
    let settings = settings(model, place, (&policies, spec.context))?;
    let values = model.config().cached_values();
    let bar = out.progress(0, "evaluating");
    let (mut rows, mut printed) = (Vec::with_capacity(policies.len()), Ok(()));
    let mut progress = |progress: Progress<'_>| match progress {
        Progress::Passes(done, total) => {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        Progress::Result(result) => {
            let row = row(policies[rows.len()].name.clone(), result.clone(), values);
            if printed.is_ok() {
                printed = bar.suspend(|| on_row(out, &row));
            }
            rows.push(row);
        }
    };
    let (reference, settings) = (&settings[0], &settings[1..]);
    let report = match marked {
        Some(marked) => evaluate_marked(model, marked, spec, reference, settings, &mut progress),
        None => evaluate(model, text, spec, reference, settings, &mut progress),
    };
    bar.finish_and_clear();
    report.map_err(|e| CliError::model(None, &e))?;
    printed?;
    Ok(rows)
}

/// `values` is the number of values per token.
fn row(name: Name, result: EvalResult, values: usize) -> Row {
    Row {
        name,
        perplexity: result.perplexity,
        nll_delta: result.nll_delta,
        kl_to_f16: result.kl,
        kl_of_windows: result.kl_of_windows,
        kl_p99: result.kl_p99,
        kl_p999: result.kl_p999,
        scores: result.scores,
        top1_agreement: result.top1_agreement,
        cache_bytes_per_token: result.cache_bytes_per_token,
        bits_per_value: 8.0 * result.cache_bytes_per_token / values as f64,
        attention_error: result.attention_error,
        layer_cosine: result.layer_cosine,
        heads: result.heads,
    }
}

fn head(attention: bool) -> Vec<String> {
    let head = [
        "K,V",
        "perplexity",
        "nll delta",
        "KL to f16",
        "KL 99 %",
        "KL 99.9 %",
        "top-1",
        "bytes/token",
        "bits",
    ];
    head.into_iter().chain(attention.then_some("attention")).map(str::to_owned).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let cells = [
        row.name.label(),
        format!("{:.4}", row.perplexity),
        format!("{:+.5}", row.nll_delta),
        format!("{:.6}", row.kl_to_f16),
        format!("{:.4}", row.kl_p99),
        format!("{:.4}", row.kl_p999),
        format!("{:.2} %", 100.0 * row.top1_agreement),
        row.name.bytes(format!("{:.0}", row.cache_bytes_per_token)),
        format!("{:.2}", row.bits_per_value),
    ];
    cells.into_iter().chain(row.attention_error.map(|error| format!("{error:.6}"))).collect()
}

/// A line of the table. The widths are fixed, because rows are printed before later rows are known.
fn line((first, bytes): (usize, usize), cells: &[String]) -> String {
    let widths = [first, 10, 9, 9, 7, 9, 8, bytes, 5, 9];
    let cells: Vec<_> = cells.iter().map(String::as_str).zip(widths).collect();
    table_line(&cells)
}

/// The table of a setting's layers. A cache without statistics shows only the hidden states.
fn layers(row: &Row) -> String {
    let head = ["layer", "cosine", "key error", "value error", "energy left", "bytes"];
    let head = if row.heads.is_empty() { &head[..2] } else { &head };
    let lines = row.layer_cosine.iter().enumerate().map(|(layer, cosine)| {
        let heads: Vec<_> = row.heads.iter().filter(|head| head.layer == layer).collect();
        let sum = |of: fn(&HeadFigures) -> f64| heads.iter().map(|head| of(head)).sum::<f64>();
        let mean = |of| sum(of) / heads.len() as f64;
        let cells = [
            layer.to_string(),
            format!("{cosine:.6}"),
            format!("{:.6}", mean(|head| head.key_error)),
            format!("{:.6}", mean(|head| head.value_error)),
            format!("{:.4}", mean(|head| head.centred_energy)),
            grouped(sum(|head| head.allocated_bytes) as u64),
        ];
        cells.into_iter().take(head.len()).collect()
    });
    table(head, lines)
}

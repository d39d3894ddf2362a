//! `tqkv-lab tasks`: what a model still knows of its context under compressed caches.

use std::path::PathBuf;

use serde::Serialize;
use tqkv::cache::KvCache;
use tqkv_cli::cache_args::{self, CacheArgs, ModelArgs};
use tqkv_cli::device::Place;
use tqkv_cli::error::CliError;
use tqkv_cli::input;
use tqkv_cli::output::{Output, table};
use tqkv_cli::policy::Name;
use tqkv_model::{Model, shipped};

use super::tasks_data::{Question, Task, tasks};

/// Ask a model about its context: numbers to copy back, sums, and facts of earlier turns.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the default policy at two bits, with maps and without
  tqkv-lab tasks --model model.gguf --kv t4 --kv t3 --kv t2 --kv \"m2,t2 map=full\"

Each task has one context, and a copy of its cache answers each question. An answer is right if each of its tokens is \
the likeliest one, so a model that writes by itself would give it.

Tasks:
  recall       16 numbers of five digits at even distances in --context tokens of text
  arithmetic   48 sums of numbers below 50, behind 60 that are solved
  turns        12 facts that a user told in a conversation, with other turns between;
               fewer if the context of the model is short

Columns:
  right        number of right answers
  nll          mean surprise at the tokens of the right answers, in nats
  as f16       number of answers that are right and were so under f16, or wrong in both

A small model may fail at f16 as well. Compare each row with that of f16.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text around the numbers of recall, - for standard input [default: the shipped held-out text].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of the context of recall.
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    context: usize,
    #[command(flatten)]
    cache: CacheArgs,
}

#[derive(Serialize)]
struct Report {
    model: String,
    context: usize,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    name: Name,
    tasks: Vec<Score>,
}

/// Results of a task under one policy.
#[derive(Clone, Serialize)]
struct Score {
    task: &'static str,
    tokens: usize,
    questions: usize,
    right: usize,
    nll: f64,
    /// Answers that are right, or wrong, as under f16.
    agreed: usize,
    cache_bytes: usize,
    #[serde(skip)]
    answers: Vec<bool>,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let filler = match &args.text {
        Some(path) => input::read(path)?,
        None => shipped::HELDOUT_TEXT.to_vec(),
    };
    let model = args.model.load()?;
    let policies = args.cache.policies_beside_f16();
    cache_args::check_stored("tasks", &policies)?;
    cache_args::check_model(&Place::Cpu, model.config(), &policies)?;
    let tasks = tasks(&model, &filler, args.context)?;
    let bar = out.progress((policies.len() * tasks.len()) as u64, "asking");
    let mut results: Vec<Row> = Vec::with_capacity(policies.len());
    for policy in &policies {
        let spec = policy.apply(model.config().cache_spec());
        let mut scores = Vec::with_capacity(tasks.len());
        for (i, task) in tasks.iter().enumerate() {
            let exact = results.first().map(|row| &row.tasks[i]);
            let cache = KvCache::new(spec.clone()).map_err(CliError::bad_input)?;
            scores.push(score(&model, cache, task, exact)?);
            bar.inc(1);
        }
        results.push(Row { name: policy.name.clone(), tasks: scores });
    }
    bar.finish_and_clear();
    out.print(&Report { model: model.name().to_owned(), context: args.context, results }, human)?;
    Ok(())
}

/// Reads the context once, and asks every question of a copy.
fn score(model: &Model, mut cache: KvCache, task: &Task, exact: Option<&Score>) -> Result<Score, CliError> {
    let refused = |error| CliError::model(None, &error);
    let tokens = task.context.len();
    model.hidden(&task.context, 0, &mut cache, &mut |_, _, _| {}).map_err(refused)?;
    let (mut answers, mut nll) = (Vec::new(), 0.0);
    for question in &task.questions {
        let mut copy = cache.fork().map_err(CliError::bad_input)?;
        let (right, surprise) = ask(model, &mut copy, tokens, question)?;
        answers.push(right);
        nll += surprise / task.questions.len() as f64;
    }
    let exact = exact.map_or(&answers, |exact| &exact.answers);
    Ok(Score {
        task: task.name,
        tokens,
        questions: answers.len(),
        right: answers.iter().filter(|right| **right).count(),
        nll,
        agreed: answers.iter().zip(exact).filter(|(own, exact)| own == exact).count(),
        cache_bytes: cache.stats().allocated_bytes,
        answers,
    })
}

/// Asks a question after `first` tokens. Returns true if every token of the answer is the likeliest one, and
/// their mean surprise.
fn ask(
    model: &Model,
    cache: &mut KvCache,
    first: usize,
    question: &Question,
) -> Result<(bool, f64), CliError> {
    let Question { asked, answer } = question;
    let known = [&asked[..], &answer[..answer.len().saturating_sub(1)]].concat();
    let hidden = model.hidden(&known, first, cache, &mut |_, _, _| {});
    let hidden = hidden.map_err(|error| CliError::model(None, &error))?;
    let last = (asked.len() - 1) * model.config().hidden_size;
    let logits = model.logits(&hidden[last..]);
    let (mut right, mut nll) = (true, 0.0);
    for (logits, &token) in logits.chunks_exact(model.config().vocab_size).zip(answer) {
        let own = logits[token as usize];
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
        nll += (f64::from(max - own) + sum.ln()) / answer.len() as f64;
        right &= own == max;
    }
    Ok((right, nll))
}

fn human(report: &Report) -> String {
    let mut text = format!("model {}\n", report.model);
    for (i, task) in report.results[0].tasks.iter().enumerate() {
        let rows = report.results.iter().map(|row| {
            let score = &row.tasks[i];
            vec![
                row.name.label(),
                format!("{}/{}", score.right, score.questions),
                format!("{:.3}", score.nll),
                format!("{}/{}", score.agreed, score.questions),
                format!("{:.0}", score.cache_bytes as f64 / score.tokens as f64),
            ]
        });
        let head = ["K,V", "right", "nll", "as f16", "bytes/token"];
        text += &format!("\n{}, {} tokens of context\n{}\n", task.task, task.tokens, table(&head, rows));
    }
    text
}

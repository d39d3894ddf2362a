//! `tqkv bench --model`: prompts and generation of a whole model under several caches.

use std::path::PathBuf;
use std::time::Instant;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::cache::KvCache;
use tqkv_model::{Model, ModelError};

use crate::cache_args::{check_stored, open_model};
use crate::error::CliError;
use crate::output::{Output, sized, table};
use crate::policy::Policy;
use crate::threads;

/// A whole model instead of kernels.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelBenchArgs {
    /// Measure a model instead of kernels: tokens per second of a prompt, and of generation after it. A .gguf
    /// file, a folder, or nothing for the shipped model.
    #[arg(long, value_name = "PATH", num_args = 0..=1,
        conflicts_with_all = ["ops", "codecs", "dims", "levels", "query_heads", "seconds", "data", "efforts"])]
    pub(crate) model: Option<Option<PathBuf>>,
    /// Tokens of the prompt.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512", requires = "model",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    depth: Vec<usize>,
    /// Tokens that are generated after the prompt.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "model",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    tokens: usize,
    /// Number of rounds. All rows take turns in each.
    #[arg(long, value_name = "N", default_value_t = 3, requires = "model",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    rounds: usize,
    /// Cache of a row, as in generate: "t4,t2 hot=32". May be repeated [default: f16, s4 and t4,t2].
    #[arg(long = "kv", value_name = "CACHE", requires = "model")]
    policies: Vec<Policy>,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    cpu: String,
    rounds: usize,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    threads: usize,
    depth: usize,
    /// The fastest and the slowest round, in tokens per second of wall-clock time.
    prompt: [f64; 2],
    generation: [f64; 2],
    cache_bytes: usize,
}

/// A row, and its seconds per round.
struct Case<'a> {
    policy: &'a Policy,
    threads: usize,
    depth: usize,
    seconds: Vec<[f64; 2]>,
    cache_bytes: usize,
}

pub(crate) fn run(
    args: &ModelBenchArgs,
    path: Option<&PathBuf>,
    threads: Option<usize>,
    out: &mut Output,
) -> Result<(), CliError> {
    let model = open_model(path.map(PathBuf::as_path), |path| Model::load(path))?;
    let context = model.config().context;
    if let Some(depth) = args.depth.iter().find(|depth| depth.saturating_add(args.tokens) > context) {
        return Err(CliError::bad_input(format_args!(
            "--depth {depth} and --tokens {}: expected at most the model's context of {context} together",
            args.tokens
        )));
    }
    let policies = policies(args)?;
    check_stored("bench", &policies)?;
    let mut cases = cases(args, &policies, threads);
    let bar = out.progress((args.rounds * cases.len()) as u64, "measuring");
    for _ in 0..args.rounds {
        for case in &mut cases {
            let measured = threads::with_threads(Some(case.threads), || measure(&model, case, args.tokens));
            let (seconds, bytes) = measured?;
            case.seconds.push(seconds);
            case.cache_bytes = bytes;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = cases.iter().map(|case| case.row(args.tokens)).collect();
    let report = Report { model: model.name(), cpu: tqkv_benches::cpu_name(), rounds: args.rounds, results };
    out.print(&report, human)
}

/// The caches of the rows.
fn policies(args: &ModelBenchArgs) -> Result<Vec<Policy>, CliError> {
    if !args.policies.is_empty() {
        return Ok(args.policies.clone());
    }
    ["f16", "s4", "t4,t2"].into_iter().map(|text| text.parse().map_err(CliError::bad_input)).collect()
}

/// Every policy at every depth, on one thread and on all of them, or on as many as were asked for.
fn cases<'a>(args: &ModelBenchArgs, policies: &'a [Policy], threads: Option<usize>) -> Vec<Case<'a>> {
    let all = rayon::current_num_threads();
    let counts = threads.map_or(if all > 1 { vec![1, all] } else { vec![1] }, |threads| vec![threads]);
    let mut cases = Vec::new();
    for &depth in &args.depth {
        for &threads in &counts {
            let case = |policy| Case { policy, threads, depth, seconds: Vec::new(), cache_bytes: 0 };
            cases.extend(policies.iter().map(case));
        }
    }
    cases
}

/// The seconds of a prompt and of `tokens` further tokens, and the bytes that the cache held at the end.
fn measure(model: &Model, case: &Case<'_>, tokens: usize) -> Result<([f64; 2], usize), CliError> {
    let failed = |error: ModelError| CliError::failure(format_args!("{}: {error}", case.policy.name));
    let refused = |error| CliError::bad_input(format_args!("{}: {error}", case.policy.name));
    let mut cache = KvCache::new(case.policy.apply(model.config().cache_spec())).map_err(refused)?;
    // Speed does not depend on which tokens these are.
    let token = |position: usize| (position * 7919 % model.config().vocab_size) as u32;
    let mut step = |from: usize, n: usize| {
        let clock = Instant::now();
        let tokens: Vec<u32> = (from..from + n).map(token).collect();
        let hidden = model.hidden(&tokens, from, &mut cache, &mut |_, _, _| {})?;
        model.logits(&hidden[hidden.len() - model.config().hidden_size..]);
        Ok(clock.elapsed().as_secs_f64())
    };
    let prompt = step(0, case.depth).map_err(failed)?;
    let steps = (0..tokens).map(|i| step(case.depth + i, 1));
    let generation = steps.sum::<Result<f64, ModelError>>().map_err(failed)?;
    Ok(([prompt, generation], cache.allocated_bytes()))
}

impl Case<'_> {
    fn row(&self, tokens: usize) -> Row {
        let rates = |part: usize, count: usize| {
            let seconds = self.seconds.iter().map(|seconds| seconds[part]);
            let least = seconds.clone().fold(f64::INFINITY, f64::min);
            [count as f64 / least, count as f64 / seconds.fold(0.0, f64::max)]
        };
        Row {
            policy: self.policy.name.to_string(),
            threads: self.threads,
            depth: self.depth,
            prompt: rates(0, self.depth),
            generation: rates(1, tokens),
            cache_bytes: self.cache_bytes,
        }
    }
}

fn human(report: &Report<'_>) -> String {
    let rate = |[best, worst]: [f64; 2]| [format!("{best:.1}"), format!("{:.2}", best / worst)];
    let rows = report.results.iter().map(|row| {
        let head = [row.policy.clone(), row.depth.to_string(), row.threads.to_string()];
        let [prompt, generation] = [row.prompt, row.generation].map(rate);
        let bytes = sized(row.cache_bytes as u64);
        head.into_iter().chain(prompt).chain(generation).chain([bytes]).collect()
    });
    let head = ["cache", "depth", "threads", "prompt", "spread", "generation", "spread", "held"];
    format!(
        "{} on {}; tokens per second, the best of {} rounds; spread is the slowest round's time over the best one's\n{}",
        report.model,
        report.cpu,
        report.rounds,
        table(&head, rows)
    )
}

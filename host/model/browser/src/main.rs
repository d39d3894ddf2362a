//! The program behind the page of `cargo xtask page`. It continues a prompt with the shipped model, once for
//! each policy. It prints one JSON object per line while it runs.
//!
//! ```text
//! tqkv-browser PROMPT TOKENS POLICY..
//! ```
//!
//! It is built for `wasm32-wasip1` and runs in a worker of the page; built for this machine it prints the
//! same texts and bytes. A person wants `tqkv generate` instead.
#![forbid(unsafe_code)]

mod event;
mod watched;

use std::error::Error;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use tqkv::Level;
use tqkv::cache::{CacheSpec, KvCache, Policy};
use tqkv_model::Model;
use tqkv_model::eval::{EvalSpec, Setting, evaluate};
use tqkv_model::generate::{GenerateSpec, generate};

use event::{Event, f16_bytes};
use watched::Watched;

/// A cache to run, with the text of its policy.
struct Run {
    policy: String,
    spec: CacheSpec,
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The page shows it; nobody reads stderr there.
            let _ = print(&Event::Error { message: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

fn run(words: Vec<String>) -> Result<(), Box<dyn Error>> {
    let [prompt, tokens, policies @ ..] = words.as_slice() else {
        return Err("the command line is not valid: expected PROMPT TOKENS POLICY..".into());
    };
    let max_new_tokens =
        tokens.parse().map_err(|_| format!("{tokens} tokens are not valid: expected a number"))?;
    let model = Model::shipped()?;
    let runs = policies.iter().map(|text| read(&model, text)).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = runs.first() else { return Err("no policy is given: expected one or more".into()) };
    let level = Level::detect()?.name().name();
    print(&Event::Begin { level, context: model.config().context })?;
    let spec = GenerateSpec { max_new_tokens, ..GenerateSpec::default() };
    let mut reference = String::new();
    for (index, run) in runs.iter().enumerate() {
        let text = continued(&model, (index, run), prompt, &spec)?;
        if index == 0 {
            reference = text;
        }
    }
    quality(&model, &format!("{prompt}{reference}"), first, &runs)?;
    Ok(print(&Event::Done)?)
}

fn read(model: &Model, policy: &str) -> Result<Run, Box<dyn Error>> {
    let spec = policy.parse::<Policy>()?.apply(model.config().cache_spec());
    Ok(Run { policy: policy.to_owned(), spec })
}

/// Continues the prompt in one cache, with an event per token. Returns the new text.
fn continued(
    model: &Model,
    (index, run): (usize, &Run),
    prompt: &str,
    spec: &GenerateSpec,
) -> Result<String, Box<dyn Error>> {
    let mut cache = Watched::new(KvCache::new(run.spec.clone())?);
    let (held, shape) = (cache.held(), model.config().kv_shape());
    let mut failed = None;
    let made = generate(model, prompt.as_bytes(), spec, &mut cache, &mut |piece| {
        let (bytes, tokens) = held.get();
        let event = Event::Text { index, piece, tokens, bytes, f16_bytes: f16_bytes(&shape, tokens) };
        match print(&event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    print(&Event::End {
        index,
        policy: &run.policy,
        prefill_seconds: made.prefill_seconds,
        tokens_per_second: made.decode_tokens_per_second(),
    })?;
    Ok(made.text)
}

/// Compares every cache with the first one on the text that the first one made.
fn quality(model: &Model, text: &str, first: &Run, runs: &[Run]) -> Result<(), Box<dyn Error>> {
    let tokens = text.len().min(model.config().context);
    let spec = EvalSpec { attention: true, step: Some(1), ..EvalSpec::new(tokens, Some(1)) };
    let settings: Vec<_> = runs.iter().map(setting).collect();
    let report = evaluate(model, text.as_bytes(), &spec, &setting(first), &settings, &mut |_| {})?;
    for (index, result) in report.results.iter().enumerate() {
        print(&Event::Quality {
            index,
            kl: result.kl,
            top1_agreement: result.top1_agreement,
            attention_error: result.attention_error.unwrap_or(0.0),
        })?;
    }
    Ok(())
}

fn setting(run: &Run) -> Setting<'_> {
    let new_cache = Box::new(|| Ok(Box::new(KvCache::new(run.spec.clone())?) as Box<_>));
    Setting { name: run.policy.clone(), new_cache }
}

/// Writes one line, at once.
fn print(event: &Event<'_>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, event)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

//! `tqkv generate`: generates text with a model under compressed caches.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::policy::{Name, Policy};
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv_model::generate::{GenerateSpec, Generation, StopReason, generate};
use tqkv_model::{Model, ModelError};

use super::{generate_many, generate_window};
use crate::cache_args::{self, CacheArgs, ModelArgument};
use crate::device::{DeviceArgs, Place};
use crate::error::CliError;
use crate::input;
use crate::memory::Memory;
use crate::output::{Output, Waiting, sized, table};
use crate::signals;

/// Generate text with a compressed cache, and report its speed and size.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the shipped model, three caches side by side, another model, a pipe
  tqkv generate --prompt \"The borrow checker\"
  tqkv generate --prompt \"The borrow checker\" --kv f16 --kv balanced --kv tiny
  tqkv generate model.gguf -p \"Once upon a time\" -n 64 --temperature 0.8
  tqkv generate model.gguf --chat -p \"Why is the sky blue?\" --system \"Answer in one sentence.\"
  git log -3 | tqkv generate --prompt-file - --kv i8,s4
  tqkv generate --prompt \"A trait object\" --sequences 4 --temperature 0.8
  tqkv generate --prompt \"A trait object\" -n 500 --kv \"t4,t2 hot=32 tier=256:t2\"

The default of --kv is the preset balanced. With one setting, the text appears as it is made. While the \
prompt and its continuation fit the window of hot= and sinks=, nothing in the cache is compressed. Ctrl-C stops the text and prints \
the report; a second Ctrl-C ends the command.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Text to continue.
    #[arg(short, long, value_name = "TEXT", required_unless_present = "prompt_file")]
    prompt: Option<String>,
    /// File with the text to continue, - for standard input. A line end at the end of the file is part of the
    /// text.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Ask the model a question instead of continuing the text.
    ///
    /// The prompt is wrapped by the chat template in the model's files; without a template the command fails.
    /// The text ends with the turn of the model.
    #[arg(long)]
    chat: bool,
    /// Instruction to the model before the question of --chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Number of tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// Number of continuations of the prompt. The i-th one uses the sample seed plus i; at temperature 0 all
    /// are equal.
    ///
    /// All continuations share each pass of the model. The prompt runs once, and on the CPU its cache is
    /// forked, so pages are shared. Speed and bytes are totals.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    sequences: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// How the next token is chosen.
#[derive(Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Temperature of the softmax from which tokens are drawn. 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Seed of the draws.
    #[arg(long, value_name = "N", default_value_t = GenerateSpec::default().seed)]
    sample_seed: u64,
}

impl SamplingArgs {
    pub(crate) fn spec(&self, tokens: usize) -> GenerateSpec {
        GenerateSpec { max_new_tokens: tokens, temperature: self.temperature, seed: self.sample_seed }
    }
}

impl Args {
    /// The prompt, from the option or the file.
    fn prompt(&self) -> Result<String, CliError> {
        let Some(path) = &self.prompt_file else {
            return Ok(self.prompt.clone().unwrap_or_default());
        };
        String::from_utf8(input::read(path)?)
            .map_err(|error| CliError::bad_input(format_args!("{}: {}", path.display(), error.utf8_error())))
    }
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    prompt: &'a str,
    #[serde(flatten)]
    memory: Memory,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    name: Name,
    #[serde(flatten)]
    made: Made,
}

/// The text of one setting, and its cost.
#[derive(Serialize)]
pub(crate) struct Made {
    pub(crate) text: String,
    /// Number of generated tokens.
    tokens: usize,
    prompt_tokens: usize,
    /// Time of the prompt, in seconds.
    prefill_seconds: f64,
    /// Prompt tokens per second.
    prefill_tokens_per_second: f64,
    /// Time per generated token; 0 without tokens after the prompt.
    ms_per_token: f64,
    /// Generated tokens per second, without the time of the prompt.
    pub(crate) tokens_per_second: f64,
    /// Bytes of the cache at the end, and the bytes of f16 in main memory for the same tokens.
    cache_bytes: usize,
    f16_bytes: usize,
    /// The reason for the end of the text.
    stop: &'static str,
    /// Tokens in the cache at the end.
    #[serde(skip)]
    cache_tokens: usize,
}

/// The reason for the end of a text, as reports name it.
pub(crate) fn stop_name(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Length => "length",
        StopReason::EndOfText => "end of text",
        StopReason::Cancelled => "interrupted",
    }
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    signals::end_by_yourself();
    let place = args.device.open()?;
    let model = args.model.load()?;
    let asked = |error| CliError::model(None, &error);
    let model = if args.chat { model.into_chat().map_err(asked)? } else { model };
    let policies = args.cache.or_balanced();
    cache_args::check_model(&place, model.config(), &policies)?;
    let prompt = args.prompt()?;
    let prompt = match args.chat {
        true => model.chat_prompt(args.system.as_deref(), &prompt).map_err(asked)?,
        false => prompt,
    };
    let spec = args.sampling.spec(args.tokens);
    if args.sequences > 1 {
        let with = (&model, &place);
        return generate_many::run(with, &prompt, &spec, args.sequences, &policies, out);
    }
    if let ([policy], false) = (policies.as_slice(), out.is_json()) {
        return stream(&model, &place, &prompt, &spec, policy, out);
    }
    let bar = out.progress((policies.len() * args.tokens) as u64, "generating");
    let results: Result<Vec<_>, CliError> = policies
        .iter()
        .take_while(|_| !signals::interrupted())
        .map(|policy| {
            let mut on_text = |_: &str| {
                bar.inc(1);
                signals::unless_interrupted()
            };
            let made = continue_prompt(&model, &place, &prompt, &spec, policy, &mut on_text)?;
            Ok(Row { name: policy.name.clone(), made })
        })
        .collect();
    bar.finish_and_clear();
    let report =
        Report { model: model.name(), prompt: &prompt, memory: Memory::of(&model), results: results? };
    out.print(&report, |report| {
        let texts = report.results.iter().map(|row| titled(&row.name, &row.made.text));
        let lengths = report.results.iter().map(|row| row.made.cache_tokens);
        let note = generate_window::note((model.config(), &place), policies.iter().zip(lengths));
        format!("{}{note}{}", summary(&report.results, &report.memory), texts.collect::<String>())
    })?;
    signals::ended()
}

/// Runs one setting and prints its text as it is made.
fn stream(
    model: &Model,
    place: &Place,
    prompt: &str,
    spec: &GenerateSpec,
    policy: &Policy,
    out: &mut Output,
) -> Result<(), CliError> {
    let mut written: io::Result<()> = Ok(());
    let waiting = Waiting::new("reading the prompt");
    let made = continue_prompt(model, place, prompt, spec, policy, &mut |piece| {
        waiting.end();
        written = out.write_text(piece);
        if written.is_ok() { signals::unless_interrupted() } else { ControlFlow::Break(()) }
    })?;
    drop(waiting);
    written?;
    let lengths = std::iter::once((policy, made.cache_tokens));
    let note = generate_window::note((model.config(), place), lengths);
    out.write_text(&format!(
        "\n\n{}{note}\n",
        summary(&[Row { name: policy.name.clone(), made }], &Memory::of(model))
    ))?;
    signals::ended()
}

/// Continues `prompt` with a cache of `policy` in `place`.
pub(crate) fn continue_prompt(
    model: &Model,
    place: &Place,
    prompt: &str,
    spec: &GenerateSpec,
    policy: &Policy,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Made, CliError> {
    let config = model.config();
    let made = cache_args::cache(place, config, policy).map_err(ModelError::from);
    let made = made.and_then(|mut cache| generate(model, prompt.as_bytes(), spec, &mut *cache, on_text));
    let made: Generation = made.map_err(|e| CliError::model(None, &e))?;
    let f16_bytes = cache_args::f16_bytes(config, made.prompt_tokens, &[made.cache_tokens], false);
    Ok(Made {
        f16_bytes: f16_bytes.map_err(|e| CliError::model(None, &e.into()))?,
        prompt_tokens: made.prompt_tokens,
        prefill_seconds: made.prefill_seconds,
        prefill_tokens_per_second: made.prefill_tokens_per_second(),
        ms_per_token: 1000.0 * made.decode_seconds / made.decode_steps.max(1) as f64,
        tokens_per_second: made.decode_tokens_per_second(),
        stop: stop_name(made.stop),
        tokens: made.tokens.len(),
        cache_tokens: made.cache_tokens,
        cache_bytes: made.cache_bytes,
        text: made.text,
    })
}

fn summary(rows: &[Row], memory: &Memory) -> String {
    let cells = rows.iter().map(|row| {
        vec![
            row.name.label(),
            row.made.prompt_tokens.to_string(),
            format!("{:.0}", 1000.0 * row.made.prefill_seconds),
            format!("{:.0}", row.made.prefill_tokens_per_second),
            row.made.tokens.to_string(),
            format!("{:.2}", row.made.ms_per_token),
            format!("{:.0}", row.made.tokens_per_second),
            row.name.bytes(sized(row.made.cache_bytes as u64)),
            format!("{:.2}", row.made.f16_bytes as f64 / row.made.cache_bytes as f64),
        ]
    });
    let head = [
        "K,V",
        "prompt",
        "prefill ms",
        "prefill/s",
        "tokens",
        "ms/token",
        "tokens/s",
        "cache bytes",
        "f16 ratio",
    ];
    format!("{}{}", table(&head, cells), memory.line())
}

/// The text of a setting under its name.
fn titled(name: &Name, text: &str) -> String {
    format!("\n\n[{name}]\n{}", text.trim_end())
}

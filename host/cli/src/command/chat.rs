//! `tqkv chat`: a conversation with a model over a compressed cache.

use std::io::{self, BufRead, IsTerminal};
use std::ops::ControlFlow;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv_model::generate::Generation;
use tqkv_model::{Conversation, Model};

use super::generate::{SamplingArgs, stop_name};
use crate::cache_args::{self, CacheArgs, ModelArgument};
use crate::device::{DeviceArgs, Place};
use crate::error::CliError;
use crate::output::{Output, Waiting, bytes, note};
use crate::policy::Policy;
use crate::signals;

/// Talk with a model over a compressed cache; each line is a question.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: a model of a file, another cache with an instruction, questions from a pipe
  tqkv chat model.gguf
  tqkv chat model.gguf --kv tiny --system \"Answer in one sentence.\"
  printf 'Why is the sky blue?\\nAnd at sunset?\\n' | tqkv chat model.gguf

The default of --kv is the preset balanced. The cache keeps the conversation, so a question runs only its own tokens. Ctrl-C \
stops an answer. Ctrl-D, or Ctrl-C at a question, ends the conversation. The model needs a chat template in its files; the \
shipped model has none.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Instruction to the model before the first question.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Largest number of tokens of an answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// A question with its answer, and what it cost.
#[derive(Serialize)]
struct Turn<'a> {
    question: &'a str,
    answer: &'a str,
    /// Tokens that ran before the answer: those of the question, and what the template writes around them.
    prompt_tokens: usize,
    tokens: usize,
    tokens_per_second: f64,
    /// The reason for the end of the answer.
    stop: &'static str,
    /// Tokens of the conversation in the cache, its bytes, and the bytes of f16 for the same tokens.
    cache_tokens: usize,
    cache_bytes: usize,
    f16_bytes: usize,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let policies = args.cache.or_balanced();
    let [policy] = policies.as_slice() else {
        return Err(CliError::bad_input("a conversation has one cache: expected one --kv"));
    };
    let place = args.device.open()?;
    let asked = |error| CliError::model(None, &error);
    let model = args.model.load()?.into_chat().map_err(asked)?;
    cache_args::check_model(&place, model.config(), &policies)?;
    let made = cache_args::cache(&place, model.config(), policy);
    let mut cache = made.map_err(|error| CliError::bad_input(format_args!("{}: {error}", policy.name)))?;
    let mut talk = Conversation::new(args.system.as_deref());
    let spec = args.sampling.spec(args.tokens);
    let is_asked = io::stdin().is_terminal() && !out.is_json();
    let mut last = None;
    while let Some(question) = question(is_asked, out)? {
        signals::end_by_yourself();
        let mut written = Ok(());
        let waiting = Waiting::new("reading the question");
        let quiet = out.is_json();
        let answered = talk.ask(&model, &question, &spec, &mut *cache, &mut |piece| {
            waiting.end();
            written = if quiet { Ok(()) } else { out.write_text(piece) };
            if written.is_ok() { signals::unless_interrupted() } else { ControlFlow::Break(()) }
        });
        drop(waiting);
        signals::forget();
        written?;
        match answered {
            Ok(made) => last = Some(said(&model, &place, policy, &question, &made, out)?),
            // A question that is refused can be asked in another way, where a person asks.
            Err(error) if is_asked => note(error),
            Err(error) => return Err(asked(error)),
        }
    }
    match last.filter(|_| !out.is_json()) {
        Some(line) => Ok(out.write_text(&format!("{line}\n"))?),
        None => Ok(()),
    }
}

/// The next line that is not empty, without its end. `None` at the end of the input.
fn question(is_asked: bool, out: &mut Output) -> Result<Option<String>, CliError> {
    loop {
        if is_asked {
            out.write_text("> ")?;
        }
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        match read.map_err(|error| CliError::bad_input(format_args!("standard input: {error}")))? {
            0 => return Ok(None),
            _ if !line.trim().is_empty() => return Ok(Some(line.trim().to_owned())),
            _ => {}
        }
    }
}

/// Ends the turn in the output: an object, or a blank line. Returns a line on the memory of the conversation.
fn said(
    model: &Model,
    place: &Place,
    policy: &Policy,
    question: &str,
    made: &Generation,
    out: &mut Output,
) -> Result<String, CliError> {
    let f16_bytes = cache_args::f16_bytes(model.config(), made.cache_tokens, &[made.cache_tokens], false);
    let turn = Turn {
        question,
        answer: &made.text,
        prompt_tokens: made.prompt_tokens,
        tokens: made.tokens.len(),
        tokens_per_second: made.decode_tokens_per_second(),
        stop: stop_name(made.stop),
        cache_tokens: made.cache_tokens,
        cache_bytes: made.cache_bytes,
        f16_bytes: f16_bytes.map_err(|error| CliError::model(None, &error.into()))?,
    };
    out.print(&turn, |_| "\n".to_owned())?;
    let window =
        super::generate_window::note((model.config(), place), [(policy, turn.cache_tokens)].into_iter());
    Ok(format!(
        "{} tokens in {} of cache, {} in f16; {:.0} tokens/s{window}",
        turn.cache_tokens,
        bytes(turn.cache_bytes as u64),
        bytes(turn.f16_bytes as u64),
        turn.tokens_per_second
    ))
}

//! `tqkv basis`: learns a basis for the storage tier.

use std::path::PathBuf;

use serde::Serialize;
use tqkv_model::shipped;
use tqkv_storage::{Join, Learner};

use crate::cache_args::ModelArgs;
use crate::error::CliError;
use crate::input;
use crate::output::{self, Output, grouped};

/// Learn a basis in which a model's keys and values are stored at about one bit a value.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: from a text of the kind that will be stored, then what it is worth on another
  tqkv basis --text manual.txt manual.tqb
  tqkv-lab eval --text other.txt --storage 1.1 --storage 2.1 --basis manual.tqb

A few thousand tokens do. A text of several kinds serves all of them: --text may be repeated. The file holds second moments of
keys and values, and hashes of some runs of 32 tokens, by which eval refuses text that was learned from: what it says of the text is little, \
but not nothing."
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to learn from, - for standard input; may be repeated [default: the second half of the shipped
    /// held-out text, which eval does not read by default].
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Tokens per window; each is a text of its own.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Windows of each text, from its start [default: 4, or as many as the text has].
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// One basis for keys and one for values, half as large: what layers of more than 1024 values a token
    /// have anyway.
    #[arg(long)]
    apart: bool,
    /// One basis for so many consecutive layers: fewer bits, for so many times the file and the time of
    /// encoding and decoding.
    #[arg(long, value_name = "N", conflicts_with = "apart")]
    layers: Option<u16>,
    /// Where to write it.
    #[arg(value_name = "OUT")]
    out: PathBuf,
}

/// Windows of a text where none are asked for.
const WINDOWS: usize = 4;

#[derive(Serialize)]
struct Report {
    model: String,
    basis: String,
    tokens: u64,
    bytes: u64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let texts = match &args.text[..] {
        [] => vec![shipped::HELDOUT_TEXT[shipped::HELDOUT_TEXT.len() / 2..].to_vec()],
        paths => paths.iter().map(|path| input::read(path)).collect::<Result<_, _>>()?,
    };
    let model = args.model.load()?;
    let refused = |e| CliError::model(None, &e);
    let shape = model.storage_shape().map_err(refused)?;
    let join = match args.layers {
        Some(layers) => Join::Layers(layers),
        None if args.apart => Join::Apart,
        None => shape.join(),
    };
    let mut learner = Learner::new(shape, join).map_err(CliError::bad_input)?;
    let bar = out.progress((texts.len() * args.windows.unwrap_or(WINDOWS) * args.context) as u64, "learning");
    for text in &texts {
        let windows = args
            .windows
            .unwrap_or_else(|| model.count_windows(text, args.context).unwrap_or(0).clamp(1, WINDOWS));
        model
            .learn(text, args.context, Some(windows), &mut learner, &mut |tokens| bar.inc(tokens as u64))
            .map_err(refused)?;
    }
    bar.finish_and_clear();
    let basis = learner.freeze(model.name()).map_err(CliError::bad_input)?;
    let bytes = basis.to_bytes().len() as u64;
    basis.save(&args.out).map_err(|error| CliError::storage(&args.out, &error))?;
    let report = Report {
        model: model.name().to_owned(),
        basis: basis.id().to_string(),
        tokens: basis.tokens(),
        bytes,
    };
    out.print(&report, |report| {
        let Report { model, basis, tokens, bytes } = report;
        let (tokens, bytes) = (grouped(*tokens), output::bytes(*bytes));
        format!("basis {basis}\nof model {model}, learned from {tokens} tokens, {bytes}")
    })?;
    Ok(())
}

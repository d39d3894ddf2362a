//! `tqkv basis`: learns a basis for the storage tier.

use std::path::PathBuf;

use serde::Serialize;
use tqkv_model::shipped;
use tqkv_storage::{Join, Learner};

use crate::cache_args::ModelArgs;
use crate::error::CliError;
use crate::input;
use crate::output::{self, Output, grouped};

/// Learn a basis in which the keys and values of a model take about one bit per value.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: learn from a text of the kind that will be stored, then measure on another text
  tqkv basis --text manual.txt manual.tqb
  tqkv-lab eval --text other.txt --storage 1.1 --storage 2.1 --basis manual.tqb

Example: one basis of the sums of two texts, each learned from on its own machine
  tqkv basis --text a.txt --sums a.tqa a.tqb
  tqkv basis --text b.txt --merge a.tqa both.tqb

A few thousand tokens are enough. One basis can serve several kinds of text: repeat --text. The file holds second \
moments of keys and values, and hashes of some runs of 32 tokens. With the hashes, eval refuses text that the basis was learned \
from. The file reveals little about the text, but more than nothing."
)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to learn from, - for standard input; may be repeated [default: the second half of the shipped
    /// held-out text, unused by a default eval].
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Add the sums of another run (--sums), of the same model and the same kind of basis; may be repeated.
    /// Without --text nothing else is learned from.
    #[arg(long, value_name = "FILE.tqa")]
    merge: Vec<PathBuf>,
    /// Write the sums that the basis is made of as well, for --merge: about four times the size of the basis.
    #[arg(long, value_name = "FILE.tqa")]
    sums: Option<PathBuf>,
    /// Tokens per window; every window is a text of its own.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Number of windows of each text, from its start [default: 4, or all if the text has fewer].
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Learn separate bases for keys and values, of half the size. Layers with more than 1024 values per
    /// token always have them.
    #[arg(long)]
    apart: bool,
    /// Learn one basis per N consecutive layers: fewer bits, but N times the file size and the time to encode
    /// and decode.
    #[arg(long, value_name = "N", conflicts_with = "apart")]
    layers: Option<u16>,
    /// File to write.
    #[arg(value_name = "OUT")]
    out: PathBuf,
}

/// Number of windows by default.
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
        [] if !args.merge.is_empty() => Vec::new(),
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
    for path in &args.merge {
        let named = |error| CliError::storage(path, &error);
        learner.merge(&Learner::load(path).map_err(named)?).map_err(named)?;
    }
    let basis = learner.freeze(model.name()).map_err(CliError::bad_input)?;
    if let Some(path) = &args.sums {
        learner.save(path).map_err(|error| CliError::storage(path, &error))?;
    }
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

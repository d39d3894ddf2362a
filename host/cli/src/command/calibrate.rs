//! `tqkv calibrate`: learns moments of keys and queries, from which caches make their maps at once.

use std::path::PathBuf;

use serde::Serialize;
use tqkv_model::shipped;

use super::basis::WINDOWS;
use crate::cache_args::ModelArgs;
use crate::error::CliError;
use crate::input;
use crate::output::{self, Output, grouped};
use crate::target::TargetArgs;

/// Learn moments of a model's keys and queries, so that no key waits for its map.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: learn from one text, then measure on another one
  tqkv calibrate --model model.gguf --text manual.txt --out model.tqm
  tqkv eval --model model.gguf --text other.txt --kv \"m2,t2 map=model.tqm\" --kv \"m2,t2 map=full\"

A few thousand tokens are enough. The file holds second moments of keys and queries before RoPE, and no text. It serves \
a cache of the same numbers of layers and KV heads, the same head_dim and the same RoPE. The commands that load a model also refuse \
the file of another model.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to learn from, - for standard input; may be repeated [default: the second half of the shipped
    /// held-out text, unused by a default eval].
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Tokens per window, up to 1024; every window is a text of its own.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Number of windows of each text, from its start [default: 4, or all if the text has fewer].
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// File to write, whose name ends in .tqm.
    #[arg(long, value_name = "FILE.tqm", value_parser = tqm)]
    out: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

/// Parses the name of a file of moments. A policy knows it by its ending.
fn tqm(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let ends = path.extension().is_some_and(|end| end == "tqm");
    if ends { Ok(path) } else { Err("expected a name that ends in .tqm".to_owned()) }
}

#[derive(Serialize)]
struct Report {
    model: String,
    tokens: u64,
    bytes: u64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    // The output is checked before the work, and made after it.
    drop(args.target.create_new(&args.out)?);
    let texts = match &args.text[..] {
        [] => vec![shipped::HELDOUT_TEXT[shipped::HELDOUT_TEXT.len() / 2..].to_vec()],
        paths => paths.iter().map(|path| input::read(path)).collect::<Result<_, _>>()?,
    };
    let model = args.model.load()?;
    let windows = |text: &Vec<u8>| {
        let most = model.count_windows(text, args.context).unwrap_or(0).clamp(1, WINDOWS);
        args.windows.unwrap_or(most)
    };
    let windows: Vec<_> = texts.into_iter().map(|text| (windows(&text), text)).collect();
    let total = windows.iter().map(|(windows, _)| windows * args.context).sum::<usize>();
    let bar = out.progress(total as u64, "learning");
    let found = model.calibrate(&windows, args.context, &mut |tokens| bar.inc(tokens as u64));
    bar.finish_and_clear();
    let found = found.map_err(|e| CliError::model(None, &e))?;
    found.save(&args.out).map_err(|error| CliError::io(&args.out, &error))?;
    let bytes = std::fs::metadata(&args.out).map_err(|error| CliError::io(&args.out, &error))?.len();
    let report = Report { model: model.name().to_owned(), tokens: found.tokens(), bytes };
    out.print(&report, |Report { model, tokens, bytes }| {
        let (tokens, bytes) = (grouped(*tokens), output::bytes(*bytes));
        format!("moments of model {model}, learned from {tokens} tokens, {bytes}")
    })?;
    Ok(())
}

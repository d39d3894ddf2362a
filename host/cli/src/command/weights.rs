//! `tqkv weights`: encodes the weights of a model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use serde::Serialize;
use tqkv_core::CodecId;
use tqkv_model::compress::{CompressSpec, Compressed, compress};
use tqkv_model::eval::{EvalSpec, Progress, Setting, evaluate};
use tqkv_model::{Model, ModelError, shipped};

use crate::args::EncodeArgs;
use crate::error::CliError;
use crate::input;
use crate::names;
use crate::output::{Output, grouped, sized, table};
use crate::signals;

/// Compress the weights of a model.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Weights,
}

#[derive(Debug, Subcommand)]
enum Weights {
    Compress(CompressArgs),
}

/// Encode a model's matrices in groups along their rows, without calibration, into a folder for --model.
///
/// Products are computed on the codes: the weights are never expanded in memory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: 4 bits, 3 bits with the perplexity before and after, a GGUF file with another codec
  tqkv weights compress llama llama-t4 --bits 4
  tqkv weights compress llama llama-t3 --bits 3 --report --text book.txt
  tqkv weights compress model.gguf model-s4 --codec s4 --group 128 --embedding s5
  tqkv generate --model llama-t3 --prompt \"Once upon a time\" --kv balanced

A group is rotated and has one scale of 16 bits: 4 bits in groups of 64 take 4.25 bits per weight, in groups of 128 \
4.125. Norms, biases and routers stay as they are."
)]
struct CompressArgs {
    /// Model: a .gguf file, or a folder with config.json and .safetensors.
    model: PathBuf,
    /// Folder to create.
    out: PathBuf,
    /// Bits per weight: the trellis codec of that width, or i8.
    #[arg(long, value_name = "BITS", default_value = "4", value_parser = names::weight_bits())]
    bits: CodecId,
    /// Codec of the weights in place of --bits: any that `tqkv codecs --all` lists.
    #[arg(long, value_name = "CODEC", value_parser = names::codec, conflicts_with = "bits")]
    codec: Option<CodecId>,
    /// Codec of the embedding and the output head.
    #[arg(long, value_name = "CODEC", value_parser = names::codec, default_value = "i8")]
    embedding: CodecId,
    /// Weights that share a scale. The width of every matrix must be a multiple of it.
    #[arg(long, value_name = "WEIGHTS", default_value = "64",
        value_parser = PossibleValuesParser::new(["64", "128", "256"]).map(|group| group.parse::<usize>().unwrap_or(64)))]
    group: usize,
    #[command(flatten)]
    encode: EncodeArgs,
    /// Measure the perplexity of the original and the compressed model.
    #[arg(long)]
    report: bool,
    /// Text to measure on [default: the shipped held-out text].
    #[arg(long, value_name = "FILE", requires = "report")]
    text: Option<PathBuf>,
    /// Tokens per window.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, requires = "report")]
    context: usize,
    /// Number of windows to measure.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "report")]
    windows: usize,
}

#[derive(Serialize)]
struct Report {
    output: String,
    codec: &'static str,
    embedding: &'static str,
    group: usize,
    coded_values: usize,
    bits_per_weight: f64,
    bytes_before: usize,
    bytes: usize,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    perplexity: Option<Perplexity>,
}

#[derive(Serialize)]
struct Perplexity {
    before: f64,
    after: f64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let Weights::Compress(args) = &args.command;
    let spec = CompressSpec {
        codec: args.codec.unwrap_or(args.bits),
        embedding: args.embedding,
        group: args.group,
        options: args.encode.options(),
    };
    // Checked before the work, so that an error appears at once.
    if args.out.exists() {
        let out = args.out.display();
        return Err(CliError::bad_input(format_args!("{out}: exists: expected the name of a new folder")));
    }
    let text = match &args.text {
        Some(path) => input::read(path)?,
        None => shipped::HELDOUT_TEXT.to_vec(),
    };
    let before = args.report.then(|| perplexity(args, &args.model, &text, out)).transpose()?;
    let clock = Instant::now();
    let bar = out.progress(0, "coding");
    signals::end_by_yourself();
    let made = compress(&args.model, &args.out, &spec, &|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        signals::unless_interrupted()
    });
    bar.finish_and_clear();
    signals::end_at_once();
    if matches!(made, Err(ModelError::Cancelled)) {
        return Err(CliError::interrupted());
    }
    let made = made.map_err(|error| CliError::model(Some(&args.model), &error))?;
    let seconds = clock.elapsed().as_secs_f64();
    let after = args.report.then(|| perplexity(args, &args.out, &text, out)).transpose()?;
    out.print(&report(args, &spec, &made, seconds, before.zip(after)), human)
}

fn report(
    args: &CompressArgs,
    spec: &CompressSpec,
    made: &Compressed,
    seconds: f64,
    perplexity: Option<(f64, f64)>,
) -> Report {
    Report {
        output: args.out.display().to_string(),
        codec: spec.codec.name(),
        embedding: spec.embedding.name(),
        group: spec.group,
        coded_values: made.coded_values,
        bits_per_weight: made.coded_bytes as f64 * 8.0 / made.coded_values.max(1) as f64,
        bytes_before: made.bytes_before,
        bytes: made.bytes,
        seconds,
        perplexity: perplexity.map(|(before, after)| Perplexity { before, after }),
    }
}

fn human(report: &Report) -> String {
    let mut rows = vec![
        vec!["coded weights".to_owned(), grouped(report.coded_values as u64)],
        vec!["bits per coded weight".to_owned(), format!("{:.3}", report.bits_per_weight)],
        vec!["bytes before".to_owned(), sized(report.bytes_before as u64)],
        vec!["bytes now".to_owned(), sized(report.bytes as u64)],
        vec!["seconds".to_owned(), format!("{:.1}", report.seconds)],
    ];
    if let Some(Perplexity { before, after }) = &report.perplexity {
        rows.push(vec!["perplexity before".to_owned(), format!("{before:.4}")]);
        rows.push(vec!["perplexity now".to_owned(), format!("{after:.4}")]);
    }
    let (codec, embedding, group) = (report.codec, report.embedding, report.group);
    let title = format!("{codec} in groups of {group}, embedding and head {embedding}");
    table(&[&report.output, &title], rows)
}

/// Perplexity with the exact cache.
fn perplexity(args: &CompressArgs, model: &Path, text: &[u8], out: &Output) -> Result<f64, CliError> {
    let bad = |error| CliError::model(Some(model), &error);
    let model = Model::load(model).map_err(bad)?;
    let spec = EvalSpec::new(args.context, Some(args.windows));
    let exact = Setting {
        name: "exact".to_owned(),
        new_cache: Box::new(|| Ok(Box::new(model.config().dense_cache()?))),
    };
    let bar = out.progress(args.windows as u64, "measuring");
    let measured = evaluate(&model, text, &spec, &exact, &[], &mut |progress| {
        if let Progress::Passes(done, _) = progress {
            bar.set_position(done as u64);
        }
    });
    bar.finish_and_clear();
    Ok(measured.map_err(bad)?.reference.perplexity)
}

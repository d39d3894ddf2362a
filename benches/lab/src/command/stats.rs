//! `tqkv-lab stats`: errors of vectors and their dot products under each codec.

use std::path::PathBuf;

use serde::Serialize;
use tqkv_cli::args::{self, EncodeArgs};
use tqkv_cli::array::Vectors;
use tqkv_cli::error::CliError;
use tqkv_cli::names;
use tqkv_cli::output::{Output, grouped, table};
use tqkv_core::{CodecId, HEAD_DIMS};
use tqkv_reference::{Choice, ROWS, RotationKind};

use super::stats_delta;
use crate::stats::{self, CodecStats, StatsError, Subject};

/// Measure the error of codecs on an array, or on random directions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the classic 1 to 4 bit figures, then a model's own keys and queries
  tqkv-lab stats --random 100000 --codec tq1,s2,s3,s4 --scale-mode raw
  tqkv-lab stats --codec s4 --codec i8 keys.safetensors:layers.0.k --queries q.npy
Example: would differences between the layers of a model take fewer bits than the layers?
  tqkv-lab stats --delta
Example: the paper's codes for dot products, and scalar codes of the same size
  tqkv-lab stats --codec p3,tq3,p4,tq4 --random 200000
Example: a codec that is not here, by the array that it gave back
  tqkv-lab stats --codec s4,t4 --reconstructed mine.npy keys.npy

Columns:
  relative MSE       mean of |x-x^|^2 / |x|^2, from the stored bytes
  cosine             mean cosine between x and x^
  slope              regression of <q,x^> on <q,x>; 1 is unbiased
  dot error          root mean square error of <q,x^> relative to <q,x>, over
                     random unit queries or those of --queries

Columns of theory, for random directions:
  expected           relative MSE of reference formats, and of scalar codes (raw,
                     without a search for the scale)
  shannon            lower bound of every code with these bits
  bound              bound in the paper: Theorem 2 on the dot error for p2 and its
                     variants, otherwise Theorem 1

Reference formats (p2 and the following ones in the list) have a rotation per layer: 64 layers take turns, each for 256 vectors.

Columns of --delta, over pairs of consecutive layers:
  correlation        Pearson's; keys and values without the mean of each channel
  difference energy  energy of a layer minus the previous one, over the energy of
                     the layer; 2 means that the layers are independent
  bits saved         bits per number that the best multiple of the previous layer
                     saves, for Gaussian numbers
  entropy            bits per number, in steps of a quarter of the deviation
  given last         the same if the number in the previous layer is known")]
pub(crate) struct Args {
    /// Codecs to measure; may be repeated [default: none with --reconstructed, otherwise all that have the head
    /// dim].
    #[arg(long = "codec", value_name = "CODEC", value_parser = names::choice, value_delimiter = ',')]
    codecs: Vec<Choice>,
    #[command(flatten)]
    encode: EncodeArgs,
    /// Rotation of p2, p3, p4, tq3, tq4 and their variants [default: the rotation of the format's source].
    #[arg(long, value_name = "WHICH", value_enum)]
    rotation: Option<RotationArg>,
    /// Array of shape [.., D]: a .npy file of f32, f16 or f64 (rounded to f32), - for a .npy on standard
    /// input, or file.safetensors:name (also bf16).
    #[arg(value_name = "IN")]
    input: Option<String>,
    /// Number of random directions to measure in place of an array.
    #[arg(long, value_name = "N", default_value_t = 20_000, conflicts_with = "input",
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    random: u32,
    /// Head dim of the random directions.
    #[arg(long, value_name = "D", default_value_t = 128, conflicts_with = "input")]
    dim: usize,
    /// Seed of the random directions and queries (--seed is the seed of the rotation).
    #[arg(long, value_name = "N", default_value_t = 1)]
    data_seed: u64,
    /// Array of queries of shape [.., D] [default: 32 random unit vectors].
    #[arg(long, value_name = "ARRAY")]
    queries: Option<String>,
    /// Array that another codec gave back for IN, of the same shape; may be repeated. Its bytes are not known.
    #[arg(long, value_name = "ARRAY", requires = "input")]
    reconstructed: Vec<String>,
    /// Measure how well each layer predicts the next one, for the keys, values and weights of MODEL [default:
    /// the shipped model]. The result shows if differences between layers would take fewer bits.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["codecs", "input", "random", "dim", "queries"])]
    delta: Option<Option<PathBuf>>,
}

/// The rotation of the reference formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RotationArg {
    /// A Haar-distributed matrix, a different one per layer: slow. Measured: the errors equal those of
    /// hadamard.
    Dense,
    /// Random signs and a Hadamard transform; needs a head dim that is a power of two.
    Hadamard,
}

/// Number of random queries. Every vector meets each one, so 20,000 vectors give 640,000 dot products.
const RANDOM_QUERIES: usize = 32;

#[derive(Serialize)]
struct Report {
    dim: usize,
    count: usize,
    /// Number of zero vectors, which are left out of all figures.
    zero_vectors: u64,
    codecs: Vec<CodecStats>,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if let Some(model) = &args.delta {
        return stats_delta::run(model.as_deref(), out);
    }
    if args.input.is_none() && !HEAD_DIMS.contains(&args.dim) {
        let expected: Vec<_> = HEAD_DIMS.iter().map(ToString::to_string).collect();
        return Err(CliError::bad_input(format_args!(
            "--dim {} is not valid: expected one of {}",
            args.dim,
            expected.join(", ")
        )));
    }
    let level = args::machine_level()?;
    let name = args.input.as_deref().unwrap_or("random directions");
    let vectors = match &args.input {
        Some(spec) => Vectors::open(spec),
        None => stats::random_directions(args.random as usize, args.dim, args.data_seed),
    };
    let vectors = vectors.map_err(|e| CliError::array(name, &e))?;
    if vectors.rows() == 0 {
        return Err(CliError::bad_input(format_args!("{name}: there are no vectors in it")));
    }
    let choices = choices(args, vectors.dim());
    let with = (level, args.encode.options(), rotation(args.rotation, &choices)?);
    let subjects = choices.into_iter().map(|choice| Subject::new(choice, with, &vectors));
    let bad = |e| refused(name, args.queries.as_deref(), &e);
    let mut subjects = subjects.collect::<Result<Vec<_>, _>>().map_err(bad)?;
    for spec in &args.reconstructed {
        let array = Vectors::open(spec).map_err(|e| CliError::array(spec, &e))?;
        subjects.push(Subject::Given(spec.clone(), array));
    }
    let queries = match &args.queries {
        Some(spec) => Vectors::open(spec).map_err(|e| CliError::array(spec, &e))?,
        // A different seed than the data, so that no query is one of the vectors.
        None => stats::random_directions(RANDOM_QUERIES, vectors.dim(), !args.data_seed)
            .map_err(|e| CliError::array(name, &e))?,
    };
    let bar = out.progress((vectors.rows() * subjects.len()) as u64, "measuring");
    let measured: Result<Vec<_>, _> = subjects
        .iter()
        .map(|subject| stats::measure(subject, &vectors, &queries, &|rows| bar.inc(rows)))
        .collect();
    bar.finish_and_clear();
    let codecs = measured.map_err(bad)?;
    let report = Report {
        dim: vectors.dim(),
        count: vectors.rows(),
        zero_vectors: codecs.first().map_or(0, |stats| stats.zero_vectors),
        codecs,
    };
    out.print(&report, human)
}

/// The given codecs, which may be none next to arrays that another codec gave back. By default all that have the
/// head dim; f16 if none has, so that its error is reported.
fn choices(args: &Args, dim: usize) -> Vec<Choice> {
    if !args.codecs.is_empty() || !args.reconstructed.is_empty() {
        return args.codecs.clone();
    }
    let all: Vec<_> = Choice::all().filter(|choice| choice.block_bytes(dim).is_some()).collect();
    if all.is_empty() { vec![CodecId::F16.into()] } else { all }
}

/// The rotation of `--rotation`, which is refused if none of `choices` has more than one.
fn rotation(given: Option<RotationArg>, choices: &[Choice]) -> Result<Option<RotationKind>, CliError> {
    let has_rotations = |choice: &Choice| matches!(choice, Choice::Reference(row) if row.has_rotations());
    if given.is_some() && !choices.iter().any(has_rotations) {
        let rows: Vec<_> = ROWS.iter().filter(|row| row.has_rotations()).map(|row| row.name()).collect();
        return Err(CliError::bad_input(format_args!(
            "--rotation: none of the codecs has a choice; {} have",
            rows.join(", ")
        )));
    }
    Ok(given.map(|rotation| match rotation {
        RotationArg::Dense => RotationKind::Dense,
        RotationArg::Hadamard => RotationKind::Hadamard,
    }))
}

fn human(report: &Report) -> String {
    let rows = report.codecs.iter().map(|s| {
        vec![
            s.codec.to_string(),
            s.scale_mode.to_string(),
            s.bytes_per_vector.map_or("-".to_owned(), |bytes| bytes.to_string()),
            s.bits_per_value.map_or("-".to_owned(), |bits| format!("{bits:.3}")),
            significant(s.relative_mse),
            format!("{:.6}", s.mean_cosine),
            format!("{:.5}", s.dot_slope),
            significant(s.dot_error),
            known(s.theory.expected),
            known(s.theory.shannon),
            known(if is_of_dots(s) { s.theory.bound.map(f64::sqrt) } else { s.theory.bound }),
        ]
    });
    let head = [
        "codec",
        "scale",
        "bytes",
        "bits/value",
        "relative MSE",
        "cosine",
        "slope",
        "dot error",
        "expected",
        "shannon",
        "bound",
    ];
    let zeros = match report.zero_vectors {
        0 => String::new(),
        n => format!(", {} of them zero and left out", grouped(n)),
    };
    let count = grouped(report.count as u64);
    format!("{count} vectors of {} coordinates{zeros}\n{}", report.dim, table(&head, rows))
}

/// Returns true if the bound of the paper is for the dot error.
fn is_of_dots(stats: &CodecStats) -> bool {
    Choice::from_name(&stats.codec)
        .is_some_and(|choice| matches!(choice, Choice::Reference(row) if row.has_estimator()))
}

fn known(x: Option<f64>) -> String {
    x.map_or("-".to_owned(), significant)
}

/// Five decimals; four significant digits in exponent notation below a thousandth.
fn significant(x: f64) -> String {
    if x.abs() >= 1e-3 { format!("{x:.5}") } else { format!("{x:.3e}") }
}

/// An error while measuring the vectors named `spec` against the array `queries`.
fn refused(spec: &str, queries: Option<&str>, error: &StatsError) -> CliError {
    match (error, queries) {
        (StatsError::Vectors(error), _) => CliError::array(spec, error),
        (StatsError::Queries(error), queries) => CliError::array(queries.unwrap_or("random queries"), error),
        (error, _) => CliError::bad_input(format_args!("{spec}: {error}")),
    }
}

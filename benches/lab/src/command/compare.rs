//! `tqkv-lab compare`: compares two files of codes, two caches, two runs of a model, or two dumps of arrays.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tqkv::cache::KvCache;
use tqkv_cli::args;
use tqkv_cli::error::CliError;
use tqkv_cli::output::{Output, Waiting, grouped, table};

use crate::compare::{self, ArrayFigures, Figures, LayerFigures, ModelRun, RunArgs, RunSetting};

/// Compare two .tqk files, two snapshots of a cache, two runs of a model, or two dumps of vectors or codes:
/// codes, directions, errors.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: two files, then runs at two widths, on two instruction sets, and against a saved run
  tqkv-lab compare keys-a.tqk keys-b.tqk
  tqkv-lab compare f16 s4
  tqkv-lab compare s4@portable s4@avx2 --context 512
  tqkv-lab compare \"s4 hot=0 sinks=0\" s4 --save run.tqs && tqkv-lab compare run.tqs s4
Example: the keys and values of two systems, or their codes, a tensor per layer and step
  tqkv-lab compare exact.safetensors other.safetensors

Columns, for keys and for values:
  codes        share of coordinates with the same code, if both sides have the same
               codec and seed; centred keys are compared without their mean
  cosine       mean cosine of the vectors
  error        squared distance over the squared norm of A
  hidden       for runs: mean cosine of the hidden states after the layer
  equal        for arrays: share of equal numbers. Whole numbers, as codes are,
               have no other column

Two runs with equal settings agree to the bit on every instruction set."
)]
pub(crate) struct Args {
    /// A .tqk file, a snapshot (`KvCache::save`), or a run: a cache in words, as in eval --kv. Append @LEVEL
    /// to a run to choose its instruction set [default: the machine's fastest]. Or an array: .npy,
    /// file.safetensors:name, or all tensors of a .safetensors file. It holds vectors [.., D] or whole numbers.
    #[arg(value_name = "A")]
    a: String,
    /// Same forms as A. A snapshot may be compared with a run.
    #[arg(value_name = "B")]
    b: String,
    /// Save the cache of run A as a snapshot; an existing file is replaced.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    a: &'a str,
    b: &'a str,
    /// Only for files.
    #[serde(skip_serializing_if = "Option::is_none")]
    vectors: Option<Figures>,
    /// Only for caches and runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layers: Vec<LayerFigures>,
    /// Only for arrays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arrays: Vec<ArrayFigures>,
    /// Tokens of caches and runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
}

impl<'a> Report<'a> {
    fn new(args: &'a Args) -> Self {
        Self { a: &args.a, b: &args.b, vectors: None, layers: Vec::new(), arrays: Vec::new(), tokens: None }
    }
}

/// One side of the comparison.
enum Compared {
    Codes,
    Snapshot(KvCache),
    Run(ModelRun),
}

impl Compared {
    fn cache(&self) -> Option<&KvCache> {
        match self {
            Self::Codes => None,
            Self::Snapshot(cache) => Some(cache),
            Self::Run(run) => Some(&run.cache),
        }
    }
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let names = [args.a.as_str(), args.b.as_str()];
    if names.into_iter().all(compare::is_array) {
        return run_arrays(args, out);
    }
    let waiting = Waiting::new("reading");
    let setting = |name: &str| (!Path::new(name).exists()).then(|| RunSetting::parse(name)).transpose();
    let settings = [setting(names[0])?, setting(names[1])?];
    let is_run = settings.iter().any(Option::is_some);
    let runner = is_run.then(|| args.run.runner()).transpose()?;
    let side = |at: usize| match (&settings[at], &runner) {
        (Some(setting), Some(runner)) => runner.run(setting).map(Compared::Run),
        _ => open(Path::new(names[at])),
    };
    let (a, b) = (side(0)?, side(1)?);
    drop(waiting);
    if let Some(path) = &args.save {
        save(&a, path)?;
    }
    let mut report = Report::new(args);
    match (a.cache(), b.cache()) {
        (None, None) => {
            let bar = out.progress(0, "comparing");
            let figures =
                compare::files(args::machine_level()?, names.map(Path::new), &|vectors| bar.inc(vectors));
            bar.finish_and_clear();
            report.vectors = Some(figures?);
        }
        (Some(x), Some(y)) => {
            let unlike = |why: String| CliError::bad_input(format_args!("{} and {}: {why}", args.a, args.b));
            report.layers = compare::caches(x, y).map_err(unlike)?;
            report.tokens = Some(x.len());
        }
        (None, Some(_)) | (Some(_), None) => {
            return Err(CliError::bad_input(format_args!(
                "{} and {}: vectors of a file have no layers: expected two .tqk files or arrays, or two snapshots or runs",
                args.a, args.b
            )));
        }
    }
    if let (Compared::Run(a), Compared::Run(b)) = (&a, &b) {
        for layer in &mut report.layers {
            layer.hidden_cosine = Some(a.hidden_cosine(b, layer.layer));
        }
    }
    out.print(&report, human)
}

fn run_arrays(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if args.save.is_some() {
        return Err(CliError::bad_input("--save keeps the cache of a run, and A is an array"));
    }
    let arrays = compare::arrays(&args.a, &args.b)?;
    out.print(&Report { arrays, ..Report::new(args) }, human)
}

fn open(path: &Path) -> Result<Compared, CliError> {
    let mut file = BufReader::new(File::open(path).map_err(|e| CliError::io(path, &e))?);
    let mut first = Vec::new();
    (&mut file).take(8).read_to_end(&mut first).map_err(|e| CliError::io(path, &e))?;
    // The first bytes of a snapshot (SPEC.md).
    if first != *b"\x89TQS\r\n\x1a\n" {
        return Ok(Compared::Codes);
    }
    let cache = KvCache::from_snapshot(&mut first.as_slice().chain(file));
    cache.map(Compared::Snapshot).map_err(|e| CliError::bad_input(format_args!("{}: {e}", path.display())))
}

fn save(side: &Compared, path: &Path) -> Result<(), CliError> {
    match side {
        Compared::Run(run) => run.cache.save(path).map_err(CliError::bad_input),
        Compared::Codes | Compared::Snapshot(_) => {
            Err(CliError::bad_input("--save keeps the cache of a run, and A is a file"))
        }
    }
}

fn human(report: &Report<'_>) -> String {
    if let Some(figures) = &report.vectors {
        let head = ["A and B", "codes", "equal blocks", "cosine", "error"];
        let row = vec![
            format!("{} vectors", grouped(figures.vectors)),
            percent(figures.code_agreement),
            percent(figures.equal_blocks),
            format!("{:.6}", figures.mean_cosine),
            format!("{:.3e}", figures.relative_error),
        ];
        return table(&head, [row]);
    }
    if !report.arrays.is_empty() {
        let rows = report.arrays.iter().map(|ArrayFigures { tensor, numbers, equal_numbers, figures }| {
            let name = if tensor.is_empty() { "A and B" } else { tensor };
            let of = |cell: fn(&Figures) -> String| figures.as_ref().map_or_else(|| "-".to_owned(), cell);
            vec![
                name.to_owned(),
                of(|figures| grouped(figures.vectors)),
                of(|figures| format!("{:.6}", figures.mean_cosine)),
                of(|figures| format!("{:.3e}", figures.relative_error)),
                grouped(*numbers),
                percent(Some(*equal_numbers)),
            ]
        });
        return table(&["tensor", "vectors", "cosine", "error", "numbers", "equal"], rows);
    }
    let rows = report.layers.iter().map(|layer| {
        let of = |figures: &Figures| {
            let error = format!("{:.3e}", figures.relative_error);
            [percent(figures.code_agreement), format!("{:.6}", figures.mean_cosine), error]
        };
        let mut cells = vec![layer.layer.to_string()];
        cells.extend(of(&layer.keys));
        cells.extend(layer.values.iter().flat_map(of));
        cells.extend(layer.hidden_cosine.map(|cosine| format!("{cosine:.6}")));
        cells
    });
    let mut head = vec!["layer", "codes K", "cosine K", "error K"];
    if report.layers.iter().any(|layer| layer.values.is_some()) {
        head.extend(["codes V", "cosine V", "error V"]);
    }
    if report.layers.iter().any(|layer| layer.hidden_cosine.is_some()) {
        head.push("hidden");
    }
    let tokens = grouped(report.tokens.unwrap_or_default() as u64);
    format!("{} and {}, {tokens} tokens\n{}", report.a, report.b, table(&head, rows))
}

/// A share as percent, or `-` if there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", 100.0 * share))
}

//! `tqkv-lab codebook`: the levels of the scalar codecs, exact and as stored bytes.

use serde::Serialize;
use tqkv_cli::error::CliError;
use tqkv_cli::output::{Output, table};
use tqkv_core::unstable::codebook::Exact;
use tqkv_core::{CodecId, HEAD_DIMS};

/// Print the centroids and boundaries of a scalar codebook.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the 16 levels of s4 at head dim 128, then the nested levels of n4
  tqkv-lab codebook --dim 128 --bits 4
  tqkv-lab codebook --dim 128 --bits 4 --nested --json

Values are coordinates of a rotated unit vector, with standard deviation 1/sqrt(D). Code i means level i and \
begins at boundary i-1. Centroids are the exact solution. The levels of the codec are bytes times a unit, with their own \
boundaries.")]
pub(crate) struct Args {
    /// Head dim. The codebook is optimal for its exact distribution.
    #[arg(long, value_name = "D", default_value_t = 128)]
    dim: usize,
    /// Bits per coordinate.
    #[arg(long, value_name = "B")]
    bits: usize,
    /// Print the codebook of n2..n4. Its codes become codes of one bit less when they drop their low bit.
    #[arg(long)]
    nested: bool,
}

#[derive(Serialize)]
struct Report {
    dim: usize,
    bits: usize,
    /// The exact solution.
    centroids: Vec<f64>,
    boundaries: Vec<f64>,
    /// E|x-x^|^2 / |x|^2 of the exact solution on random directions under the plain norm.
    relative_mse: f64,
    /// What the codec of this width stores. No codec has one bit.
    #[serde(flatten)]
    stored: Option<StoredLevels>,
}

#[derive(Serialize)]
struct StoredLevels {
    /// The levels in the codec: `bytes` times `unit`.
    bytes: Vec<i8>,
    unit: f64,
    byte_boundaries: Vec<f64>,
    /// The same error for `bytes`.
    byte_relative_mse: f64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let mut ids =
        CodecId::ALL.iter().filter(|id| id.is_nested() == args.nested && id.codebook(128).is_some());
    let id = ids.find(|id| id.bits() as usize == args.bits);
    let exact = match id {
        Some(id) if args.nested => Exact::solve(*id, args.dim),
        _ if args.nested => None,
        _ => Exact::lloyd_max(args.dim, args.bits),
    };
    let exact = exact.ok_or_else(|| {
        let (dims, widths) =
            (HEAD_DIMS.map(|dim| dim.to_string()).join(", "), if args.nested { "2 to 4" } else { "1 to 5" });
        CliError::bad_input(format_args!(
            "no codebook of {} bits at head dim {}: expected {widths} bits and head dims {dims}",
            args.bits, args.dim
        ))
    })?;
    let sigma = 1.0 / (args.dim as f64).sqrt();
    let report = Report {
        dim: args.dim,
        bits: args.bits,
        centroids: exact.levels().iter().map(|v| v * sigma).collect(),
        boundaries: exact.boundaries().iter().map(|v| v * sigma).collect(),
        relative_mse: exact.relative_mse(),
        stored: id.and_then(|id| id.codebook(args.dim)).map(|book| StoredLevels {
            bytes: book.bytes().to_vec(),
            unit: f64::from(book.unit()) * sigma,
            byte_boundaries: book.boundaries().iter().map(|&v| f64::from(v) * sigma).collect(),
            byte_relative_mse: book.relative_mse(),
        }),
    };
    out.print(&report, human)
}

fn human(report: &Report) -> String {
    let from = |boundaries: &[f64]| {
        std::iter::once("-inf".to_string())
            .chain(boundaries.iter().map(|b| format!("{b:+.8}")))
            .collect::<Vec<_>>()
    };
    let mut head = vec!["code", "exact from", "centroid"];
    let mut rows: Vec<Vec<String>> = from(&report.boundaries)
        .into_iter()
        .zip(&report.centroids)
        .enumerate()
        .map(|(code, (exact, centroid))| vec![code.to_string(), exact, format!("{centroid:+.8}")])
        .collect();
    let mut errors = format!("relative MSE {:.6} on random directions", report.relative_mse);
    if let Some(stored) = &report.stored {
        head.extend(["from", "byte", "level"]);
        for ((row, from), &byte) in rows.iter_mut().zip(from(&stored.byte_boundaries)).zip(&stored.bytes) {
            row.extend([from, byte.to_string(), format!("{:+.8}", f64::from(byte) * stored.unit)]);
        }
        errors.push_str(&format!("; {:.6} with bytes times {:.8}", stored.byte_relative_mse, stored.unit));
    }
    format!("head dim {}, {} bits, {errors}\n{}", report.dim, report.bits, table(&head, rows))
}

//! `tqkv codebook`: the levels of the scalar codecs.

use serde::Serialize;
use tqkv_core::{HEAD_DIMS, codebook};

use crate::error::CliError;
use crate::output::{Output, table};

/// Print the centroids and boundaries of a scalar codebook.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the 16 levels of s4 at head dim 128, then the nested ones of n4
  tqkv codebook --dim 128 --bits 4
  tqkv codebook --dim 128 --bits 4 --nested --json

Values are coordinates of a rotated unit vector, whose standard deviation is 1/sqrt(D); code i stands
for centroid i and begins at boundary i-1.")]
pub(crate) struct Args {
    /// Head dim, for whose exact distribution the codebook is optimal.
    #[arg(long, value_name = "D", default_value_t = 128)]
    dim: usize,
    /// Bits per coordinate.
    #[arg(long, value_name = "B")]
    bits: usize,
    /// The codebook of n1..n4, whose codes lose their low bit to become those of one bit less.
    #[arg(long)]
    nested: bool,
}

#[derive(Serialize)]
struct Report {
    dim: usize,
    bits: usize,
    centroids: Vec<f64>,
    boundaries: Vec<f64>,
    /// Exact E|x-x^|^2 / |x|^2 on random directions under the plain norm.
    relative_mse: f64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let (widest, book) = if args.nested {
        (codebook::MAX_NESTED_BITS, codebook::nested(args.dim, args.bits))
    } else {
        (codebook::MAX_BITS, codebook::scalar(args.dim, args.bits))
    };
    let book = book.ok_or_else(|| {
        let dims = HEAD_DIMS.map(|dim| dim.to_string()).join(", ");
        CliError::bad_input(format_args!(
            "no codebook of {} bits at head dim {}, accepted are 1 to {widest} bits and head dims {dims}",
            args.bits, args.dim
        ))
    })?;
    let sigma = 1.0 / (args.dim as f64).sqrt();
    let coordinates = |values: &[f32]| values.iter().map(|&v| f64::from(v) * sigma).collect();
    let report = Report {
        dim: args.dim,
        bits: args.bits,
        centroids: coordinates(book.levels()),
        boundaries: coordinates(book.boundaries()),
        relative_mse: book.relative_mse(),
    };
    out.print(&report, human)
}

fn human(report: &Report) -> String {
    let from =
        std::iter::once("-inf".to_string()).chain(report.boundaries.iter().map(|b| format!("{b:+.8}")));
    let rows = from.zip(&report.centroids).enumerate();
    let rows = rows.map(|(code, (from, centroid))| vec![code.to_string(), from, format!("{centroid:+.8}")]);
    format!(
        "head dim {}, {} bits, relative MSE {:.6} on random directions\n{}",
        report.dim,
        report.bits,
        report.relative_mse,
        table(&["code", "from", "centroid"], rows)
    )
}

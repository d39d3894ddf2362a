//! Comparison of two dumps of vectors: .npy files, or tensors of .safetensors files.

use std::collections::BTreeSet;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use tqkv_cli::array::Vectors;
use tqkv_cli::error::CliError;

use super::{Alike, Figures};

const SAFETENSORS: &str = "safetensors";

/// Types of numbers that vectors have.
const FLOATS: [Dtype; 4] = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16];

/// Figures of two arrays.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ArrayFigures {
    /// The name of both tensors; empty for arrays that have none.
    pub(crate) tensor: String,
    /// Their similarity.
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// Returns true for the name of an array: `x.npy`, `x.safetensors`, or `x.safetensors:name`.
pub(crate) fn is_array(spec: &str) -> bool {
    let is =
        |path: &str, extension: &str| Path::new(path).extension().is_some_and(|found| found == extension);
    let file = spec.rsplit_once(':').map_or(spec, |(file, _)| file);
    is(spec, "npy") || is(spec, SAFETENSORS) || is(file, SAFETENSORS)
}

/// Compares two arrays, or all tensors whose names two .safetensors files share, in the order of the names.
///
/// # Errors
/// An array that cannot be read, arrays of different shapes, or files that share no name.
pub(crate) fn arrays(a: &str, b: &str) -> Result<Vec<ArrayFigures>, CliError> {
    let is_file = |spec: &str| Path::new(spec).extension().is_some_and(|found| found == SAFETENSORS);
    if !(is_file(a) && is_file(b)) {
        return Ok(vec![ArrayFigures { tensor: String::new(), figures: pair(a, b)? }]);
    }
    let (left, right) = (names(a)?, names(b)?);
    let shared: Vec<_> = left.intersection(&right).collect();
    if shared.is_empty() {
        return Err(CliError::bad_input(format_args!(
            "{a} and {b} have no tensor of the same name: expected dumps of the same vectors"
        )));
    }
    let row = |name: &&String| {
        let figures = pair(&format!("{a}:{name}"), &format!("{b}:{name}"))?;
        Ok(ArrayFigures { tensor: (*name).clone(), figures })
    };
    shared.iter().map(row).collect()
}

/// The names of the tensors of numbers in a file, which may hold others, as tokens.
fn names(path: &str) -> Result<BTreeSet<String>, CliError> {
    let file = Path::new(path);
    let bytes = std::fs::read(file).map_err(|e| CliError::io(file, &e))?;
    let tensors = SafeTensors::deserialize(&bytes);
    let tensors = tensors.map_err(|e| CliError::bad_input(format_args!("{path}: {e}")))?;
    let vectors = tensors.iter().filter(|(_, tensor)| FLOATS.contains(&tensor.dtype()));
    Ok(vectors.map(|(name, _)| name.to_owned()).collect())
}

fn pair(a: &str, b: &str) -> Result<Figures, CliError> {
    let open = |spec: &str| Vectors::open(spec).map_err(|e| CliError::array(spec, &e));
    let (left, right) = (open(a)?, open(b)?);
    let shapes = [&left, &right].map(|array| (array.rows(), array.dim()));
    if shapes[0] != shapes[1] {
        return Err(CliError::bad_input(format_args!(
            "{a} has {} vectors of {} coordinates, {b} has {} of {}: expected dumps of the same vectors",
            shapes[0].0, shapes[0].1, shapes[1].0, shapes[1].1
        )));
    }
    let (mut alike, dim) = (Alike::default(), left.dim());
    let (mut x, mut y) = (vec![0.0; dim], vec![0.0; dim]);
    for row in 0..left.rows() {
        left.read_row(row, &mut x).map_err(|e| CliError::array(a, &e))?;
        right.read_row(row, &mut y).map_err(|e| CliError::array(b, &e))?;
        alike.rows(dim, &x, &y);
    }
    Ok(alike.figures())
}

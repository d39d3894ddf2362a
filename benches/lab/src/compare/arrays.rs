//! Comparison of two dumps of vectors or codes: .npy files, or tensors of .safetensors files.

use std::collections::BTreeSet;
use std::path::Path;

use safetensors::SafeTensors;
use serde::Serialize;
use tqkv_cli::array::{Numbers, Vectors, WholeNumbers};
use tqkv_cli::error::CliError;

use super::{Alike, Figures};

const SAFETENSORS: &str = "safetensors";

/// Figures of two arrays.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ArrayFigures {
    /// The name of both tensors; empty for arrays that have none.
    pub(crate) tensor: String,
    /// Numbers compared.
    pub(crate) numbers: u64,
    /// Share of equal numbers.
    pub(crate) equal_numbers: f64,
    /// Their similarity. Whole numbers, as codes are, have none.
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
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
        return Ok(vec![pair(String::new(), a, b)?]);
    }
    let (left, right) = (names(a)?, names(b)?);
    let shared: Vec<_> = left.intersection(&right).collect();
    if shared.is_empty() {
        return Err(CliError::bad_input(format_args!(
            "{a} and {b} have no tensor of the same name: expected dumps of the same vectors"
        )));
    }
    let row = |name: &&String| pair((*name).clone(), &format!("{a}:{name}"), &format!("{b}:{name}"));
    shared.iter().map(row).collect()
}

/// The names of the tensors in a file.
fn names(path: &str) -> Result<BTreeSet<String>, CliError> {
    let file = Path::new(path);
    let bytes = std::fs::read(file).map_err(|e| CliError::io(file, &e))?;
    let tensors = SafeTensors::deserialize(&bytes);
    let tensors = tensors.map_err(|e| CliError::bad_input(format_args!("{path}: {e}")))?;
    Ok(tensors.iter().map(|(name, _)| name.to_owned()).collect())
}

fn pair(tensor: String, a: &str, b: &str) -> Result<ArrayFigures, CliError> {
    let open = |spec: &str| Numbers::open(spec).map_err(|e| CliError::array(spec, &e));
    match (open(a)?, open(b)?) {
        (Numbers::Vectors(left), Numbers::Vectors(right)) => vectors(tensor, (a, &left), (b, &right)),
        (Numbers::Whole(left), Numbers::Whole(right)) => whole(tensor, (a, &left), (b, &right)),
        (Numbers::Whole(_), Numbers::Vectors(_)) => Err(mixed(a, b)),
        (Numbers::Vectors(_), Numbers::Whole(_)) => Err(mixed(b, a)),
    }
}

fn mixed(whole: &str, other: &str) -> CliError {
    CliError::bad_input(format_args!(
        "{whole} has whole numbers, {other} has not: expected codes in both, or vectors in both"
    ))
}

fn whole(
    tensor: String,
    (a, left): (&str, &WholeNumbers),
    (b, right): (&str, &WholeNumbers),
) -> Result<ArrayFigures, CliError> {
    if left.shape() != right.shape() {
        return Err(CliError::bad_input(format_args!(
            "{a} has the shape {:?}, {b} has {:?}: expected dumps of the same codes",
            left.shape(),
            right.shape()
        )));
    }
    let (mut numbers, mut equal) = (0, 0);
    for (x, y) in left.iter().zip(right.iter()) {
        numbers += 1;
        equal += u64::from(x == y);
    }
    Ok(ArrayFigures { tensor, numbers, equal_numbers: share(equal, numbers), figures: None })
}

/// The share of `equal` numbers; all, if there are none.
fn share(equal: u64, numbers: u64) -> f64 {
    if numbers == 0 { 1.0 } else { equal as f64 / numbers as f64 }
}

fn vectors(
    tensor: String,
    (a, left): (&str, &Vectors),
    (b, right): (&str, &Vectors),
) -> Result<ArrayFigures, CliError> {
    let shapes = [left, right].map(|array| (array.rows(), array.dim()));
    if shapes[0] != shapes[1] {
        return Err(CliError::bad_input(format_args!(
            "{a} has {} vectors of {} coordinates, {b} has {} of {}: expected dumps of the same vectors",
            shapes[0].0, shapes[0].1, shapes[1].0, shapes[1].1
        )));
    }
    let (mut alike, mut equal, dim) = (Alike::default(), 0, left.dim());
    let (mut x, mut y) = (vec![0.0; dim], vec![0.0; dim]);
    for row in 0..left.rows() {
        left.read_row(row, &mut x).map_err(|e| CliError::array(a, &e))?;
        right.read_row(row, &mut y).map_err(|e| CliError::array(b, &e))?;
        equal += x.iter().zip(&y).filter(|(x, y)| x == y).count() as u64;
        alike.rows(dim, &x, &y);
    }
    let numbers = (left.rows() * dim) as u64;
    let figures = Some(alike.figures());
    Ok(ArrayFigures { tensor, numbers, equal_numbers: share(equal, numbers), figures })
}

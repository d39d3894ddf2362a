//! Eigenvectors of symmetric matrices, in f64. The bits are equal on every machine: no step depends on the
//! instruction set, and square roots are those of `libm`.

use nalgebra::{DMatrix, SymmetricEigen};

/// QR steps per eigenvalue before the iteration gives up. Three are already many.
const MOST_STEPS: usize = 64;

/// The eigenvalues, largest first, and their eigenvectors one after the other. Reads the lower triangle of
/// the matrix (`[dim, dim]`). `None` if the iteration does not converge, as with numbers that are not finite.
pub fn symmetric(matrix: &[f64], dim: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    if matrix.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let matrix = DMatrix::from_row_slice(dim, dim, matrix);
    let found = SymmetricEigen::try_new(matrix, f64::EPSILON, MOST_STEPS * dim)?;
    let mut order: Vec<usize> = (0..dim).collect();
    order.sort_by(|a, b| found.eigenvalues[*b].total_cmp(&found.eigenvalues[*a]));
    let vectors = found.eigenvectors.as_slice();
    let values = order.iter().map(|column| found.eigenvalues[*column]).collect();
    let columns = order.iter().flat_map(|column| &vectors[column * dim..(column + 1) * dim]);
    Some((values, columns.copied().collect()))
}

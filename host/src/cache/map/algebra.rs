//! Triangular factors, products and inverses of small matrices, row by row in f64. Every loop is by element,
//! so the compiler makes vector code of it and the bits are equal on every machine. Call it within
//! [`tqkv_simd::Level::plain`].

/// Subtracts `factor` times `row`.
#[inline(always)]
fn subtract(sums: &mut [f64], factor: f64, row: &[f64]) {
    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum -= factor * x);
}

/// Replaces the lower triangle of a symmetric matrix by its Cholesky factor, and the upper one by zeros.
/// `None` if the matrix is not positive definite.
#[inline(always)]
pub(super) fn factorise(matrix: &mut [f64], dim: usize) -> Option<()> {
    for i in 0..dim {
        let pivot = matrix[i * (dim + 1)];
        if !(pivot.is_finite() && pivot > 0.0) {
            return None;
        }
        let root = pivot.sqrt();
        matrix[i * (dim + 1)] = root;
        let column: Vec<f64> = (i + 1..dim).map(|row| matrix[row * dim + i] / root).collect();
        for (row, x) in matrix.chunks_exact_mut(dim).skip(i + 1).zip(&column) {
            let own = row[i + 1..].iter_mut().zip(&column);
            own.for_each(|(sum, y)| *sum -= x * y);
            row[i] = *x;
        }
        matrix[i * dim + i + 1..(i + 1) * dim].fill(0.0);
    }
    Some(())
}

/// The product of a lower triangular matrix and another one.
#[inline(always)]
pub(super) fn product(lower: &[f64], matrix: &[f64], dim: usize) -> Vec<f64> {
    let mut product = vec![0.0; dim * dim];
    for (i, (factors, out)) in lower.chunks_exact(dim).zip(product.chunks_exact_mut(dim)).enumerate() {
        for (x, row) in factors[..=i].iter().zip(matrix.chunks_exact(dim)) {
            subtract(out, -x, row);
        }
    }
    product
}

/// L' Q L for a lower triangular L. Only its lower triangle is right.
#[inline(always)]
pub(super) fn between(queries: &[f64], lower: &[f64], dim: usize) -> Vec<f64> {
    let mut right = vec![0.0; dim * dim];
    for (row, out) in queries.chunks_exact(dim).zip(right.chunks_exact_mut(dim)) {
        for (i, (x, lower)) in row.iter().zip(lower.chunks_exact(dim)).enumerate() {
            subtract(&mut out[..=i], -x, &lower[..=i]);
        }
    }
    let mut product = vec![0.0; dim * dim];
    for (k, (lower, right)) in lower.chunks_exact(dim).zip(right.chunks_exact(dim)).enumerate() {
        for (i, (x, out)) in lower[..=k].iter().zip(product.chunks_exact_mut(dim)).enumerate() {
            subtract(&mut out[..=i], -x, &right[..=i]);
        }
    }
    product
}

/// Replaces a matrix X by the solution Y of L' Y = X.
#[inline(always)]
pub(super) fn solve(lower: &[f64], matrix: &mut [f64], dim: usize) {
    for i in (0..dim).rev() {
        let (above, rest) = matrix.split_at_mut(i * dim);
        let row = &mut rest[..dim];
        let factors = &lower[i * dim..=i * (dim + 1)];
        row.iter_mut().for_each(|x| *x /= factors[i]);
        for (x, out) in factors[..i].iter().zip(above.chunks_exact_mut(dim)) {
            subtract(out, *x, row);
        }
    }
}

/// The transpose of a matrix.
#[inline(always)]
pub(super) fn transposed(matrix: &[f64], dim: usize) -> Vec<f64> {
    (0..dim * dim).map(|at| matrix[at % dim * dim + at / dim]).collect()
}

/// The inverse of a matrix, by elimination with pivots. `None` if there is none.
#[inline(always)]
pub(super) fn inverse(mut matrix: Vec<f64>, dim: usize) -> Option<Vec<f64>> {
    let mut pivots = Vec::with_capacity(dim);
    for i in 0..dim {
        let size = |row: &usize| matrix[row * dim + i].abs();
        let pivot = (i..dim).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        let divisor = matrix[pivot * dim + i];
        if !(divisor.is_finite() && divisor != 0.0) {
            return None;
        }
        pivots.push(pivot);
        for column in 0..dim {
            matrix.swap(i * dim + column, pivot * dim + column);
        }
        // The column of the pivot becomes that of the inverse, in place.
        matrix[i * (dim + 1)] = 1.0;
        let own: Vec<f64> = matrix[i * dim..(i + 1) * dim].iter().map(|x| x / divisor).collect();
        for (_, row) in matrix.chunks_exact_mut(dim).enumerate().filter(|(row, _)| *row != i) {
            let factor = std::mem::replace(&mut row[i], 0.0);
            subtract(row, factor, &own);
        }
        matrix[i * dim..(i + 1) * dim].copy_from_slice(&own);
    }
    for (i, pivot) in pivots.into_iter().enumerate().rev() {
        matrix.chunks_exact_mut(dim).for_each(|row| row.swap(i, pivot));
    }
    Some(matrix)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOWER: [f64; 9] = [2.0, 0.0, 0.0, 1.0, 3.0, 0.0, -1.0, 0.5, 1.5];
    const QUERIES: [f64; 9] = [4.0, 1.0, 0.5, 1.0, 3.0, -1.0, 0.5, -1.0, 2.0];

    fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
        (0..9).map(|at| (0..3).map(|k| a[at / 3 * 3 + k] * b[k * 3 + at % 3]).sum()).collect()
    }

    fn is_near(a: &[f64], b: &[f64]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12)
    }

    #[test]
    fn factors_and_products_are_those_of_the_definition() {
        let upper = transposed(&LOWER, 3);
        let mut matrix = times(&LOWER, &upper);
        factorise(&mut matrix, 3).unwrap();
        assert!(is_near(&matrix, &LOWER), "{matrix:?}");
        assert!(factorise(&mut [1.0, 2.0, 2.0, 1.0], 2).is_none());
        assert!(factorise(&mut [f64::NAN], 1).is_none());
        assert!(is_near(&product(&LOWER, &QUERIES, 3), &times(&LOWER, &QUERIES)));
        let (got, want) = (between(&QUERIES, &LOWER, 3), times(&upper, &times(&QUERIES, &LOWER)));
        (0..3).for_each(|i| assert!(is_near(&got[3 * i..=4 * i], &want[3 * i..=4 * i]), "row {i}"));
        let mut solved = times(&upper, &QUERIES);
        solve(&LOWER, &mut solved, 3);
        assert!(is_near(&solved, &QUERIES), "{solved:?}");
    }

    #[test]
    fn an_inverse_is_exact_and_needs_one() {
        for matrix in
            [[0.0, 2.0, 1.0, 1.0, 1.0, 0.0, 3.0, 0.0, 1.0], [0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 5.0, 4.0, 1.0]]
        {
            let inverse = inverse(matrix.to_vec(), 3).unwrap();
            let one = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
            assert!(is_near(&times(&matrix, &inverse), &one), "{inverse:?}");
        }
        assert!(inverse(vec![1.0, 2.0, 2.0, 4.0], 2).is_none());
    }
}

//! Dot products of f32 rows.

/// Dot product of two slices of equal length. It has fixed lanes, so the compiler can vectorise it.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (left, right) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (x, y) in left.0.iter().zip(right.0) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    let four: [f32; 4] = std::array::from_fn(|i| (lanes[i] + lanes[i + 4]) + (lanes[i + 8] + lanes[i + 12]));
    let whole = (four[0] + four[2]) + (four[1] + four[3]);
    whole + left.1.iter().zip(right.1).map(|(p, q)| p * q).sum::<f32>()
}

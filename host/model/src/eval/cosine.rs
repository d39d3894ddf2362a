//! How alike two vectors are.

pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (mut dot, mut aa, mut bb) = (0.0f64, 0.0f64, 0.0f64);
    for (x, y) in a.iter().zip(b) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    // Two zero vectors agree.
    if aa == 0.0 && bb == 0.0 { 1.0 } else { dot / (aa * bb).sqrt().max(f64::MIN_POSITIVE) }
}

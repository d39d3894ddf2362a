//! Slow, exact definitions for comparison.

/// |x - y|^2 / |x|^2
pub fn relative_mse(x: &[f32], y: &[f32]) -> f64 {
    let error: f64 = x.iter().zip(y).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    error / energy(x)
}

/// |x|^2
pub fn energy(x: &[f32]) -> f64 {
    x.iter().map(|a| f64::from(*a).powi(2)).sum()
}

/// <x, y>
pub fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The natural logarithm of the sum of the exponentials of one query's logits, scaled by 1/sqrt(dim).
pub fn log_sum_exp(q: &[f32], keys: &[Vec<f32>]) -> f64 {
    let scale = 1.0 / (q.len() as f64).sqrt();
    keys.iter().map(|k| (dot(q, k) * scale).exp()).sum::<f64>().ln()
}

/// Softmax attention of one query over `keys` and `values`, logits scaled by 1/sqrt(dim).
pub fn attention(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f64> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let logits: Vec<f64> = keys.iter().map(|k| dot(q, k) * scale).collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (w, v) in weights.iter().zip(values) {
        for (o, x) in out.iter_mut().zip(v) {
            *o += w / sum * f64::from(*x);
        }
    }
    out
}

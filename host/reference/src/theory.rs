//! Theoretical errors: bounds at a rate, and expectations of formats.
//!
//! Errors are relative. The squared norm of an error is divided by the squared norm of the vector. The
//! squared error of a dot product is divided by |q|^2 |x|^2 / d, the mean square of dot products of random
//! directions. Rates are bits of codes per value, norms not counted.

use crate::levels::Levels;
use std::f64::consts::{PI, SQRT_2};
use tqkv_core::unstable::codebook::Exact;

/// Shannon's bound: no code of this rate has a smaller squared error on Gaussian values. It is 4^-rate.
pub fn shannon(rate: f64) -> f64 {
    libm::exp2(-2.0 * rate)
}

/// Theorem 1 of arXiv 2504.19874, for the scalar code after a random rotation: sqrt(3) pi / 2 4^-rate. Its
/// proof needs many levels: at one bit a scalar code has .363, and the bound gives .680.
pub fn error_bound(rate: f64) -> f64 {
    libm::sqrt(3.0) * PI / 2.0 * shannon(rate)
}

/// Theorem 2, for `p2`, `p3`, `p4`: the mean squared error of a dot product over |q|^2 |x|^2 / d is at most
/// sqrt(3) pi^2 4^-rate.
pub fn dot_bound(rate: f64) -> f64 {
    libm::sqrt(3.0) * PI * PI * shannon(rate)
}

/// The squared error of the Lloyd-Max quantiser of `bits` bits, 1 to 5, for the exact law of a head dim.
pub fn lloyd_max(dim: usize, bits: usize) -> Option<f64> {
    Exact::lloyd_max(dim, bits).map(|exact| exact.relative_mse())
}

/// The squared error of levels in sigma units, on the exact law of a head dim, for formats that give decoded
/// vectors their norm back.
///
/// Let y have norm sqrt(d), and Q be its levels. Rescaling Q to the norm of y removes the error of its
/// length. The error becomes (|y - Q|^2 - (sqrt(d) - |Q|)^2) / (sqrt(d) |Q|).
///
/// The mean of (sqrt(d) - |Q|)^2 is the square of its mean plus its variance, which is a share of 1/d. |y| is
/// fixed, so the variance of Q^2 - y^2 counts only in the part that y^2 does not explain.
pub(crate) fn of_kept_norm(levels: &Levels, dim: usize) -> f64 {
    const STEPS: usize = 1 << 14;
    let d = dim as f64;
    let edge = libm::sqrt(d);
    let point = |step| edge * ((f64::from(step as u32) + 0.5) / STEPS as f64 * 2.0 - 1.0);
    let density = |y: f64| libm::pow(1.0 - y * y / d, (d - 3.0) / 2.0);
    let mass: f64 = (0..STEPS).map(|step| density(point(step))).sum();
    let mean = |of: &dyn Fn(f64, f64) -> f64| {
        let term = |step| {
            let y = point(step);
            density(y) * of(y, levels.level(levels.code(y)))
        };
        (0..STEPS).map(term).sum::<f64>() / mass
    };
    let (error, square) = (mean(&|y, q| (y - q) * (y - q)), mean(&|_, q| q * q));
    // The mean of y^2 is 1.
    let gain = square - 1.0;
    let (spread, of_y) =
        (mean(&|y, _| (y * y - 1.0) * (y * y - 1.0)), mean(&|y, q| (q * q - y * y) * (y * y - 1.0)));
    let variance = mean(&|y, q| libm::pow(q * q - y * y - gain, 2.0)) - of_y * of_y / spread;
    let length = libm::sqrt(square);
    (error - (1.0 - length) * (1.0 - length) - variance / (4.0 * square * d)) / length
}

/// The squared error of a residual of norm 1. It is kept as d codes of `bits` bits, 1 to 4, of its products
/// with N(0, 1) rows.
///
/// With c = E[g Q(g)] the error is (E[g^2 Q^2] + (d - 1) E[Q^2]) / (d c^2) - 1 / d. For signs that is pi/2 -
/// 1/d.
pub fn residual_error(bits: usize, dim: usize) -> f64 {
    let levels = Levels::gaussian(bits);
    let below = |x: f64| 0.5 * libm::erfc(-x / SQRT_2);
    let density =
        |x: f64| if x.is_finite() { x * libm::exp(-x * x / 2.0) / libm::sqrt(2.0 * PI) } else { 0.0 };
    let mut cuts = vec![f64::NEG_INFINITY];
    cuts.extend(levels.levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0));
    cuts.push(f64::INFINITY);
    let (mut square, mut weighted) = (0.0, 0.0);
    for (level, cut) in levels.levels.iter().zip(cuts.windows(2)) {
        let probability = below(cut[1]) - below(cut[0]);
        square += level * level * probability;
        weighted += level * level * (probability - density(cut[1]) + density(cut[0]));
    }
    let (d, c) = (dim as f64, levels.correlation());
    (weighted + (d - 1.0) * square) / (d * c * c) - 1.0 / d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_the_paper() {
        // Section 1.2 of the paper gives rounded figures for 1 to 4 bits: D of the scalar code, and 1.57,
        // .56, .18, .047 over d for dot products.
        for (bits, error, dot) in [(1, 0.36, 1.57), (2, 0.117, 0.56), (3, 0.03, 0.18), (4, 0.009, 0.047)] {
            let exact = lloyd_max(1024, bits).unwrap();
            assert!((exact / error - 1.0).abs() < 0.16, "{bits}: {exact}");
            assert!(exact < error_bound(bits as f64) && exact > shannon(bits as f64));
            let scalar = if bits == 1 { 1.0 } else { lloyd_max(1024, bits - 1).unwrap() };
            let product = scalar * residual_error(1, 1024);
            assert!(
                (product / dot - 1.0).abs() < 0.16 && product < dot_bound(bits as f64),
                "{bits}: {product}"
            );
        }
        assert_eq!(lloyd_max(128, 6), None);
        assert_eq!(lloyd_max(128, 0), None);
    }

    #[test]
    fn wider_residuals_lose_less() {
        assert!((residual_error(1, 128) - (PI / 2.0 - 1.0 / 128.0)).abs() < 1e-6);
        let errors: Vec<f64> = (1..=4).map(|bits| residual_error(bits, 128)).collect();
        assert!(errors.windows(2).all(|pair| pair[1] < pair[0]) && errors[3] > 1.0, "{errors:?}");
    }
}

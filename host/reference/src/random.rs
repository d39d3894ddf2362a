//! Seeded normal numbers with the same bits on every platform.

use std::f64::consts::TAU;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1) from 53 bits of a draw.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `count` draws from N(0, 1), in pairs: Box-Muller, cosine before sine.
pub(crate) fn normals(seed: u64, count: usize) -> Vec<f64> {
    let mut draws = SplitMix::new(seed);
    let pair = |_| {
        // 1 - u is above 0.
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - draws.uniform()));
        let (sine, cosine) = libm::sincos(TAU * draws.uniform());
        [radius * cosine, radius * sine]
    };
    let mut normals: Vec<f64> = (0..count.div_ceil(2)).flat_map(pair).collect();
    normals.truncate(count);
    normals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_normal_law() {
        let draws = normals(7, 200_001);
        assert_eq!(draws.len(), 200_001);
        let mean = |power: i32| draws.iter().map(|x| x.powi(power)).sum::<f64>() / draws.len() as f64;
        assert!(mean(1).abs() < 0.01, "{}", mean(1));
        assert!((mean(2) - 1.0).abs() < 0.01 && (mean(4) - 3.0).abs() < 0.1, "{} {}", mean(2), mean(4));
    }

    /// Figures of another implementation (`tests/reference/codecs.py`).
    #[test]
    fn the_first_draws_of_seed_42() {
        let draws = normals(42, 3);
        for (draw, expected) in
            draws.iter().zip([0.882_248_906_222_268_8, 1.388_473_285_287_707, -0.450_849_875_718_860_1])
        {
            assert!((draw - expected).abs() < 1e-15, "{draws:?}");
        }
    }
}

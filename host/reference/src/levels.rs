//! Ascending tables of levels in sigma units, and the search for the nearest level.

use tqkv_core::unstable::codebook::Exact;

/// Positive halves of the Lloyd-Max quantisers of N(0, 1), 1 to 4 bits.
const GAUSSIAN: [&[f64]; 4] = [
    &[0.797_884_6],
    &[0.452_780_0, 1.510_417_6],
    &[0.245_094_2, 0.756_005_3, 1.343_909_3, 2.151_945_7],
    &[0.128_395_0, 0.388_048_3, 0.656_759_1, 0.942_340_5, 1.256_231_2, 1.618_046_4, 2.069_017_2, 2.732_589_6],
];

/// Levels, and the boundaries half-way between neighbours.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    pub(crate) levels: Vec<f64>,
    boundaries: Vec<f64>,
}

impl Levels {
    /// Levels from their positive half, ascending.
    pub(crate) fn symmetric(half: &[f64]) -> Self {
        let levels: Vec<f64> = half.iter().rev().map(|l| -l).chain(half.iter().copied()).collect();
        let boundaries = levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        Self { levels, boundaries }
    }

    /// The Lloyd-Max quantiser of N(0, 1), 1 to 4 bits.
    pub(crate) fn gaussian(bits: usize) -> Self {
        Self::symmetric(GAUSSIAN[bits - 1])
    }

    /// The Lloyd-Max quantiser for the exact law of a head dim, 1 to 5 bits. `None` for other head dims.
    pub(crate) fn exact(dim: usize, bits: usize) -> Option<Self> {
        let exact = Exact::lloyd_max(dim, bits)?;
        Some(Self { levels: exact.levels().to_vec(), boundaries: exact.boundaries().to_vec() })
    }

    /// The code of a value. A value on a boundary gets the code above it.
    pub(crate) fn code(&self, value: f64) -> u8 {
        self.boundaries.iter().map(|&boundary| u8::from(value >= boundary)).sum()
    }

    pub(crate) fn level(&self, code: u8) -> f64 {
        self.levels[usize::from(code)]
    }

    /// E[g Q(g)] for g from N(0, 1): the sum over levels of the level times the integral of g over its cell.
    pub(crate) fn correlation(&self) -> f64 {
        let density = |x: f64| libm::exp(-x * x / 2.0) / libm::sqrt(std::f64::consts::TAU);
        let (mut sum, mut below) = (0.0, 0.0);
        for (i, level) in self.levels.iter().enumerate() {
            let above = self.boundaries.get(i).map_or(0.0, |&boundary| density(boundary));
            sum += level * (below - above);
            below = above;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantiser_of_centroids_correlates_by_what_it_explains() {
        // These are 1 - D of the classic quantisers (Max, 1960).
        for (bits, distortion) in [(1, 0.363_38), (2, 0.117_48), (3, 0.034_548), (4, 0.009_497_3)] {
            let correlation = Levels::gaussian(bits).correlation();
            assert!((correlation - (1.0 - distortion)).abs() < 2e-5, "{bits}: {correlation}");
        }
    }

    #[test]
    fn codes_ascend_and_a_boundary_belongs_above() {
        let levels = Levels::gaussian(2);
        let codes: Vec<u8> = [-9.0, -0.98, 0.0, 0.97, 0.99].map(|x| levels.code(x)).to_vec();
        assert_eq!(codes, [0, 1, 2, 2, 3]);
        assert!(Levels::exact(100, 3).is_none());
        assert_eq!(Levels::exact(128, 5).unwrap().levels.len(), 32);
    }
}

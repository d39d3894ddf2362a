//! The law of one coordinate of a random unit vector, in `const fn` arithmetic.
//!
//! After a random rotation, each coordinate of a unit vector in d dimensions has a density proportional to
//! (1 - x^2)^((d-3)/2) (TurboQuant, Lemma 1). This file integrates the density, and x times the density, over
//! an interval. Everything is computed in f64, in one order, so tables are the same on every target.

/// Nodes and weights of the 8-point Gauss-Legendre rule on [-1, 1], positive half.
const NODES: [f64; 4] =
    [0.183_434_642_495_649_8, 0.525_532_409_916_329, 0.796_666_477_413_626_7, 0.960_289_856_497_536_2];
const WEIGHTS: [f64; 4] =
    [0.362_683_783_378_362, 0.313_706_645_877_887_3, 0.222_381_034_453_374_47, 0.101_228_536_290_376_26];

/// Square root by Newton's iteration from above; `x` is 0 or not small.
pub(crate) const fn sqrt(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut y = if x > 1.0 { x } else { 1.0 };
    loop {
        let next = 0.5 * (y + x / y);
        if next >= y {
            return y;
        }
        y = next;
    }
}

const fn powi(mut base: f64, mut exponent: u32) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// The coordinate law in `dim` dimensions (even), normalised so that the whole line has mass 1.
#[derive(Clone, Copy)]
pub(super) struct Beta {
    dim: u32,
    mass: f64,
}

impl Beta {
    pub(super) const fn new(dim: usize) -> Self {
        // Integral of cos^(d-2) over a half turn: pi * 1/2 * 3/4 * ... * (d-3)/(d-2).
        let (mut mass, mut k) = (core::f64::consts::PI, 1);
        while k <= (dim - 2) / 2 {
            mass *= (2 * k - 1) as f64 / (2 * k) as f64;
            k += 1;
        }
        Self { dim: dim as u32, mass }
    }

    /// Density at `x` in [-1, 1].
    pub(super) const fn density(self, x: f64) -> f64 {
        let c = 1.0 - x * x;
        if c <= 0.0 {
            return 0.0;
        }
        powi(c, (self.dim - 4) / 2) * sqrt(c) / self.mass
    }

    /// Probability of `[a, b]`; `b - a` is at most about two standard deviations.
    pub(super) const fn probability(self, a: f64, b: f64) -> f64 {
        let (mid, half) = (0.5 * (a + b), 0.5 * (b - a));
        let (mut sum, mut i) = (0.0, 0);
        while i < 4 {
            sum += WEIGHTS[i] * (self.density(mid - half * NODES[i]) + self.density(mid + half * NODES[i]));
            i += 1;
        }
        sum * half
    }

    /// Integral of x times the density over `[a, b]`, in closed form.
    pub(super) const fn first_moment(self, a: f64, b: f64) -> f64 {
        (self.tail_moment(a) - self.tail_moment(b)) / ((self.dim - 1) as f64 * self.mass)
    }

    const fn tail_moment(self, x: f64) -> f64 {
        let c = 1.0 - x * x;
        if c <= 0.0 { 0.0 } else { powi(c, (self.dim - 2) / 2) * sqrt(c) }
    }
}

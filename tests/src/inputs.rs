//! Test vectors: random directions, and inputs that break codecs.

/// A seeded source of Gaussian vectors.
#[derive(Debug)]
pub struct Gaussian {
    random: fastrand::Rng,
}

impl Gaussian {
    /// Makes the generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed) }
    }

    /// One standard normal value (Box-Muller).
    pub fn value(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.random.f64()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.random.f64()).cos()) as f32
    }

    /// A vector of independent standard normal values: a random direction.
    pub fn vector(&mut self, dim: usize) -> Vec<f32> {
        (0..dim).map(|_| self.value()).collect()
    }

    /// A whole number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.random.usize(..bound)
    }
}

/// Named vectors that broke other codecs.
pub fn edge_cases(dim: usize) -> Vec<(String, Vec<f32>)> {
    let mut cases = vec![
        ("zeros".to_string(), vec![0.0; dim]),
        ("negative zeros".to_string(), vec![-0.0; dim]),
        ("offset".to_string(), vec![3.0; dim]),
        ("alternation".to_string(), (0..dim).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect()),
        ("denormals".to_string(), vec![1e-40; dim]),
        ("tiny".to_string(), vec![1e-20; dim]),
        ("smallest f16 norm".to_string(), one_hot(dim, 0, 6e-8)),
        ("largest f16 norm".to_string(), one_hot(dim, dim - 1, 60_000.0)),
        ("one hot".to_string(), one_hot(dim, dim / 2, 1.0)),
        ("two hot".to_string(), {
            let mut x = one_hot(dim, 1, 1.0);
            x[dim - 2] = -1.0;
            x
        }),
        ("ramp".to_string(), (0..dim).map(|i| i as f32 - dim as f32 / 2.0).collect()),
    ];
    let mut gaussian = Gaussian::new(dim as u64);
    let mut outliers = gaussian.vector(dim);
    for i in [3, dim / 3, dim / 2, dim - 1] {
        outliers[i] *= 50.0;
    }
    cases.push(("outlier channels".to_string(), outliers));
    cases.push(("gaussian".to_string(), gaussian.vector(dim)));
    cases
}

/// A vector with one coordinate set.
pub fn one_hot(dim: usize, i: usize, value: f32) -> Vec<f32> {
    let mut x = vec![0.0; dim];
    x[i] = value;
    x
}

/// Walsh function `row` in `dim` coordinates: a row of the plain Sylvester matrix.
pub fn walsh(dim: usize, row: usize) -> Vec<f32> {
    (0..dim).map(|i| if (i & row).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }).collect()
}

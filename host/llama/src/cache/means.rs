//! The means that are subtracted from the keys of a stream before they are encoded, one per KV head.
//!
//! Each is the mean of the first [`MEAN_TOKENS`] keys that leave the exact rows, as in the library's cache.
//! It stays the same until the stream is cleared, also when one of these slots is overwritten.

/// Number of keys in a mean.
pub(super) const MEAN_TOKENS: usize = 64;

/// Least share of the keys' energy that a mean must hold to be used; the value of the library's cache.
const LEAST_SHARE: f32 = 0.05;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Means {
    /// Values have none.
    Off,
    /// The first keys have not left yet.
    Learning,
    /// `[heads, dim]`; zeros for heads without a mean.
    Known(Vec<f32>),
}

impl Means {
    /// The mean of head `head`; empty unless the means are known.
    pub(super) fn of(&self, head: usize, dim: usize) -> &[f32] {
        match self {
            Self::Known(means) => &means[head * dim..(head + 1) * dim],
            _ => &[],
        }
    }
}

/// The mean of vectors (`[n, dim]`); zeros if it holds too small a share of their energy.
pub(super) fn mean_of(x: &[f32], dim: usize) -> Vec<f32> {
    let (mut mean, count) = (vec![0.0; dim], (x.len() / dim).max(1) as f32);
    for x in x.chunks_exact(dim) {
        mean.iter_mut().zip(x).for_each(|(mean, x)| *mean += x / count);
    }
    let energy: f32 = x.iter().map(|x| x * x).sum();
    let held: f32 = mean.iter().map(|x| x * x).sum::<f32>() * count;
    if !held.is_finite() || held < LEAST_SHARE * energy || energy == 0.0 {
        mean.fill(0.0);
    }
    mean
}

/// Subtracts a mean from vectors (`[n, dim]`); an empty mean changes nothing.
pub(super) fn subtract(x: &mut [f32], mean: &[f32]) {
    if !mean.is_empty() {
        for x in x.chunks_exact_mut(mean.len()) {
            x.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
        }
    }
}

/// Adds a mean to vectors (`[n, dim]`); an empty mean changes nothing.
pub(super) fn add(x: &mut [f32], mean: &[f32]) {
    if !mean.is_empty() {
        for x in x.chunks_exact_mut(mean.len()) {
            x.iter_mut().zip(mean).for_each(|(x, mean)| *x += mean);
        }
    }
}

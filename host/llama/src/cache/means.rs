//! The means that are taken off the keys of a stream before they are encoded, one for each KV head.
//!
//! Each is the mean of the first [`MEAN_TOKENS`] keys that leave the exact rows, as in the cache of the
//! library, and stays the same until the stream is cleared. A slot that is overwritten does not leave the
//! mean.

/// Keys whose mean is taken.
pub(super) const MEAN_TOKENS: usize = 64;

/// Share of the energy in the mean from which it is worth its while; that of the library's cache.
const LEAST_SHARE: f32 = 0.05;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Means {
    /// Values have none.
    Off,
    /// Waiting for the first keys.
    Learning,
    /// `[heads, dim]`; zeros of heads that are not centred.
    Known(Vec<f32>),
}

impl Means {
    /// The mean of head `head`; empty where there is none.
    pub(super) fn of(&self, head: usize, dim: usize) -> &[f32] {
        match self {
            Self::Known(means) => &means[head * dim..(head + 1) * dim],
            _ => &[],
        }
    }
}

/// The mean of vectors (`[n, dim]`), or zeros where it holds too little of their energy.
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

/// Takes a mean off vectors; an empty one is zero.
pub(super) fn subtract(x: &mut [f32], mean: &[f32]) {
    if !mean.is_empty() {
        for x in x.chunks_exact_mut(mean.len()) {
            x.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
        }
    }
}

/// Adds a mean to vectors; an empty one is zero.
pub(super) fn add(x: &mut [f32], mean: &[f32]) {
    if !mean.is_empty() {
        for x in x.chunks_exact_mut(mean.len()) {
            x.iter_mut().zip(mean).for_each(|(x, mean)| *x += mean);
        }
    }
}

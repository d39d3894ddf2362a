//! The means that are subtracted from the keys or the values of a stream before they are encoded, one per KV
//! head.
//!
//! Each is the mean of the first [`life::MEAN_TOKENS`] vectors that leave the exact rows, as in
//! [`crate::cache`].
//! It stays the same until the stream is cleared, even if one of these slots is overwritten.
//!
//! A saved state holds decoded vectors and no means. Means lie on a grid that is coarse beside the f16 rounding
//! of decoded vectors, so that [`recover`] finds the same means again. With them, vectors become the same codes
//! again.

use super::format::StoreSide;
use crate::cache::life;
use crate::cache::spec::Centring;
use half::f16;
use tqkv_core::CodecId;

/// Steps of a mean's grid in the spread of the vectors, at least. The rounding adds less than 1/48,000 to the
/// energy that is encoded.
const STEPS: f32 = 64.0;

/// Most corrections of a mean that is searched.
const CORRECTIONS: usize = 6;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum StreamMeans {
    /// No head has one.
    Off,
    /// The first vectors have not left yet.
    Learning {
        /// A mean needs at least this share of their energy to be used.
        least_share: f32,
        /// A mean needs at least this many finite vectors. Keys wait for them.
        least: usize,
    },
    /// By head; empty for those without a mean.
    Known(Vec<Box<[f32]>>),
}

impl StreamMeans {
    /// Means to be learnt from the first vectors of a side, which have this code.
    pub(super) fn learning(side: StoreSide, centring: Centring, id: CodecId) -> Self {
        let (share, least) = match side {
            StoreSide::Keys => (centring.least_share_of_keys(), life::MEAN_TOKENS),
            StoreSide::Values if !life::centres_values(id) => (None, 0),
            StoreSide::Values => (centring.least_share_of_values(), life::LEAST_VALUES),
        };
        share.map_or(Self::Off, |least_share| Self::Learning { least_share, least })
    }

    /// These means by head.
    pub(super) fn known(means: Vec<Box<[f32]>>) -> Self {
        if means.iter().all(|mean| mean.is_empty()) { Self::Off } else { Self::Known(means) }
    }

    /// The mean of head `head`; empty if it has none.
    pub(super) fn of(&self, head: usize) -> &[f32] {
        match self {
            Self::Known(means) => &means[head],
            _ => &[],
        }
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Known(means) => means.iter().map(|mean| size_of_val(mean) + size_of_val(&**mean)).sum(),
            _ => 0,
        }
    }
}

/// The mean of vectors (`[n, dim]`) on a grid; empty if it holds too small a share of their energy.
pub(super) fn mean_of(x: &[f32], dim: usize, least_share: f32) -> Box<[f32]> {
    let mut mean = vec![0.0; dim];
    if life::mean_of(x, &mut mean) < least_share {
        return Box::default();
    }
    let step = step(x, &mean);
    snap(&mut mean, step);
    mean.into()
}

/// The mean with which vectors (`[n, dim]`) were encoded before they were decoded and rounded to f16, empty if
/// without one. None if most of them were not.
///
/// `code` encodes and decodes vectors. With the right mean it changes none of them. With nearly the right one
/// it finds the same codes. That mean is off by what the vectors move on average.
pub(super) fn recover(x: &[f32], dim: usize, code: impl Fn(&mut [f32]) -> bool) -> Option<Box<[f32]>> {
    let mut mean = vec![0.0; dim];
    if is_kept(x, &mean, &code) {
        return Some(Box::default());
    }
    life::mean_of(x, &mut mean);
    // The spread of decoded vectors may differ enough for a grid of half or twice the step.
    let step = step(x, &mean) / 2.0;
    for _ in 0..CORRECTIONS {
        let coded = coded(x, &mean, &code)?;
        let moved: Vec<f32> = x.iter().zip(&coded).map(|(x, coded)| x - coded).collect();
        let mut step_of_mean = vec![0.0; dim];
        life::mean_of(&moved, &mut step_of_mean);
        life::add(&mut mean, &step_of_mean);
        let mut on_grid = mean.clone();
        snap(&mut on_grid, step);
        if is_kept(x, &on_grid, &code) {
            return Some(on_grid.into());
        }
    }
    None
}

/// True if most vectors (`[n, dim]`) are codes around `mean`: `code` does not change their f16 values.
fn is_kept(x: &[f32], mean: &[f32], code: impl Fn(&mut [f32]) -> bool) -> bool {
    let Some(coded) = coded(x, mean, code) else { return false };
    let pairs = x.chunks_exact(mean.len()).zip(coded.chunks_exact(mean.len()));
    let is_same =
        |x: &[f32], coded: &[f32]| x.iter().zip(coded).all(|(x, y)| *x == f16::from_f32(*y).to_f32());
    2 * pairs.filter(|(x, coded)| is_same(x, coded)).count() > x.len() / mean.len()
}

/// Vectors (`[n, dim]`) after they were encoded around `mean` and decoded.
fn coded(x: &[f32], mean: &[f32], code: impl Fn(&mut [f32]) -> bool) -> Option<Vec<f32>> {
    let mut coded = x.to_vec();
    life::subtract(&mut coded, mean);
    code(&mut coded).then(|| {
        life::add(&mut coded, mean);
        coded
    })
}

/// The step of the grid for vectors (`[n, dim]`) around `mean`: a power of two, at most their spread over
/// [`STEPS`].
fn step(x: &[f32], mean: &[f32]) -> f32 {
    let apart = x.chunks_exact(mean.len()).flat_map(|x| x.iter().zip(mean).map(|(x, mean)| x - mean));
    let spread = (apart.map(|x| x * x).sum::<f32>() / x.len().max(1) as f32).sqrt();
    (spread / STEPS).log2().floor().exp2()
}

/// Rounds a mean to multiples of `step`.
fn snap(mean: &mut [f32], step: f32) {
    if step.is_normal() {
        mean.iter_mut().for_each(|x| *x = (*x / step).round() * step);
    }
}

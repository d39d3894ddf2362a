//! The rule of means, which the cache of a sequence and the cache of slots share.
//!
//! The first mean is that of the first vectors ([`super::life::MEAN_TOKENS`] keys). It is used if it holds enough of
//! their energy, and else there is none. Whenever the number of pages has doubled, the next page starts a new mean, that
//! of all keys that are codes, as they decode. So a mean follows keys that drift, and there are at most 1 + log2(pages)
//! of them. Values have one mean, because the constant part of a model's values does not drift.
//!
//! Sums of keys are integers in fixed point, so that the order of keys changes no bit, and keys can be subtracted again.
//!
//! Means lie on a grid that is coarse compared with the f16 rounding of decoded vectors. A state that was saved as decoded rows
//! can then be searched for its means ([`crate::slots`]), and rows become the same codes again. All means of a head lie
//! on the grid of the first, which they all follow from.

use super::life::{self, PAGE_TOKENS};

/// Fixed-point scale of sums. A sum of decoded keys overflows at no length that fits in memory. If it does, it wraps
/// and does not panic, and subtraction undoes that.
pub(super) const ONE: f32 = 65536.0;

/// Steps of a mean's grid in the spread of the vectors, at least. The rounding adds less than 1/48,000 to the energy
/// that is encoded.
const STEPS: f32 = 64.0;

/// The bits of an f32 below its exponent.
const FRACTION: u32 = 0x007f_ffff;

/// Steps of the grid that a key counts for at most in each coordinate of its block: 4 to 8 times the spread of the first
/// keys. A key that is much longer than others moves no mean away from them.
const MOST_STEPS: f32 = 512.0;

/// Number of the mean that the keys of a page have, which is counted from the first page of keys.
pub(crate) fn mean_number(page: usize) -> usize {
    (usize::BITS - page.leading_zeros()) as usize
}

/// Number of keys that mean `number`, not the first, is of if tokens come in order.
pub(crate) fn keys_of_mean(number: usize) -> usize {
    PAGE_TOKENS << (number - 1)
}

/// Writes the mean of the first vectors (`[n, dim]`), and returns the share of their energy that it holds.
pub(crate) fn first_mean(vectors: &[f32], mean: &mut [f32]) -> f32 {
    let share = life::mean_of(vectors, mean);
    snap(mean, step(vectors, mean));
    share
}

/// Writes the mean of all keys that are codes. `sums` are those of the keys less their means, in the domain of the
/// blocks, from which `undo` brings them back. `old` has the means so far and the number of keys that are less each.
pub(crate) fn next_mean<'a>(
    sums: &[i64],
    old: impl Iterator<Item = (usize, &'a [f32])> + Clone,
    undo: impl FnOnce(&mut [f32]),
    mean: &mut [f32],
) {
    let keys = old.clone().map(|(keys, _)| keys).sum::<usize>() as f32;
    let factor = 1.0 / (ONE * keys);
    mean.iter_mut().zip(sums).for_each(|(x, &sum)| *x = sum as f32 * factor);
    undo(mean);
    let step = old.clone().next().map_or(0.0, |(_, first)| step_of(first));
    for (count, old) in old {
        let share = count as f32 / keys;
        mean.iter_mut().zip(old).for_each(|(m, x)| *m += x * share);
    }
    snap(mean, step);
}

/// Adds keys (`[n, dim]`, less their mean, in the domain of the blocks) to sums. `first` is the first mean of the head.
pub(crate) fn add_keys(sums: &mut [i64], keys: &[f32], first: &[f32]) {
    join_keys(sums, keys, first, i64::wrapping_add);
}

/// Subtracts keys that [`add_keys`] added.
pub(super) fn subtract_keys(sums: &mut [i64], keys: &[f32], first: &[f32]) {
    join_keys(sums, keys, first, i64::wrapping_sub);
}

/// Combines keys in fixed point with the sums; `join` adds or subtracts.
fn join_keys(sums: &mut [i64], keys: &[f32], first: &[f32], join: impl Fn(i64, i64) -> i64) {
    let dim = sums.len().max(1);
    let step = step_of(first);
    // The square of the norm of a block in its own domain is that of the vector times `dim`.
    let most = if step > 0.0 { MOST_STEPS * step * (dim as f32).sqrt() } else { f32::INFINITY };
    // Nearly all keys fit 32 bits, and the compiler can vectorise that conversion.
    let fits = most < i32::MAX as f32 / ONE;
    for key in keys.chunks_exact(dim) {
        let sums = sums.iter_mut().zip(key);
        if fits {
            sums.for_each(|(sum, &x)| *sum = join(*sum, i64::from((x.clamp(-most, most) * ONE) as i32)));
        } else {
            sums.for_each(|(sum, &x)| *sum = join(*sum, (x.clamp(-most, most) * ONE) as i64));
        }
    }
}

/// The step of the grid for the first mean of vectors (`[n, dim]`): a power of two, at most their spread over
/// [`STEPS`].
pub(crate) fn step(vectors: &[f32], mean: &[f32]) -> f32 {
    let apart = vectors.chunks_exact(mean.len()).flat_map(|x| x.iter().zip(mean).map(|(x, mean)| x - mean));
    let spread = (apart.map(|x| x * x).sum::<f32>() / vectors.len().max(1) as f32).sqrt();
    // The power of two below, which no logarithm of a library decides.
    f32::from_bits((spread / STEPS).to_bits() & !FRACTION)
}

/// The step of the grid of a first mean: the largest power of two that divides its values, 0 if all are 0.
pub(crate) fn step_of(mean: &[f32]) -> f32 {
    let lowest_bit = |x: &f32| {
        let (bits, x) = (x.abs().to_bits(), x.abs());
        if bits & FRACTION == 0 { x } else { x - f32::from_bits(bits & (bits - 1)) }
    };
    let step = mean.iter().filter(|x| **x != 0.0).map(lowest_bit).fold(f32::INFINITY, f32::min);
    if step.is_finite() { step } else { 0.0 }
}

/// Rounds a mean to multiples of `step`.
pub(crate) fn snap(mean: &mut [f32], step: f32) {
    if step.is_normal() {
        mean.iter_mut().for_each(|x| *x = (*x / step).round() * step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_grid_that_it_was_brought_to() {
        for exponent in -20..10 {
            let step = (exponent as f32).exp2();
            let mut mean: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() * step * 700.0).collect();
            snap(&mut mean, step);
            assert_eq!(step_of(&mean), step);
        }
        assert_eq!(step_of(&[0.0, -0.0]), 0.0);
        assert_eq!(step_of(&[0.0, -12.0, 0.5]), 0.5);
    }

    #[test]
    fn the_next_mean_is_that_of_all_keys() {
        // 128 keys of 3 less 2, and 128 of 7 less 4.
        let (first, second, mut mean) = ([2.0; 4], [4.0; 4], [0.0; 4]);
        let mut sums = vec![0; 4];
        add_keys(&mut sums, &[1.0; 4 * 128], &first);
        add_keys(&mut sums, &[3.0; 4 * 128], &first);
        for (long, counts) in [(1e6, 2048.0), (-1e30, -2048.0), (2000.0, 2000.0)] {
            let before = sums.clone();
            add_keys(&mut sums, &[long; 4], &first);
            assert_eq!(sums[3] - before[3], (counts * ONE) as i64);
            subtract_keys(&mut sums, &[long; 4], &first);
            assert_eq!(sums, before);
        }
        next_mean(&sums, [(128, &first[..]), (128, &second[..])].into_iter(), |_| {}, &mut mean);
        // 5, on a grid of 2.
        assert_eq!(mean, [6.0; 4]);
        assert_eq!([0, 1, 2, 3, 4, 7, 8].map(mean_number), [0, 1, 2, 2, 3, 3, 4]);
        assert_eq!([1, 2, 3].map(keys_of_mean), [128, 256, 512]);
    }
}

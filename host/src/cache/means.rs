//! The means that are taken off the keys of one KV head before they are encoded.
//!
//! The first page is centred on the mean of the first [`MEAN_TOKENS`] keys, which wait for it uncompressed.
//! Whenever the number of pages has doubled, the next one begins a new mean: that of all keys in the pages
//! before it, as they decode. So a mean follows the keys while it moves, there are no more than 1 +
//! log2(pages) of them, and each is a function of the blocks before it: a cache that was cut back or restored
//! goes on with the same means.

use super::budget::{Budget, Lease};
use super::format::PAGE_TOKENS;
use super::page::Pages;
use super::spec::{AUTO_SHARE, Centring};
use std::sync::Arc;

/// Fixed point of [`Means::sum`]: a sum of decoded keys in the domain of the blocks overflows at no length
/// that fits in memory, and wraps rather than panics, which the way back undoes.
const ONE: f32 = 65536.0;

/// Pages of which sums may hold a part beside those that are full. A cold page that is cut is taken off as it
/// decodes then, which is not what was added when it was warm, so a little stays.
const SPARE_PAGES: usize = 16;

/// A mean, and the page from which on it is used.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mean {
    pub(super) first_page: usize,
    pub(super) values: Arc<[f32]>,
}

/// Whether keys are centred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Keys are stored as they are.
    Off,
    /// Waiting for the first keys.
    Learning,
    /// Each page has a mean.
    On,
}

#[derive(Clone, Debug)]
pub(super) struct Means {
    centring: Centring,
    /// Largest norm of a key that is appended, and so of a mean: a key less a mean can always be encoded
    /// then.
    max_norm: f32,
    state: State,
    list: Vec<Mean>,
    /// Keys of the pages that are full, less their means, in the domain of the blocks; exact integers, so
    /// that what was added can be taken off again. Empty before the first.
    sum: Vec<i64>,
    lease: Lease,
}

impl Means {
    pub(super) fn new(centring: Centring, max_norm: f32, budget: &Budget) -> Self {
        let (list, sum, lease) = (Vec::new(), Vec::new(), budget.lease());
        let mut means = Self { centring, max_norm, state: State::Off, list, sum, lease };
        means.clear();
        means
    }

    pub(super) fn clear(&mut self) {
        self.state = if self.centring == Centring::Off { State::Off } else { State::Learning };
        self.list = Vec::new();
        self.sum = Vec::new();
        self.lease.set(0);
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn list(&self) -> &[Mean] {
        &self.list
    }

    /// What a snapshot must know beside the list.
    pub(super) fn sum(&self) -> &[i64] {
        &self.sum
    }

    /// Whether keys of this cache may be centred like that.
    pub(super) fn can_be(&self, state: State) -> bool {
        match self.centring {
            Centring::Off => state == State::Off,
            Centring::On => state != State::Off,
            Centring::Auto => true,
        }
    }

    /// True if this cache could have made such a mean.
    pub(super) fn can_be_mean(&self, mean: &[f32]) -> bool {
        // A mean of f16 rows may be a little longer than the vectors that they were.
        norm(mean) <= self.max_norm * 1.01
    }

    /// True if this cache could have counted such sums over so many pages.
    pub(super) fn can_be_sums(&self, sums: &[i64], pages: usize) -> bool {
        // A key less its mean is two norms long at most, and no coordinate decodes to more than some times
        // that.
        let key = f64::from(8.0 * self.max_norm) * f64::from(ONE);
        let keys = (pages + SPARE_PAGES) * PAGE_TOKENS;
        sums.iter().all(|&sum| (sum as f64).abs() <= key * keys as f64)
    }

    /// What a snapshot knew.
    pub(super) fn restore(&mut self, state: State, list: Vec<Mean>, sum: Vec<i64>) {
        (self.state, self.list, self.sum) = (state, list, sum);
        self.lease.set(self.allocated_bytes());
    }

    /// Takes the mean of the first keys and the share of their energy that it holds.
    pub(super) fn learn(&mut self, mean: Vec<f32>, share: f32) {
        if self.centring == Centring::On || share >= AUTO_SHARE {
            self.state = State::On;
            self.add(0, mean);
        } else {
            self.state = State::Off;
        }
    }

    /// Which mean a page has; none where keys are not centred.
    pub(super) fn index(&self, page: usize) -> Option<usize> {
        self.list.partition_point(|mean| mean.first_page <= page).checked_sub(1)
    }

    /// The mean of the page that comes next, made where it begins one. `pages` holds the keys.
    pub(super) fn open(&mut self, page: usize, pages: &Pages) -> Option<Arc<[f32]>> {
        let last = self.list.last()?;
        if page.is_power_of_two() && last.first_page < page && !self.sum.is_empty() {
            let mean = self.mean_before(page, pages);
            self.add(page, mean);
        }
        self.index(page).map(|i| self.list[i].values.clone())
    }

    fn add(&mut self, first_page: usize, mut values: Vec<f32>) {
        let norm = norm(&values);
        if norm > self.max_norm {
            values.iter_mut().for_each(|x| *x *= self.max_norm / norm);
        }
        self.list.reserve_exact(1);
        self.list.push(Mean { first_page, values: values.into() });
        self.lease.set(self.allocated_bytes());
    }

    /// Mean of all keys in the pages before `page`.
    fn mean_before(&self, page: usize, pages: &Pages) -> Vec<f32> {
        let factor = 1.0 / (ONE * (page * PAGE_TOKENS) as f32);
        let mut mean: Vec<f32> = self.sum.iter().map(|&sum| sum as f32 * factor).collect();
        pages.unrotate(&mut mean);
        let ends = self.list.iter().skip(1).map(|mean| mean.first_page).chain([page]);
        for (old, end) in self.list.iter().zip(ends) {
            let share = (end - old.first_page) as f32 / page as f32;
            mean.iter_mut().zip(old.values.iter()).for_each(|(m, x)| *m += x * share);
        }
        mean
    }

    /// Counts the keys of a page that is full now (`[n, dim]`, less their mean, in the domain of the blocks).
    pub(super) fn close(&mut self, keys: &[f32], dim: usize) {
        if self.sum.is_empty() {
            self.sum = vec![0; dim];
            self.lease.set(self.allocated_bytes());
        }
        for key in keys.chunks_exact(dim) {
            join_key(&mut self.sum, key, i64::wrapping_add);
        }
    }

    /// Takes back what [`Means::close`] did.
    pub(super) fn reopen(&mut self, keys: &[f32], dim: usize) {
        for key in keys.chunks_exact(dim) {
            join_key(&mut self.sum, key, i64::wrapping_sub);
        }
    }

    /// Forgets the means that begin behind the first `pages` pages; without any page the first keys are
    /// waited for anew.
    pub(super) fn truncate(&mut self, pages: usize) {
        if pages == 0 {
            self.clear();
        } else {
            self.list.truncate(self.list.partition_point(|mean| mean.first_page < pages));
            self.lease.set(self.allocated_bytes());
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let values: usize = self.list.iter().map(|mean| size_of_val(&*mean.values)).sum();
        self.list.capacity() * size_of::<Mean>() + values + self.sum.capacity() * size_of::<i64>()
    }

    /// The most that one more mean and the first sum may take.
    pub(super) fn growth(&self, dim: usize) -> usize {
        if self.state == State::Off {
            return 0;
        }
        self.allocated_bytes() + 2 * size_of::<Mean>() + dim * (size_of::<f32>() + size_of::<i64>())
    }
}

fn norm(mean: &[f32]) -> f32 {
    mean.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// Adds a key in fixed point to the sums, or takes it off, as `join` says.
fn join_key(sum: &mut [i64], key: &[f32], join: impl Fn(i64, i64) -> i64) {
    let sums = sum.iter_mut().zip(key);
    // Nearly all keys fit 32 bits, and there are vectors of such conversions.
    if key.iter().fold(true, |fit, x| fit & (x.abs() < i32::MAX as f32 / ONE)) {
        sums.for_each(|(sum, &x)| *sum = join(*sum, i64::from((x * ONE) as i32)));
    } else {
        sums.for_each(|(sum, &x)| *sum = join(*sum, (x * ONE) as i64));
    }
}

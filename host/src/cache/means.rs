//! The means that are subtracted from the keys, or the values, of one KV head of a sequence before encoding, by the
//! rule of [`super::mean_rule`].
//!
//! The first keys wait uncompressed for their mean. All keys of a page have the same mean, and each mean is a function of
//! earlier blocks. A cache that was truncated or restored therefore continues with the same means.
//!
//! The mean of values is that of the rows that are there when the first page begins
//! ([`super::life::first_values`]).

use super::budget::{Budget, Lease};
use super::life::PAGE_TOKENS;
use super::mean_rule::{ONE, add_keys, mean_number, next_mean, subtract_keys};
use super::page::Pages;
use super::spec::{Centring, MOST_TOKENS};
use std::sync::Arc;

/// Number of pages by which sums may exceed those of the full pages. A cut cold page is subtracted as it
/// decodes, which differs from what was added when it was warm. A small difference stays in the sum.
const SPARE_PAGES: usize = 16;

/// A mean, and the first page that uses it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mean {
    pub(super) first_page: usize,
    pub(super) values: Arc<[f32]>,
}

/// The state of centring on one side of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Vectors are stored as they are. Values begin so.
    Off,
    /// Waiting for the first keys.
    Learning,
    /// Every page has a mean.
    On,
}

#[derive(Clone, Debug)]
pub(super) struct Means {
    centring: Centring,
    /// True for keys, whose means follow the sequence. Values have one.
    follows: bool,
    /// Largest accepted norm of a vector, and so of a mean. A vector less a mean can then always be encoded.
    max_norm: f32,
    state: State,
    list: Vec<Mean>,
    /// Sums of the keys of full pages, less their means, in the domain of the blocks: exact integers, so that
    /// keys can be subtracted again. Empty before the first full page with a mean.
    sum: Vec<i64>,
    /// Memory of means to come, which a ring takes at the start.
    spare: Vec<Arc<[f32]>>,
    lease: Lease,
}

/// Number of means that a ring has memory for: one for the first keys and one for each doubling of the pages.
pub(super) const RING_MEANS: usize = MOST_TOKENS.ilog2() as usize - PAGE_TOKENS.ilog2() as usize + 2;

impl Means {
    pub(super) fn of_keys(centring: Centring, max_norm: f32, budget: &Budget) -> Self {
        Self::new(centring, true, max_norm, budget)
    }

    pub(super) fn of_values(centring: Centring, max_norm: f32, budget: &Budget) -> Self {
        Self::new(centring, false, max_norm, budget)
    }

    fn new(centring: Centring, follows: bool, max_norm: f32, budget: &Budget) -> Self {
        let (list, sum, spare, lease) = (Vec::new(), Vec::new(), Vec::new(), budget.lease());
        let mut means = Self { centring, follows, max_norm, state: State::Off, list, sum, spare, lease };
        means.clear();
        means
    }

    pub(super) fn clear(&mut self) {
        let waits = self.follows && self.centring != Centring::Off;
        self.state = if waits { State::Learning } else { State::Off };
        if !self.is_ring() {
            (self.list, self.sum) = (Vec::new(), Vec::new());
        }
        self.give_back(0);
        self.sum.clear();
        self.lease.set(self.allocated_bytes());
    }

    /// Takes the memory of all means of a ring, for vectors of `dim` values. Memory that a fork shares
    /// stays with the fork.
    pub(super) fn hold(&mut self, dim: usize) {
        if self.centring == Centring::Off {
            return;
        }
        let (means, sums) = ring_counts(dim, self.follows);
        self.spare.retain(|values| Arc::strong_count(values) == 1);
        self.spare.truncate(means.saturating_sub(self.list.len()));
        self.list.reserve_exact(means.saturating_sub(self.list.len()));
        self.sum.reserve_exact(sums - self.sum.len().min(sums));
        self.spare.reserve_exact(means - self.spare.len());
        while self.list.len() + self.spare.len() < means {
            self.spare.push(vec![0.0; dim].into());
        }
        self.lease.set(self.allocated_bytes());
    }

    /// True if the means have memory of their own.
    fn is_ring(&self) -> bool {
        self.spare.capacity() > 0
    }

    /// Bytes that [`Means::hold`] takes for means of `dim` coordinates. 0 for a `dim` of 0.
    pub(super) fn ring_bytes(dim: usize, follows: bool) -> usize {
        let mean = size_of::<Mean>() + size_of::<Arc<[f32]>>() + dim * size_of::<f32>();
        let (means, sums) = ring_counts(dim, follows);
        if dim == 0 { 0 } else { means * mean + sums * size_of::<i64>() }
    }

    /// Drops all means but the first `kept`. Their memory stays with a ring.
    fn give_back(&mut self, kept: usize) {
        while self.list.len() > kept
            && let Some(mean) = self.list.pop()
        {
            if self.spare.len() < self.spare.capacity() {
                self.spare.push(mean.values);
            }
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn list(&self) -> &[Mean] {
        &self.list
    }

    /// The means, oldest first.
    pub(super) fn values(&self) -> impl Iterator<Item = &[f32]> {
        self.list.iter().map(|mean| &*mean.values)
    }

    /// The sums, which a snapshot stores next to the list.
    pub(super) fn sum(&self) -> &[i64] {
        &self.sum
    }

    /// True if the means follow the keys. Each full page is then added to the sums.
    pub(super) fn follow(&self) -> bool {
        self.follows && self.state == State::On
    }

    /// True if the first page takes a mean of what is there, without waiting.
    pub(super) fn are_of_values(&self) -> bool {
        !self.follows && self.centring != Centring::Off
    }

    /// True if vectors of this cache may be in that state.
    pub(super) fn can_be(&self, state: State) -> bool {
        match self.centring {
            Centring::Off => state == State::Off,
            _ if !self.follows => state != State::Learning,
            Centring::On => state != State::Off,
            Centring::Auto => true,
        }
    }

    /// True if this cache could have these means and sums in that state over this number of full pages.
    pub(super) fn can_have(&self, state: State, list: &[Mean], sum: &[i64], full: usize) -> bool {
        let is_first = list.first().is_some_and(|mean| mean.first_page == 0);
        match state {
            State::Off | State::Learning => list.is_empty() && sum.is_empty(),
            State::On if self.follows => full == 0 || is_first && !sum.is_empty(),
            State::On => list.len() == 1 && is_first && sum.is_empty(),
        }
    }

    /// True if this cache could have made this mean.
    pub(super) fn can_be_mean(&self, mean: &[f32]) -> bool {
        // Rounding to f16 may make a mean slightly longer than its vectors.
        norm(mean) <= self.max_norm * 1.01
    }

    /// True if this cache could have these sums over this number of pages.
    pub(super) fn can_be_sums(&self, sums: &[i64], pages: usize) -> bool {
        // A key less its mean is at most two norms long, and no coordinate decodes to more than a few times
        // that.
        let key = f64::from(8.0 * self.max_norm) * f64::from(ONE);
        let keys = (pages + SPARE_PAGES) * PAGE_TOKENS;
        sums.iter().all(|&sum| (sum as f64).abs() <= key * keys as f64)
    }

    /// Restores the state of a snapshot.
    pub(super) fn restore(&mut self, state: State, list: Vec<Mean>, sum: Vec<i64>) {
        (self.state, self.list, self.sum) = (state, list, sum);
        self.list.shrink_to_fit();
        self.lease.set(self.allocated_bytes());
    }

    /// Takes the mean of the first vectors, and its share of their energy.
    pub(super) fn learn(&mut self, mean: &mut [f32], share: f32) {
        // Values whose first page was not made come again.
        self.give_back(0);
        let of_keys = self.centring.least_share_of_keys().filter(|_| self.follows);
        let least = of_keys.or(self.centring.least_share_of_values());
        if least.is_some_and(|least| share >= least) {
            self.state = State::On;
            self.add(0, mean);
        } else {
            self.state = State::Off;
        }
    }

    /// Index of the mean of a page. `None` if vectors are not centred.
    pub(super) fn index(&self, page: usize) -> Option<usize> {
        self.list.partition_point(|mean| mean.first_page <= page).checked_sub(1)
    }

    /// The mean of the next page. A new mean is made if the page starts one. `pages` holds the keys.
    /// `sums` is memory for as many values as [`Means::sum`] has.
    pub(super) fn open(&mut self, page: usize, pages: &Pages, sums: &mut [f32]) -> Option<Arc<[f32]>> {
        let last = self.list.last()?;
        if mean_number(page) > mean_number(last.first_page) && !self.sum.is_empty() {
            let ends = self.list.iter().skip(1).map(|mean| mean.first_page).chain([page]);
            let old = self
                .list
                .iter()
                .zip(ends)
                .map(|(mean, end)| ((end - mean.first_page) * PAGE_TOKENS, &*mean.values));
            next_mean(&self.sum, old, |sums| pages.undo(sums), sums);
            self.add(page, sums);
        }
        self.index(page).map(|i| self.list[i].values.clone())
    }

    fn add(&mut self, first_page: usize, values: &mut [f32]) {
        let norm = norm(values);
        if norm > self.max_norm {
            values.iter_mut().for_each(|x| *x *= self.max_norm / norm);
        }
        self.list.reserve_exact(1);
        let mut spare = self.spare.pop();
        let values = match spare.as_mut().and_then(Arc::get_mut) {
            Some(memory) => {
                memory.copy_from_slice(values);
                spare
            }
            None => None,
        }
        .unwrap_or_else(|| Arc::from(&*values));
        self.list.push(Mean { first_page, values });
        self.lease.set(self.allocated_bytes());
    }

    /// Adds the keys of a page that is now full (`[n, dim]`, less their mean, in the domain of the blocks).
    pub(super) fn close(&mut self, keys: &[f32], dim: usize) {
        if self.sum.is_empty() {
            self.sum.reserve_exact(dim);
            self.sum.resize(dim, 0);
            self.lease.set(self.allocated_bytes());
        }
        add_keys(&mut self.sum, keys, self.list.first().map_or(&[], |first| &first.values));
    }

    /// Subtracts the keys that [`Means::close`] added.
    pub(super) fn reopen(&mut self, keys: &[f32]) {
        subtract_keys(&mut self.sum, keys, self.list.first().map_or(&[], |first| &first.values));
    }

    /// Drops the means that begin after the first `pages` pages. With 0 pages, the head waits for its first
    /// vectors again.
    pub(super) fn truncate(&mut self, pages: usize) {
        if pages == 0 {
            self.clear();
        } else {
            self.give_back(self.list.partition_point(|mean| mean.first_page < pages));
            self.lease.set(self.allocated_bytes());
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let values: usize = self.list.iter().map(|mean| size_of_val(&*mean.values)).sum();
        let spare: usize = self.spare.iter().map(|values| size_of_val(&**values)).sum();
        let lists =
            self.list.capacity() * size_of::<Mean>() + self.spare.capacity() * size_of::<Arc<[f32]>>();
        lists + values + spare + self.sum.capacity() * size_of::<i64>()
    }

    /// Upper bound of the bytes of the means of `pages` pages of keys, or of values, of `dim` coordinates. 0 for a
    /// `dim` of 0.
    pub(super) fn most_bytes(dim: usize, pages: usize, follow: bool) -> usize {
        let means = if dim > 0 { 2 + pages.ilog2() as usize } else { 0 };
        let sums = if follow { dim } else { 0 };
        means * (size_of::<Mean>() + dim * size_of::<f32>()) + sums * size_of::<i64>()
    }

    /// Upper bound of the bytes of one more mean, and of the sums. Values may get their mean if `learns`.
    pub(super) fn growth(&self, dim: usize, learns: bool) -> usize {
        let mean = 2 * size_of::<Mean>() + dim * size_of::<f32>();
        if self.is_ring() {
            0
        } else if self.follows && self.state != State::Off {
            self.allocated_bytes() + mean + dim * size_of::<i64>()
        } else if learns {
            mean
        } else {
            0
        }
    }
}

/// Numbers of means and of sums that a ring has memory for.
fn ring_counts(dim: usize, follows: bool) -> (usize, usize) {
    if follows { (RING_MEANS, dim) } else { (1, 0) }
}

fn norm(mean: &[f32]) -> f32 {
    mean.iter().map(|x| x * x).sum::<f32>().sqrt()
}

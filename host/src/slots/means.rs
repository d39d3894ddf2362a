//! The means that are subtracted from the keys or the values of a stream before they are encoded, by the rule of
//! [`crate::cache::mean_rule`].
//!
//! A basis is what codes are differences to: a mean for each KV head. The first is of the first vectors that leave the
//! exact rows. The position of a token says which mean it should have, as in a sequence. A mean is made when its
//! first row leaves and as many rows became codes as it would be of in a sequence; until then the row has the last mean
//! that there is. It is the mean of all keys that became codes in the stream so far, also of those that were
//! overwritten. So tokens in order have the means of a sequence, several sequences share the means of a position, and
//! a request that comes again has the means of before. Each slot knows its basis ([`super::page_numbers`]), and bases stay
//! until the stream is cleared.
//!
//! A saved state of rows holds decoded vectors and no means, while one of codes has both ([`super::state`]). Means lie on a
//! grid that is coarse compared with the f16 rounding of decoded vectors, so that [`recover`] finds the same means again. With
//! them, vectors become the same codes again.

use super::format::{SlotFormat, StoreSide};
use super::maps::StreamMaps;
use crate::cache::life;
use crate::cache::mean_rule::{add_keys, first_mean, keys_of_mean, next_mean, snap, step, step_of};
use crate::cache::spec::Centring;
use half::f16;
use tqkv_core::CodecId;

/// Most corrections of a mean that is searched.
const CORRECTIONS: usize = 6;

/// Fewest restored rows in which a mean is searched. One row alone would be its own mean.
const LEAST_SEARCHED: usize = 16;

/// Most bases of a stream. One whose tokens come in order has fewer.
const MOST_BASES: usize = 64;

/// The mean of each head, empty for a head without one.
pub(super) type HeadMeans = Vec<Box<[f32]>>;

#[derive(Clone, Debug)]
pub(super) enum StreamMeans {
    /// No head has one.
    Off,
    /// The first vectors have not left yet.
    Learning {
        /// A mean needs at least this share of their energy to be used.
        least_share: f32,
        /// A mean needs at least this many finite vectors. Keys wait for them.
        least: usize,
        /// True for keys.
        follow: bool,
    },
    Known(Bases),
}

/// The bases of a stream, and what the next one is made of.
#[derive(Clone, Debug)]
pub(super) struct Bases {
    /// Each with the number of vectors that became codes with it.
    list: Vec<(usize, HeadMeans)>,
    /// The basis for each number of a mean.
    numbers: Vec<u8>,
    /// By head, the sums of keys less their means, in the domain of the blocks. Empty for values.
    sums: Vec<Vec<i64>>,
    /// Number of vectors that became codes.
    codes: usize,
}

impl StreamMeans {
    /// Means to be learnt from the first vectors of a side, which have this code.
    pub(super) fn learning(side: StoreSide, centring: Centring, id: CodecId) -> Self {
        let (share, least) = match side {
            StoreSide::Keys => (centring.least_share_of_keys(), life::MEAN_TOKENS),
            StoreSide::Values if !life::centres_values(id) => (None, 0),
            StoreSide::Values => (centring.least_share_of_values(), life::LEAST_VALUES),
        };
        let follow = side == StoreSide::Keys;
        share.map_or(Self::Off, |least_share| Self::Learning { least_share, least, follow })
    }

    /// The first means, by head, which others follow if `follow` and if these fit into `room` bytes.
    pub(super) fn known(means: HeadMeans, follow: bool, room: usize) -> Self {
        if means.iter().all(|mean| mean.is_empty()) {
            return Self::Off;
        }
        let sums = means.iter().map(|mean| vec![0; mean.len()]).collect();
        let mut bases = Bases { list: vec![(0, means)], numbers: vec![0], sums, codes: 0 };
        if !follow || !bases.fits_one_more(room) {
            bases.sums = Vec::new();
        }
        Self::Known(bases)
    }

    fn bases(&self) -> Option<&Bases> {
        match self {
            Self::Known(bases) => Some(bases),
            _ => None,
        }
    }

    /// The least number of a mean that has a basis.
    pub(super) fn number_of(&self, basis: usize) -> u8 {
        let numbers = self.bases().map_or(&[][..], |bases| &bases.numbers);
        numbers.iter().zip(0..).find(|(of, _)| usize::from(**of) >= basis).map_or(0, |(_, number)| number)
    }

    /// Number of bases, at least one.
    pub(super) fn len(&self) -> usize {
        self.bases().map_or(1, |bases| bases.list.len())
    }

    /// The mean of a head in a basis; empty if it has none.
    pub(super) fn of(&self, head: usize, basis: usize) -> &[f32] {
        self.bases().and_then(|bases| bases.list.get(basis)).map_or(&[], |(_, means)| &means[head])
    }

    /// The means of a head in all bases; none if it has none.
    pub(super) fn all_of(&self, head: usize) -> impl Iterator<Item = &[f32]> {
        let list = self.bases().map_or(&[][..], |bases| &bases.list);
        list.iter().map(move |(_, means)| &*means[head]).filter(|mean| !mean.is_empty())
    }

    /// The basis here that has the means of one of `other`. It is made if they fit into `room` bytes, if need be in the
    /// place of one that no code has; `in_use` tells those that codes have. None if there is no place.
    pub(super) fn adopt(
        &mut self,
        other: &Self,
        basis: usize,
        room: usize,
        in_use: impl FnOnce() -> Vec<bool>,
    ) -> Option<usize> {
        match (self, other) {
            (Self::Off, Self::Off) => Some(0),
            (Self::Known(own), Self::Known(other)) => {
                let means = &other.list.get(basis)?.1;
                if let Some(at) = own.list.iter().position(|(_, own)| own == means) {
                    return Some(at);
                }
                let used = in_use();
                let is_free = |at: &usize| !used.get(*at).copied().unwrap_or(false);
                // The grid of later means is that of the first.
                if let Some(at) = (1..own.list.len()).find(is_free) {
                    own.list[at] = (0, means.clone());
                    return Some(at);
                }
                own.fits_one_more(room).then(|| {
                    own.push(means.clone());
                    own.list.len() - 1
                })
            }
            _ => None,
        }
    }

    /// The basis of mean `number`, or of the last one before it.
    pub(super) fn of_number(&self, number: usize) -> usize {
        self.bases().map_or(0, |bases| bases.of_number(number).into())
    }

    /// The means of a basis, by head.
    pub(super) fn heads_of(&self, basis: usize) -> impl Iterator<Item = &[f32]> {
        let means = self.bases().and_then(|bases| bases.list.get(basis));
        means.into_iter().flat_map(|(_, means)| means.iter().map(|mean| &**mean))
    }

    /// The means of these bases, and the basis of each number; none if they cannot be.
    pub(super) fn of_parts(list: Vec<HeadMeans>, numbers: &[u8], follow: bool) -> Option<Self> {
        let first = list.first()?;
        let sums = if follow { first.iter().map(|mean| vec![0; mean.len()]).collect() } else { Vec::new() };
        let list = list.into_iter().map(|means| (0, means)).collect();
        Some(Self::Known(Bases { list, numbers: numbers.to_vec(), sums, codes: 0 }))
    }

    /// The bases of all numbers of means.
    pub(super) fn numbers(&self) -> &[u8] {
        self.bases().map_or(&[], |bases| &bases.numbers)
    }

    /// Gives the first numbers of means these bases.
    pub(super) fn set_numbers(&mut self, numbers: &[u8]) {
        if let Self::Known(bases) = self {
            let kept = bases.numbers.get(numbers.len()..).unwrap_or_default();
            bases.numbers = [numbers, kept].concat();
        }
    }

    /// The basis of rows that become codes now and should have mean `number`. Makes that mean if it is due, and if the
    /// means fit into `room` bytes then.
    pub(super) fn basis_for(
        &mut self,
        number: usize,
        format: &SlotFormat,
        maps: &StreamMaps,
        room: usize,
    ) -> usize {
        let Self::Known(bases) = self else { return 0 };
        let last = bases.numbers.len() - 1;
        let is_due = number > last && bases.follow() && bases.codes >= keys_of_mean(last + 1);
        if is_due && bases.fits_one_more(room) {
            let means = bases.next(format, maps);
            bases.numbers.push(bases.list.len() as u8);
            bases.push(means);
        }
        bases.of_number(number).into()
    }

    /// Takes blocks of each head, which were encoded with a basis, into the sums.
    pub(super) fn count(&mut self, format: &SlotFormat, basis: usize, rows: usize, blocks: &[Vec<u8>]) {
        let Self::Known(bases) = self else { return };
        if !bases.follow() {
            return;
        }
        bases.codes += rows;
        bases.list[basis].0 += rows;
        let mut keys = Vec::new();
        let heads = bases.sums.iter_mut().zip(&bases.list[0].1).zip(blocks);
        for ((sums, first), blocks) in heads.filter(|((sums, _), _)| !sums.is_empty()) {
            format.decode_rotated(blocks, &mut keys);
            add_keys(sums, &keys, first);
        }
    }

    /// The basis under which most of some restored vectors (`[n, dim]`, by `rows` for each head) were encoded, which is
    /// then that of mean `number`. If there is none, one near that mean is searched, which must fit into `room` bytes.
    pub(super) fn restored(
        &mut self,
        number: usize,
        format: &SlotFormat,
        room: usize,
        rows: impl Fn(usize) -> Vec<f32>,
    ) -> usize {
        let Self::Known(bases) = self else { return 0 };
        let wanted = usize::from(bases.of_number(number));
        if !bases.follow() {
            return wanted;
        }
        let rows: Vec<Vec<f32>> = (0..bases.sums.len()).map(rows).collect();
        let code = |rows: &mut [f32]| format.round_trip(rows);
        let fits = |basis: &usize| {
            let heads = rows.iter().zip(&bases.list[*basis].1);
            heads.filter(|(_, mean)| !mean.is_empty()).all(|(rows, mean)| is_kept(rows, mean, code))
        };
        let all = std::iter::once(wanted).chain((0..bases.list.len()).rev());
        let mut found = all.into_iter().find(fits);
        let is_unused = bases.list[wanted].0 == 0;
        let may_search = rows[0].len() >= LEAST_SEARCHED * format.dim;
        if found.is_none() && may_search && (is_unused || bases.fits_one_more(room)) {
            let search = |head: usize| {
                let (first, near, rows) = (&bases.list[0].1[head], &bases.list[wanted].1[head], &rows[head]);
                if near.is_empty() || is_kept(rows, near, code) {
                    return Some(near.clone());
                }
                let mut mean = vec![0.0; near.len()];
                life::mean_of(rows, &mut mean);
                let starts = [near.to_vec(), mean].into_iter();
                starts.into_iter().find_map(|start| recover_near(rows, start, step_of(first), code))
            };
            match (0..rows.len()).map(search).collect() {
                Some(means) if is_unused => bases.list[wanted].1 = means,
                Some(means) => {
                    bases.push(means);
                    found = Some(bases.list.len() - 1);
                }
                None => {}
            }
        }
        let (basis, last) = (found.unwrap_or(wanted), bases.numbers.len() - 1);
        bases.numbers[number.min(last)] = basis as u8;
        basis
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        self.bases().map_or(0, Bases::held_bytes)
    }
}

impl Bases {
    /// The means of all keys so far.
    fn next(&self, format: &SlotFormat, maps: &StreamMaps) -> HeadMeans {
        let next = |(head, sums): (usize, &Vec<i64>)| {
            let mut mean: Box<[f32]> = vec![0.0; sums.len()].into();
            let undo = |sums: &mut [f32]| {
                format.unrotate(sums);
                maps.undo(head, sums);
            };
            if !sums.is_empty() {
                let old = self.list.iter().map(|(rows, means)| (*rows, &*means[head]));
                next_mean(sums, old, undo, &mut mean);
            }
            mean
        };
        self.sums.iter().enumerate().map(next).collect()
    }

    /// The basis for the number of a mean, or the last one that there is.
    fn of_number(&self, number: usize) -> u8 {
        self.numbers[number.min(self.numbers.len() - 1)]
    }

    /// True if the means follow the keys.
    pub(super) fn follow(&self) -> bool {
        !self.sums.is_empty()
    }

    fn held_bytes(&self) -> usize {
        let sums = self.sums.iter().map(|sums| size_of_val(sums) + size_of_val(&**sums)).sum::<usize>();
        self.list.len() * self.basis_bytes() + self.numbers.capacity() + sums
    }

    /// True if there may be one more basis in `room` bytes.
    fn fits_one_more(&self, room: usize) -> bool {
        self.list.len() < MOST_BASES && self.held_bytes() + self.basis_bytes() <= room
    }

    /// Bytes of each basis.
    fn basis_bytes(&self) -> usize {
        let means = self.list[0].1.iter().map(|mean| size_of_val(mean) + size_of_val(&**mean));
        means.sum::<usize>() + size_of::<(usize, HeadMeans)>()
    }

    fn push(&mut self, means: HeadMeans) {
        self.list.reserve_exact(1);
        self.numbers.shrink_to_fit();
        self.list.push((0, means));
    }
}

/// The mean of vectors (`[n, dim]`) on a grid; empty if it holds too small a share of their energy.
pub(super) fn mean_of(x: &[f32], dim: usize, least_share: f32) -> Box<[f32]> {
    let mut mean = vec![0.0; dim];
    if first_mean(x, &mut mean) < least_share { Box::default() } else { mean.into() }
}

/// The first mean with which vectors (`[n, dim]`) were encoded before they were decoded and rounded to f16, empty if
/// without one. None if most of them were not.
pub(super) fn recover(x: &[f32], dim: usize, code: impl Fn(&mut [f32]) -> bool) -> Option<Box<[f32]>> {
    let mut mean = vec![0.0; dim];
    if is_kept(x, &mean, &code) {
        return Some(Box::default());
    }
    life::mean_of(x, &mut mean);
    // The spread of decoded vectors may differ enough for a grid of half or twice the step.
    let grid = step(x, &mean) / 2.0;
    recover_near(x, mean, grid, code)
}

/// The mean on a grid, near `mean`, with which vectors (`[n, dim]`) were encoded. None if most of them were not.
///
/// `code` encodes and decodes vectors. With the right mean it changes none of them. With nearly the right one
/// it finds the same codes. That mean is off by what the vectors move on average.
fn recover_near(
    x: &[f32],
    mut mean: Vec<f32>,
    grid: f32,
    code: impl Fn(&mut [f32]) -> bool,
) -> Option<Box<[f32]>> {
    for _ in 0..CORRECTIONS {
        let coded = coded(x, &mean, &code)?;
        let moved: Vec<f32> = x.iter().zip(&coded).map(|(x, coded)| x - coded).collect();
        let mut step_of_mean = vec![0.0; mean.len()];
        life::mean_of(&moved, &mut step_of_mean);
        life::add(&mut mean, &step_of_mean);
        let mut on_grid = mean.clone();
        snap(&mut on_grid, grid);
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

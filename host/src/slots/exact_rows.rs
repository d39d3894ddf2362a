//! The exact rows of a stream. They lie back to back, head by head, in the order of their slots before each
//! attention ([`ExactRows::settle`]). Between two of these, new rows are the last, and the last row moves to the place
//! of one that leaves.

use crate::cache::life::{BATCH, PAGE_TOKENS};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use std::ops::Range;

/// The place of a row in its sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowPlace {
    /// Place among the [`BATCH`] rows of its sequence that leave together.
    pub(super) phase: u8,
    /// Number of the mean that it should have.
    pub(super) mean: u8,
}

/// What an exact row belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    slot: u32,
    /// False if a value of the row is infinite or NaN. The row is then kept from everything that other
    /// sequences of the stream share.
    pub(super) is_finite: bool,
    place: RowPlace,
    /// Time of the last write. A row of time 0 never leaves: a sink, or a row that cannot be encoded.
    time: u64,
}

impl Owner {
    fn slot(&self) -> usize {
        self.slot as usize
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct ExactRows {
    dim: usize,
    owners: Vec<Owner>,
    /// Indices of the rows, in the order of their slots.
    order: Vec<u32>,
    /// True if the rows lie in that order.
    is_settled: bool,
    /// Rows as bits of f16, `[rows, dim]` per head.
    heads: Vec<Vec<u16>>,
    /// One bit per slot, by page: set if the slot has an exact row.
    slots: Vec<u128>,
    /// True once a row was not finite. Until then nobody looks for such rows.
    was_not_finite: bool,
    /// Number of rows that wait to leave.
    waiting: usize,
    /// Number of writes that wait or waited to leave.
    time: u64,
}

impl ExactRows {
    /// No rows, of one head with `width` values.
    pub(super) fn new(width: usize) -> Self {
        Self { dim: width, is_settled: true, heads: vec![Vec::new()], ..Self::default() }
    }

    /// Divides rows of one head into heads of `dim` values.
    pub(super) fn divide(&mut self, dim: usize) {
        if self.dim == dim {
            return;
        }
        let (whole, count) = (std::mem::take(&mut self.heads), self.dim / dim);
        let head = |h| whole[0].chunks_exact(dim).skip(h).step_by(count).flatten().copied().collect();
        self.heads = (0..count).map(head).collect();
        self.dim = dim;
    }

    /// Values per head.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Number of heads.
    pub(super) fn heads(&self) -> usize {
        self.heads.len()
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Number of rows that wait to leave.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Number of writes of rows that leave, so far.
    pub(super) fn time(&self) -> u64 {
        self.time
    }

    /// Number of pages up to the last slot that had an exact row.
    pub(super) fn pages(&self) -> usize {
        self.slots.len()
    }

    /// The slots of a page that have exact rows, one bit each.
    pub(super) fn mask(&self, page: usize) -> u128 {
        self.slots.get(page).copied().unwrap_or(0)
    }

    /// The row of a slot.
    pub(super) fn row_of(&self, slot: usize) -> Option<usize> {
        if self.mask(slot / PAGE_TOKENS) >> (slot % PAGE_TOKENS) & 1 == 0 {
            return None;
        }
        self.place(slot).ok().map(|at| self.order[at] as usize)
    }

    /// The place of a slot in the order, or the one that it would have.
    fn place(&self, slot: usize) -> Result<usize, usize> {
        self.order.binary_search_by_key(&slot, |&row| self.owners[row as usize].slot())
    }

    /// The rows of a head, as bits of f16.
    pub(super) fn head(&self, head: usize) -> &[u16] {
        &self.heads[head]
    }

    /// The row of a slot, which is new unless the slot has one. It never leaves before [`ExactRows::wait`].
    pub(super) fn make(&mut self, slot: usize) -> usize {
        if let Some(row) = self.row_of(slot) {
            self.stay(row);
            return row;
        }
        let (row, page) = (self.owners.len(), slot / PAGE_TOKENS);
        reach(&mut self.slots, page);
        self.slots[page] |= 1 << (slot % PAGE_TOKENS);
        if let Err(at) = self.place(slot) {
            self.is_settled &= at == row;
            self.order.insert(at, row as u32);
        }
        self.owners.push(Owner { slot: slot as u32, is_finite: true, place: RowPlace::default(), time: 0 });
        self.heads.iter_mut().for_each(|head| head.resize(head.len() + self.dim, 0));
        row
    }

    /// Changes a row, head by head.
    pub(super) fn change(&mut self, row: usize, mut change: impl FnMut(&mut [f16])) {
        let mut finite = true;
        for head in &mut self.heads {
            let part = &mut head[row * self.dim..(row + 1) * self.dim];
            change(part.reinterpret_cast_mut());
            finite &= is_finite(part);
        }
        self.owners[row].is_finite = finite;
        self.was_not_finite |= !finite;
    }

    /// Makes a row the newest of those that leave.
    pub(super) fn wait(&mut self, row: usize, place: RowPlace) {
        self.time += 1;
        self.waiting += usize::from(self.owners[row].time == 0);
        (self.owners[row].time, self.owners[row].place) = (self.time, place);
    }

    /// The place of a row in its sequence.
    pub(super) fn place_of(&self, row: usize) -> RowPlace {
        self.owners[row].place
    }

    /// How many of the rows that have waited longest leave if `extra` of them, some of all, are more than there should
    /// be: as many as leave complete fours of the row that is then the oldest, and at least four. Only that row counts, so
    /// that it does not matter what was written before its sequence.
    pub(super) fn leaving(&self, extra: usize) -> usize {
        if extra < BATCH {
            return 0;
        }
        let mut waiting: Vec<(u64, u8)> =
            self.owners.iter().map(|owner| (owner.time, owner.place.phase)).collect();
        waiting.retain(|(time, _)| *time > 0);
        let phase = waiting.select_nth_unstable(extra).1.1;
        Some(extra - usize::from(phase)).filter(|count| *count >= BATCH).unwrap_or(0)
    }

    /// Makes a row stay for good.
    pub(super) fn stay(&mut self, row: usize) {
        self.waiting -= usize::from(self.owners[row].time > 0);
        self.owners[row].time = 0;
    }

    /// True if a row stays for good.
    pub(super) fn stays(&self, row: usize) -> bool {
        self.owners[row].time == 0
    }

    /// True if a row of a page waits to leave.
    pub(super) fn waits_in(&self, page: usize) -> bool {
        self.mask(page) != 0
            && self.owners.iter().any(|owner| owner.time > 0 && owner.slot() / PAGE_TOKENS == page)
    }

    /// The slots that have waited longest among the wanted ones, at most `count`, with their times.
    pub(super) fn oldest(&self, count: usize, is_wanted: impl Fn(&Owner) -> bool) -> (Vec<usize>, Vec<u64>) {
        let wanted = self.owners.iter().filter(|owner| owner.time > 0 && is_wanted(owner));
        let mut all: Vec<(u64, usize)> = wanted.map(|owner| (owner.time, owner.slot())).collect();
        if count < all.len() {
            all.select_nth_unstable(count);
            all.truncate(count);
        }
        all.sort_unstable();
        all.into_iter().map(|(time, slot)| (slot, time)).unzip()
    }

    /// Removes the row of a slot.
    pub(super) fn remove(&mut self, slot: usize) {
        let Some(row) = self.row_of(slot) else { return };
        self.stay(row);
        self.slots[slot / PAGE_TOKENS] &= !(1 << (slot % PAGE_TOKENS));
        let last = self.owners.len() - 1;
        self.is_settled &= row == last;
        if let (Ok(at), Ok(of_last)) = (self.place(slot), self.place(self.owners[last].slot())) {
            self.order[of_last] = row as u32;
            self.order.remove(at);
        }
        self.owners.swap_remove(row);
        for head in &mut self.heads {
            head.copy_within(last * self.dim..(last + 1) * self.dim, row * self.dim);
            head.truncate(last * self.dim);
        }
    }

    /// Brings the rows into the order of their slots. Attention sums them as they lie, so that its bits depend on the
    /// slots alone, and not on what came and went before.
    pub(super) fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let moved = (0..).zip(&self.order).position(|(at, row)| at != *row);
        let Some(first) = moved else { return };
        let (order, dim) = (&self.order[first..], self.dim);
        let owners: Vec<Owner> = order.iter().map(|row| self.owners[*row as usize]).collect();
        self.owners[first..].copy_from_slice(&owners);
        let mut rows = Vec::with_capacity(order.len() * dim);
        for head in &mut self.heads {
            rows.clear();
            order
                .iter()
                .map(|row| *row as usize * dim)
                .for_each(|at| rows.extend_from_slice(&head[at..at + dim]));
            head[first * dim..].copy_from_slice(&rows);
        }
        self.order.iter_mut().zip(0..).for_each(|(row, at)| *row = at);
    }

    /// Frees the memory of rows that have left, except that of the next `spare` rows.
    pub(super) fn release(&mut self, spare: usize) {
        let rows = self.owners.len() + spare;
        shrink(&mut self.owners, rows);
        shrink(&mut self.order, rows);
        self.heads.iter_mut().for_each(|head| shrink(head, rows * self.dim));
    }

    /// Frees the memory of rows that were removed, once it is an eighth of what is left and more: for less the rows
    /// would be copied too often. Pages after the last row are no more counted.
    pub(super) fn release_removed(&mut self) {
        let (rows, room) = (self.owners.len(), self.owners.capacity());
        if room > rows + rows / 8 + BATCH {
            self.release(0);
        }
        trim(&mut self.slots);
    }

    /// The slots of some rows, in the order of the rows, as runs of neighbours.
    pub(super) fn slot_runs(&self, rows: Range<usize>, runs: &mut Vec<Range<usize>>) {
        runs.clear();
        for slot in self.slots_of(rows) {
            match runs.last_mut() {
                Some(run) if run.end == slot => run.end += 1,
                _ => runs.push(slot..slot + 1),
            }
        }
    }

    /// The slots of some rows, in the order of the rows.
    pub(super) fn slots_of(&self, rows: Range<usize>) -> impl Iterator<Item = usize> + Clone {
        self.owners[rows].iter().map(Owner::slot)
    }

    /// Number of the first of some rows that are of the same slots in both.
    pub(super) fn count_same(&self, other: &Self, rows: Range<usize>) -> usize {
        let (own, others) = (&self.owners[rows.clone()], other.owners.get(rows.start..).unwrap_or_default());
        own.iter().zip(others).take_while(|(own, other)| own.slot() == other.slot()).count()
    }

    /// Those among some rows that have a value which is not finite, counted from the first of them.
    pub(super) fn not_finite(&self, rows: Range<usize>) -> Vec<usize> {
        if !self.was_not_finite {
            return Vec::new();
        }
        let owners = self.owners[rows].iter().enumerate();
        owners.filter(|(_, owner)| !owner.is_finite).map(|(row, _)| row).collect()
    }

    /// Rows of one head: `[slots, dim]`. A slot without a row gives zeros.
    pub(super) fn wide(&self, head: usize, slots: &[usize]) -> Vec<f32> {
        let mut rows = vec![0.0; slots.len() * self.dim];
        for (slot, row) in slots.iter().zip(rows.chunks_exact_mut(self.dim)) {
            if let Some(at) = self.row_of(*slot) {
                self.part(head, at).convert_to_f32_slice(row);
            }
        }
        rows
    }

    /// Copies a row of all heads.
    pub(super) fn read(&self, row: usize, out: &mut [f16]) {
        let parts = out.chunks_exact_mut(self.dim).enumerate();
        parts.for_each(|(head, part)| part.copy_from_slice(self.part(head, row)));
    }

    fn part(&self, head: usize, row: usize) -> &[f16] {
        self.heads[head][row * self.dim..(row + 1) * self.dim].reinterpret_cast()
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        let rows = self.heads.iter().map(Vec::capacity).sum::<usize>() * size_of::<u16>();
        rows + self.owners.capacity() * size_of::<Owner>()
            + self.order.capacity() * size_of::<u32>()
            + self.slots.capacity() * size_of::<u128>()
    }
}

/// Gives memory beyond `most` elements back. The elements move, so that the whole of a large block is free for
/// the next stream: what is cut off a block would be a hole that its next rows do not fit into.
fn shrink<T: Copy>(list: &mut Vec<T>, most: usize) {
    if list.capacity() > most {
        let mut small = Vec::with_capacity(most);
        small.extend_from_slice(list);
        *list = small;
    }
}

/// Frees what a list by page has after its last page with slots. Returns the number of pages that stay.
pub(super) fn trim(list: &mut Vec<u128>) -> usize {
    let pages = list.iter().rposition(|slots| *slots != 0).map_or(0, |last| last + 1);
    cut(list, pages);
    pages
}

/// Cuts a list by page to some pages, without spare memory.
pub(super) fn cut<T>(list: &mut Vec<T>, pages: usize) {
    if list.len() > pages {
        list.truncate(pages);
        list.shrink_to_fit();
    }
}

/// Makes a list by page reach a page, without spare memory.
pub(super) fn reach<T: Clone + Default>(list: &mut Vec<T>, page: usize) {
    if list.len() <= page {
        list.reserve_exact(page + 1 - list.len());
        list.resize(page + 1, T::default());
    }
}

/// True if no value is infinite or NaN.
fn is_finite(row: &[u16]) -> bool {
    row.iter().fold(true, |finite, bits| finite & (bits & EXPONENT != EXPONENT))
}

/// The exponent bits of an f16. All of them are set in infinities and NaN alone.
const EXPONENT: u16 = 0x7c00;

//! Slots of one stream. A slot is empty, exact, or a code.
//!
//! Exact rows lie back to back, head by head, in no order: the last row moves to the place of a row that
//! leaves. The newest writes stay exact. The oldest leave in groups of four and become codes in pages of
//! [`PAGE_TOKENS`] slots. Rows and pages lie in reserved address space, so none moves when others come or go.

use super::format::Format;
use super::maps::{MOST_TOKENS, Map, Maps, Seen, Turn};
use super::means::{self, Means};
use super::rule::{Asked, Rule};
use crate::cache::life::{BATCH, LEARN_TOKENS, MEAN_TOKENS, PAGE_TOKENS, PIECE, add, leaving, subtract};
use crate::reserve::Table;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;
use tqkv_simd::Level;
use tqkv_simd::page::{Line, row_scores};

/// The place of a slot's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Empty,
    Coded,
    /// Index among the exact rows.
    Exact(usize),
}

const EMPTY: u32 = u32::MAX;
const CODED: u32 = u32::MAX - 1;

/// What an exact row belongs to.
#[derive(Clone, Copy, Debug)]
struct Owner {
    slot: u32,
    /// False if a value of the row is infinite or NaN. The row is then kept from everything that other
    /// sequences of the stream share.
    is_finite: bool,
    /// Time of the last write. A row of time 0 never leaves: a sink, or a row that cannot be encoded.
    time: u64,
}

impl Owner {
    fn slot(&self) -> usize {
        self.slot as usize
    }
}

/// The slots of one stream of a tensor.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Values per row, of all heads.
    width: usize,
    /// Largest number of slots.
    slots: usize,
    dim: usize,
    hot: usize,
    /// The state of each slot up to the last written one: [`EMPTY`], [`CODED`] or an index of the exact rows.
    places: Table<u32>,
    /// One entry per exact row.
    owners: Vec<Owner>,
    /// True once a row was not finite. Until then nobody looks for such rows.
    was_not_finite: bool,
    /// Exact rows as bits of f16, `[rows, dim]` per head.
    pub(super) exact: Vec<Table<u16>>,
    /// Slot and time of writes, oldest first. A write that is not the last of its slot is skipped.
    queue: VecDeque<(u32, u64)>,
    /// Number of exact rows that wait to leave: the entries of the queue that are not skipped.
    waiting: usize,
    time: u64,
    /// Lines of one head in a page; 0 before the first code.
    lines: usize,
    /// Codes, `[pages, heads, lines]`. Zeros in pages where no slot is a code.
    pages: Table<Line>,
    /// The number of coded slots in each page.
    coded: Vec<u32>,
    pub(super) means: Means,
    pub(super) maps: Maps,
}

impl Stream {
    pub(super) fn new((width, slots): (usize, usize), hot: usize, means: Means) -> Self {
        Self {
            width,
            slots,
            dim: width,
            hot,
            places: Table::new(slots),
            owners: Vec::new(),
            was_not_finite: false,
            exact: vec![Table::new(slots * width)],
            queue: VecDeque::new(),
            waiting: 0,
            time: 0,
            lines: 0,
            pages: Table::new(0),
            coded: Vec::new(),
            means,
            maps: Maps::Off,
        }
    }

    /// Divides rows into heads of `dim` values, which go through maps if `has_maps`. Rows are never encoded
    /// before this call.
    pub(super) fn divide(&mut self, dim: usize, has_maps: bool) {
        if has_maps {
            self.maps = Maps::Learning(vec![Seen::default(); self.width / dim]);
        }
        if self.dim == dim {
            return;
        }
        let heads = vec![Table::new(self.slots * dim); self.width / dim];
        let whole = std::mem::replace(&mut self.exact, heads);
        for (h, head) in self.exact.iter_mut().enumerate() {
            head.resize(self.owners.len() * dim);
            let parts = whole[0].chunks_exact(dim).skip(h).step_by(self.width / dim);
            head.chunks_exact_mut(dim).zip(parts).for_each(|(to, part)| to.copy_from_slice(part));
        }
        self.dim = dim;
    }

    /// One past the last slot that was written.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn place(&self, slot: usize) -> Place {
        match self.places.get(slot) {
            None | Some(&EMPTY) => Place::Empty,
            Some(&CODED) => Place::Coded,
            Some(&row) => Place::Exact(row as usize),
        }
    }

    /// Number of exact rows.
    pub(super) fn exact_rows(&self) -> usize {
        self.owners.len()
    }

    /// The slots of some exact rows, in the order of the rows, as runs of neighbours.
    pub(super) fn slot_runs(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for slot in self.owners[rows].iter().map(Owner::slot) {
            match runs.last_mut() {
                Some(run) if run.end == slot => run.end += 1,
                _ => runs.push(slot..slot + 1),
            }
        }
        runs
    }

    /// True if slots `from..to` of both streams have the same state, with exact rows at the same index.
    pub(super) fn is_alike(&self, other: &Self, from: usize, to: usize) -> bool {
        self.places_of(from, to) == other.places_of(from, to)
    }

    fn places_of(&self, from: usize, to: usize) -> &[u32] {
        let end = self.places.len();
        &self.places[from.min(end)..to.min(end)]
    }

    /// True if some exact rows hold the same slots in both streams.
    pub(super) fn has_same_rows(&self, other: &Self, rows: Range<usize>) -> bool {
        let (own, others) = (self.owners.get(rows.clone()), other.owners.get(rows));
        own.zip(others)
            .is_some_and(|(own, others)| own.iter().map(Owner::slot).eq(others.iter().map(Owner::slot)))
    }

    /// Those among some exact rows that have a value which is not finite, counted from the first of them.
    pub(super) fn not_finite(&self, rows: Range<usize>) -> Vec<usize> {
        if !self.was_not_finite {
            return Vec::new();
        }
        let owners = self.owners[rows].iter().enumerate();
        owners.filter(|(_, owner)| !owner.is_finite).map(|(row, _)| row).collect()
    }

    /// Changes exact row `at`, head by head.
    pub(super) fn change_exact(&mut self, at: usize, mut change: impl FnMut(&mut [f16])) {
        let mut finite = true;
        for head in &mut self.exact {
            let part = &mut head[at * self.dim..(at + 1) * self.dim];
            change(part.reinterpret_cast_mut());
            finite &= is_finite(part);
        }
        self.owners[at].is_finite = finite;
        self.was_not_finite |= !finite;
    }

    /// Codes of one head in a page; none where no slot of the page is a code.
    pub(super) fn page(&self, head: usize, page: usize) -> Option<&[Line]> {
        let at = (page * self.exact.len() + head) * self.lines;
        if self.coded(page) == 0 { None } else { self.pages.get(at..at + self.lines) }
    }

    /// Number of slots of a page that are codes.
    pub(super) fn coded(&self, page: usize) -> usize {
        self.coded.get(page).map_or(0, |&count| count as usize)
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        let exact = self.exact.iter().map(Table::held_bytes).sum::<usize>();
        let means = if let Means::Known(means) = &self.means { means.capacity() } else { 0 };
        self.code_bytes()
            + exact
            + self.places.held_bytes()
            + self.maps.held_bytes()
            + (self.coded.capacity() + means) * 4
            + (self.owners.capacity() + self.queue.capacity()) * 16
    }

    /// Bytes of the system's pages that hold codes.
    fn code_bytes(&self) -> usize {
        let lines = self.exact.len() * self.lines;
        let pages = (0..self.coded.len()).filter(|&page| self.coded(page) > 0);
        self.pages.held_in(pages.map(|page| page * lines..(page + 1) * lines))
    }

    /// Writes a row to a slot. A sink stays exact for good, another row until [`Stream::cool`] encodes it.
    pub(super) fn write(&mut self, slot: usize, row: &[f16], is_sink: bool) {
        self.reach(slot);
        let at = match self.place(slot) {
            Place::Exact(at) => at,
            place => {
                if place == Place::Coded {
                    self.forget_code(slot);
                }
                self.owners.push(Owner { slot: slot as u32, is_finite: true, time: 0 });
                for head in &mut self.exact {
                    head.resize(head.len() + self.dim);
                }
                self.places[slot] = self.owners.len() as u32 - 1;
                self.owners.len() - 1
            }
        };
        let mut parts = row.chunks_exact(self.dim);
        self.change_exact(at, |head| head.copy_from_slice(parts.next().unwrap_or_default()));
        self.waiting -= usize::from(self.owners[at].time > 0);
        self.owners[at].time = 0;
        if !is_sink {
            self.wait(slot, at);
        }
    }

    /// Makes exact row `at`, that of a slot, the newest of those that leave.
    fn wait(&mut self, slot: usize, at: usize) {
        self.time += 1;
        self.waiting += 1;
        self.owners[at].time = self.time;
        self.queue.push_back((slot as u32, self.time));
        // Repeated writes to the same slots must not let the queue grow without limit.
        if self.queue.len() > 2 * self.waiting + PIECE {
            let (places, owners) = (&self.places, &self.owners);
            self.queue.retain(|&(slot, time)| waiting(places, owners, slot, time).is_some());
        }
    }

    /// Marks a slot as no code any more, and frees its page after the last code.
    fn forget_code(&mut self, slot: usize) {
        let page = slot / PAGE_TOKENS;
        self.coded[page] -= 1;
        if self.coded[page] == 0 {
            let lines = self.exact.len() * self.lines;
            self.pages.forget(page * lines..(page + 1) * lines);
        }
    }

    /// Encodes rows that are older than the newest `hot` ones. A row that cannot be encoded stays exact for
    /// good. If `is_restored`, rows may be decoded codes, which then become the same codes again.
    pub(super) fn cool(&mut self, format: &Format, turn: Turn, is_restored: bool) {
        if format.coded.is_none() || format.dim != self.dim {
            return;
        }
        let extra = self.waiting.saturating_sub(self.hot);
        let mut count = leaving(self.hot, extra);
        // Keys wait until there are enough for a mean. Values wait as long, because attention is faster where
        // both sides have a slot in the same state.
        if self.coded.is_empty() && extra < MEAN_TOKENS || self.must_learn_first() {
            return;
        }
        if let Means::Learning { least_share } = self.means {
            let oldest = self.oldest_finite(MEAN_TOKENS);
            let means = (0..self.exact.len()).map(|head| {
                let rows = self.rows(head, &oldest);
                let recovered = || means::recover(&rows, self.dim, |rows| format.round_trip(rows));
                // Maps do not come with restored rows, so these have other codes.
                let is_restored = is_restored && !self.is_learning();
                let recovered = if is_restored { recovered() } else { None };
                recovered.unwrap_or_else(|| means::mean_of(&rows, self.dim, least_share))
            });
            self.means = Means::Known(means.collect::<Vec<_>>().concat());
        }
        if self.is_learning() {
            let slots = self.oldest_finite(MOST_TOKENS);
            let mut maps = std::mem::replace(&mut self.maps, Maps::Off);
            maps.learn(&slots, turn, format, |head| {
                let mut keys = self.rows(head, &slots);
                subtract(&mut keys, self.means.of(head, self.dim));
                keys
            });
            self.maps = maps;
        }
        while count > 0 {
            let slots = self.oldest(count.min(PIECE));
            if slots.is_empty() {
                break;
            }
            count -= slots.len();
            self.leave(format, &slots);
        }
        self.release();
    }

    /// True if there are too few finite keys for what the stream learns from them, or too few queries.
    fn must_learn_first(&mut self) -> bool {
        let least = if self.is_learning() { LEARN_TOKENS } else { MEAN_TOKENS };
        let learns = self.is_learning() || matches!(self.means, Means::Learning { .. });
        learns && (self.maps.wait() || self.oldest_finite(least).len() < least)
    }

    /// True if the maps of the stream are not made yet.
    pub(super) fn is_learning(&self) -> bool {
        matches!(self.maps, Maps::Learning(_))
    }

    /// Shows queries (`[n, dim]`) of one head to a stream that learns maps.
    pub(super) fn show(
        &mut self,
        (level, head): (Level, usize),
        rule: &Rule,
        asked: &[Asked<'_>],
        queries: &[f32],
    ) {
        let (Maps::Learning(heads), Some(rows)) = (&mut self.maps, self.exact.get(head)) else { return };
        let slots: Vec<usize> = self.owners.iter().map(Owner::slot).collect();
        let mut logits = vec![0.0; slots.len()];
        for (query, asked) in queries.chunks_exact(self.dim).zip(asked) {
            let scaled: Vec<f32> = query.iter().map(|x| x * rule.scale).collect();
            row_scores(level, rows, self.dim, &scaled, &mut logits);
            heads[head].take((rule, asked), query, (&slots, &mut logits));
        }
    }

    /// The slots that have waited longest, at most `count`.
    fn oldest(&mut self, count: usize) -> Vec<usize> {
        self.oldest_where(count, |_| true)
    }

    /// The slots with finite rows that have waited longest, at most `count`.
    fn oldest_finite(&mut self, count: usize) -> Vec<usize> {
        self.oldest_where(count, |owner| owner.is_finite)
    }

    fn oldest_where(&mut self, count: usize, is_wanted: impl Fn(&Owner) -> bool) -> Vec<usize> {
        let (places, owners) = (&self.places, &self.owners);
        while self.queue.front().is_some_and(|&(slot, time)| waiting(places, owners, slot, time).is_none()) {
            self.queue.pop_front();
        }
        let last = self.queue.iter().filter_map(|&(slot, time)| waiting(places, owners, slot, time));
        last.filter(|owner| is_wanted(owner)).take(count).map(Owner::slot).collect()
    }

    /// Exact rows of one head: `[slots, dim]`.
    fn rows(&self, head: usize, slots: &[usize]) -> Vec<f32> {
        let mut rows = vec![0.0; slots.len() * self.dim];
        for (slot, row) in slots.iter().zip(rows.chunks_exact_mut(self.dim)) {
            if let Place::Exact(at) = self.place(*slot) {
                let bits = &self.exact[head][at * self.dim..(at + 1) * self.dim];
                bits.reinterpret_cast::<f16>().convert_to_f32_slice(row);
            }
        }
        rows
    }

    /// Encodes the rows of some exact slots. A row that cannot be encoded stays exact for good.
    fn leave(&mut self, format: &Format, slots: &[usize]) {
        self.waiting -= slots.len();
        for &slot in slots {
            if let Place::Exact(at) = self.place(slot) {
                self.owners[at].time = 0;
            }
        }
        if let Some(blocks) = self.encode(format, slots) {
            self.put(format, slots, &blocks);
            slots.iter().for_each(|&slot| self.drop_exact(slot));
        } else if slots.len() > 1 {
            for &slot in slots {
                if let Some(blocks) = self.encode(format, &[slot]) {
                    self.put(format, &[slot], &blocks);
                    self.drop_exact(slot);
                }
            }
        }
    }

    /// Encodes exact slots to blocks, head by head; none if a row cannot be encoded.
    fn encode(&self, format: &Format, slots: &[usize]) -> Option<Vec<Vec<u8>>> {
        let each = |head: usize| {
            let (mut rows, mut blocks) = (self.rows(head, slots), Vec::new());
            self.code(format, head, &mut rows, &mut blocks).then_some(blocks)
        };
        let heads = 0..self.exact.len();
        // In the host's threads, if this one is among them.
        if slots.len() >= PIECE / 2 && rayon::current_thread_index().is_some() {
            heads.into_par_iter().map(each).collect()
        } else {
            heads.map(each).collect()
        }
    }

    /// Encodes rows (`[n, dim]`) of one head to blocks; false if one cannot be encoded. The rows are used up.
    pub(super) fn code(&self, format: &Format, head: usize, rows: &mut [f32], blocks: &mut Vec<u8>) -> bool {
        subtract(rows, self.means.of(head, self.dim));
        let map = self.maps.of(head);
        if let Some(map) = map {
            map.apply(rows);
        }
        format.encode(rows, map.and_then(Map::weights), blocks)
    }

    /// Writes the blocks of each head to pages, and counts the slots as codes.
    pub(super) fn put(&mut self, format: &Format, slots: &[usize], blocks: &[Vec<u8>]) {
        let (heads, lines) = (self.exact.len(), format.lines());
        if self.lines == 0 {
            self.lines = lines;
            self.pages = Table::new(self.slots.div_ceil(PAGE_TOKENS) * heads * lines);
        }
        let pages = slots.iter().map(|slot| slot / PAGE_TOKENS + 1).max().unwrap_or(0);
        if self.coded.len() < pages {
            self.coded.resize(pages, 0);
            self.pages.resize(pages * heads * lines);
        }
        for (head, blocks) in blocks.iter().enumerate() {
            for (&slot, block) in slots.iter().zip(blocks.chunks_exact(blocks.len() / slots.len())) {
                let at = (slot / PAGE_TOKENS * heads + head) * lines;
                format.write(&mut self.pages[at..at + lines], slot % PAGE_TOKENS, block);
            }
        }
        for &slot in slots {
            if self.place(slot) != Place::Coded {
                self.coded[slot / PAGE_TOKENS] += 1;
            }
        }
    }

    /// Removes the exact row of a slot whose code has been written.
    fn drop_exact(&mut self, slot: usize) {
        if let Place::Exact(at) = self.place(slot) {
            self.remove_exact(slot, at, CODED);
        }
    }

    /// Removes exact row `at`, that of a slot, whose place is `becomes` from now on.
    fn remove_exact(&mut self, slot: usize, at: usize, becomes: u32) {
        self.waiting -= usize::from(self.owners[at].time > 0);
        self.places[slot] = becomes;
        let last = self.owners.len() - 1;
        self.owners.swap_remove(at);
        for head in &mut self.exact {
            head.copy_within(last * self.dim..(last + 1) * self.dim, at * self.dim);
            head.resize(last * self.dim);
        }
        if let Some(moved) = self.owners.get(at) {
            self.places[moved.slot()] = at as u32;
        }
    }

    /// Frees the memory of rows that have left.
    fn release(&mut self) {
        let rows = self.owners.len();
        for head in &mut self.exact {
            // A surplus of up to `PIECE` rows stays, because the next writes need it.
            if head.held_bytes() > (rows + PIECE) * self.dim * size_of::<u16>() {
                head.shrink();
            }
        }
        if self.owners.capacity() > rows + PIECE {
            self.owners.shrink_to(rows + 2 * BATCH);
        }
        self.queue.shrink_to(2 * self.waiting + 2 * PIECE);
    }

    /// The slots among `from..to` of one page that are codes, counted in the page.
    pub(super) fn coded_slots(&self, page: usize, from: usize, to: usize) -> Vec<usize> {
        (from..to).filter(|slot| self.place(page * PAGE_TOKENS + slot) == Place::Coded).collect()
    }

    /// Decodes some coded slots of one head in a page: `[slots, dim]`.
    pub(super) fn decode(&self, format: &Format, head: usize, page: usize, slots: &[usize]) -> Vec<f32> {
        let mut rows = vec![0.0; slots.len() * self.dim];
        if let Some(lines) = self.page(head, page) {
            format.decode(lines, slots, &mut rows);
            if let Some(map) = self.maps.of(head) {
                map.undo(&mut rows);
            }
            add(&mut rows, self.means.of(head, self.dim));
        }
        rows
    }

    /// Reads slots from `first` on as f16; `out` is `[n, width]`. Empty slots give zeros.
    pub(super) fn read(&self, format: Option<&Format>, first: usize, out: &mut [f16]) {
        let (width, dim, end) = (self.width, self.dim, first + out.len() / self.width);
        for (slot, row) in (first..end).zip(out.chunks_exact_mut(width)) {
            match self.place(slot) {
                Place::Exact(at) => {
                    for (part, head) in row.chunks_exact_mut(dim).zip(&self.exact) {
                        part.copy_from_slice(head[at * dim..(at + 1) * dim].reinterpret_cast());
                    }
                }
                Place::Empty | Place::Coded => row.fill(f16::ZERO),
            }
        }
        let Some(format) = format else { return };
        for page in first / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
            let start = page * PAGE_TOKENS;
            let slots = self.coded_slots(
                page,
                first.saturating_sub(start).min(PAGE_TOKENS),
                (end - start).min(PAGE_TOKENS),
            );
            if slots.is_empty() {
                continue;
            }
            for head in 0..self.exact.len() {
                let rows = self.decode(format, head, page, &slots);
                for (slot, row) in slots.iter().zip(rows.chunks_exact(dim)) {
                    let at = (start + slot - first) * width + head * dim;
                    // What the codec adds to the largest values must not make them infinite.
                    let row: Vec<f32> = row.iter().map(|x| x.clamp(-LARGEST, LARGEST)).collect();
                    out[at..at + dim].convert_from_f32_slice(&row);
                }
            }
        }
    }
}

/// What a slot holds, as it is copied.
#[derive(Debug)]
pub(super) enum Content {
    Empty,
    Exact {
        row: Vec<f16>,
        /// True if the row never leaves.
        stays: bool,
    },
    /// A block per head.
    Coded(Vec<Vec<u8>>),
}

impl Stream {
    /// True if no slot holds a row.
    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.coded.iter().all(|count| *count == 0)
    }

    /// What the codes of this stream depend on besides the rows; none before the first code.
    pub(super) fn basis(&self) -> Option<(Means, Maps)> {
        let learns = self.is_learning() || matches!(self.means, Means::Learning { .. });
        (!learns).then(|| (self.means.clone(), self.maps.clone()))
    }

    pub(super) fn set_basis(&mut self, (means, maps): (Means, Maps)) {
        (self.means, self.maps) = (means, maps);
    }

    /// True if a row has the same codes in both streams.
    pub(super) fn has_basis_of(&self, other: &Self) -> bool {
        self.means == other.means && self.maps.is_same(&other.maps)
    }

    /// What a slot holds: codes as they are, or decoded unless `as_codes`.
    pub(super) fn take_copy(&self, format: Option<&Format>, slot: usize, as_codes: bool) -> Content {
        match (self.place(slot), format) {
            (Place::Empty, _) => Content::Empty,
            (Place::Coded, Some(format)) if as_codes => {
                let page = |head| self.page(head, slot / PAGE_TOKENS).unwrap_or_default();
                let heads = 0..self.exact.len();
                Content::Coded(heads.map(|head| format.read(page(head), &[slot % PAGE_TOKENS])).collect())
            }
            (place, _) => {
                let mut row = vec![f16::ZERO; self.width];
                self.read(format, slot, &mut row);
                Content::Exact { row, stays: matches!(place, Place::Exact(at) if self.owners[at].time == 0) }
            }
        }
    }

    /// Makes a slot hold a copy.
    pub(super) fn put_copy(&mut self, format: Option<&Format>, slot: usize, content: Content) {
        match (content, format) {
            (Content::Exact { row, stays }, _) => self.write(slot, &row, stays),
            (Content::Coded(blocks), Some(format)) => {
                self.reach(slot);
                self.put(format, &[slot], &blocks);
                self.drop_exact(slot);
                self.places[slot] = CODED;
            }
            (Content::Empty | Content::Coded(_), _) => self.forget(slot),
        }
    }

    /// Empties a slot.
    pub(super) fn forget(&mut self, slot: usize) {
        match self.place(slot) {
            Place::Empty => {}
            Place::Exact(at) => self.remove_exact(slot, at, EMPTY),
            Place::Coded => {
                self.forget_code(slot);
                self.places[slot] = EMPTY;
            }
        }
    }

    /// Makes the list of places reach a slot.
    fn reach(&mut self, slot: usize) {
        let len = self.places.len();
        if len <= slot {
            self.places.resize(slot + 1);
            self.places[len..].fill(EMPTY);
        }
    }
}

/// The row of a write in the queue; none if the write is not the last of its slot or the row has left.
fn waiting<'a>(places: &[u32], owners: &'a [Owner], slot: u32, time: u64) -> Option<&'a Owner> {
    let row = places.get(slot as usize).copied().filter(|&row| row < CODED)?;
    owners.get(row as usize).filter(|owner| (owner.slot, owner.time) == (slot, time))
}

/// The largest f16.
const LARGEST: f32 = 65504.0;

/// True if no value is infinite or NaN.
fn is_finite(row: &[u16]) -> bool {
    row.iter().fold(true, |finite, bits| finite & (bits & EXPONENT != EXPONENT))
}

/// The exponent bits of an f16. All of them are set in infinities and NaN alone.
const EXPONENT: u16 = 0x7c00;

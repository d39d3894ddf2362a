//! Slots of one stream. A slot is empty, exact, or a code.
//!
//! The newest writes stay exact. The oldest leave in groups of four and become codes. With tiers, pages whose
//! codes are all of old writes are encoded again.

use super::exact_rows::{ExactRows, RowPlace};
use super::format::SlotFormat;
use super::maps::{MOST_TOKENS, RopeLayout, StreamMaps};
use super::means::{self, StreamMeans};
use super::pages::StreamPages;
use super::rule::{QueryMask, QueryRule};
use crate::cache::life::{BATCH, LEARN_TOKENS, MEAN_TOKENS, PAGE_TOKENS, PIECE, add, subtract};
use crate::cache::map::{PairFactors, prepare, shares};
use crate::threads;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::sync::Arc;
use tqkv_simd::Level;
use tqkv_simd::page::row_scores;

/// The place of a slot's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotPlace {
    Empty,
    /// A code of this tier.
    Coded(usize),
    /// Index among the exact rows.
    Exact(usize),
}

/// The slots of one stream of a tensor.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Values per row, of all heads.
    width: usize,
    /// Largest number of slots.
    slots: usize,
    hot: usize,
    /// Bytes that means may take.
    room: usize,
    pub(super) exact: ExactRows,
    pub(super) pages: StreamPages,
    pub(super) means: StreamMeans,
    pub(super) maps: StreamMaps,
}

impl Stream {
    pub(super) fn new((width, slots): (usize, usize), hot: usize) -> Self {
        let (exact, pages) = (ExactRows::new(width), StreamPages::new(1, slots));
        let (means, maps) = (StreamMeans::Off, StreamMaps::Off);
        Self { width, slots, hot, room: usize::MAX, exact, pages, means, maps }
    }

    /// Divides rows into heads of `dim` values, which have means and go through maps. Rows are never encoded
    /// before this call.
    pub(super) fn divide(&mut self, dim: usize, means: StreamMeans, maps: StreamMaps) {
        let heads = self.width / dim;
        (self.means, self.maps) = (means, maps);
        self.exact.divide(dim);
        self.pages.divide(heads);
    }

    /// Limits the bytes of means. The first ones are made nevertheless.
    pub(super) fn limit_means(&mut self, room: usize) {
        self.room = room;
    }

    fn dim(&self) -> usize {
        self.exact.dim()
    }

    /// A number that no slot with a row reaches.
    pub(super) fn end(&self) -> usize {
        (self.exact.pages().max(self.pages.len()) * PAGE_TOKENS).min(self.slots)
    }

    pub(super) fn place(&self, slot: usize) -> SlotPlace {
        if let Some(row) = self.exact.row_of(slot) {
            return SlotPlace::Exact(row);
        }
        self.pages.tier_of(slot).map_or(SlotPlace::Empty, SlotPlace::Coded)
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        let rows = self.exact.held_bytes() + self.pages.held_bytes();
        rows + self.maps.held_bytes() + self.means.held_bytes()
    }

    /// Writes a row to a slot. It stays exact until [`Stream::cool`] encodes it, or for good if it has no place, as a
    /// sink has none.
    pub(super) fn write(&mut self, slot: usize, row: &[f16], place: Option<RowPlace>) {
        self.pages.remove(slot);
        let at = self.exact.make(slot);
        let mut parts = row.chunks_exact(self.dim());
        self.exact.change(at, |head| head.copy_from_slice(parts.next().unwrap_or_default()));
        if let Some(place) = place {
            self.exact.wait(at, place);
        }
    }

    /// Encodes rows that are older than the newest `hot` ones. A row that cannot be encoded stays exact for
    /// good. If `is_restored`, rows may be decoded codes, which then become the same codes again.
    pub(super) fn cool(&mut self, format: &SlotFormat, turn: RopeLayout, is_restored: bool) {
        if format.tiers() == 0 || format.dim != self.dim() {
            return;
        }
        let extra = self.exact.waiting().saturating_sub(self.hot);
        // Keys wait until there are enough for a mean. Values wait as long, because attention is faster where
        // both sides have a slot in the same state.
        if self.pages.are_new() && extra < MEAN_TOKENS || self.must_learn_first() {
            return;
        }
        self.learn_mean(format, turn, is_restored);
        if self.is_learning() {
            let slots = self.oldest_finite(MOST_TOKENS);
            let mut maps = std::mem::replace(&mut self.maps, StreamMaps::Off);
            maps.learn(&slots, turn, format, |head| {
                let mut keys = self.exact.wide(head, &slots);
                subtract(&mut keys, self.means.of(head, 0));
                keys
            });
            self.maps = maps;
        }
        // With a window shorter than a batch, every row is encoded at once.
        let count = if self.hot < BATCH { extra } else { self.exact.leaving(extra) };
        self.leave_oldest(format, count, is_restored);
        // The next rows need memory before the oldest leave again.
        self.exact.release(BATCH);
        self.demote(format);
    }

    /// Learns the first means, and the maps that come from the same keys.
    fn learn_mean(&mut self, format: &SlotFormat, turn: RopeLayout, is_restored: bool) {
        let StreamMeans::Learning { least_share, follow, .. } = self.means else { return };
        let oldest = self.oldest_finite(MEAN_TOKENS);
        // Maps do not come with restored rows, so these have other codes.
        let is_restored = is_restored && !self.is_learning();
        let (dim, gets_map) = (self.dim(), matches!(self.maps, StreamMaps::OfKeys));
        let learnt = (0..self.exact.heads()).map(|head| {
            let rows = self.exact.wide(head, &oldest);
            let recovered = || means::recover(&rows, dim, |rows| format.round_trip(rows));
            if let Some(mean) = if is_restored { recovered() } else { None } {
                return (mean, None);
            }
            let mean = means::mean_of(&rows, dim, least_share);
            let map = gets_map
                .then(|| PairFactors::of_keys(&shares(&rows, dim, &mean), turn.places(dim).as_deref()));
            (mean, map.flatten().map(Arc::new))
        });
        let (means, maps) = learnt.unzip();
        self.means = StreamMeans::known(means, follow, self.room);
        if gets_map {
            self.maps = StreamMaps::known(maps);
        }
    }

    /// Encodes a few rows before their time. Returns their number: 0 if none waits, or if the stream has no
    /// mean yet.
    pub(super) fn leave_early(&mut self, format: &SlotFormat) -> usize {
        let count = self.exact.waiting().min(BATCH);
        if self.pages.are_new() || format.tiers() == 0 {
            return 0;
        }
        self.leave_oldest(format, count, false);
        self.exact.release(0);
        count
    }

    /// Encodes the rows that have waited longest.
    fn leave_oldest(&mut self, format: &SlotFormat, mut count: usize, is_restored: bool) {
        let (is_restored, mut checked) = (is_restored && matches!(self.maps, StreamMaps::Off), None);
        while count > 0 {
            let (slots, times) = self.exact.oldest(count.min(PIECE), |_| true);
            let Some(&oldest) = slots.first() else { break };
            let number = self.mean_number(oldest);
            // Rows that should have another mean leave next.
            let rows = slots.into_iter().zip(times).filter(|(slot, _)| self.mean_number(*slot) == number);
            let (slots, times): (Vec<_>, Vec<_>) = rows.unzip();
            count -= slots.len();
            let mut basis = self.means.basis_for(number, format, &self.maps, self.room);
            if is_restored && checked.replace(number) != Some(number) {
                let finite: Vec<usize> = slots.iter().copied().filter(|slot| self.is_finite(*slot)).collect();
                let rows = |head: usize| self.exact.wide(head, &finite);
                basis = self.means.restored(number, format, self.room, rows);
            }
            self.leave(format, (&slots, &times), basis);
        }
    }

    /// True if a slot has an exact row of finite values.
    fn is_finite(&self, slot: usize) -> bool {
        self.exact.row_of(slot).is_some_and(|row| self.exact.not_finite(row..row + 1).is_empty())
    }

    /// Number of the mean that the row of an exact slot should have.
    fn mean_number(&self, slot: usize) -> usize {
        self.exact.row_of(slot).map_or(0, |row| self.exact.place_of(row).mean.into())
    }

    /// True if there are too few finite rows for what the stream learns from them, or too few queries.
    fn must_learn_first(&self) -> bool {
        let least = match self.means {
            _ if self.is_learning() => LEARN_TOKENS,
            StreamMeans::Learning { least, .. } => least,
            _ => return false,
        };
        self.maps.wait() || self.oldest_finite(least).len() < least
    }

    /// True if the maps of the stream are not made yet.
    pub(super) fn is_learning(&self) -> bool {
        matches!(self.maps, StreamMaps::Learning(_))
    }

    /// Shows queries (`[n, dim]`) of one head to a stream that learns maps.
    pub(super) fn show(
        &mut self,
        (level, head): (Level, usize),
        rule: &QueryRule,
        asked: &[QueryMask<'_>],
        queries: &[f32],
    ) {
        let StreamMaps::Learning(heads) = &mut self.maps else { return };
        let slots: Vec<usize> = self.exact.slots_of(0..self.exact.len()).collect();
        let dim = self.exact.dim();
        let mut logits = vec![0.0; slots.len()];
        for (query, asked) in queries.chunks_exact(dim).zip(asked) {
            let scaled: Vec<f32> = query.iter().map(|x| x * rule.scale).collect();
            row_scores(level, self.exact.head(head), dim, &scaled, &mut logits);
            heads[head].take((rule, asked), query, (&slots, &mut logits));
        }
    }

    /// The slots with finite rows that have waited longest, at most `count`.
    fn oldest_finite(&self, count: usize) -> Vec<usize> {
        self.exact.oldest(count, |owner| owner.is_finite).0
    }

    /// Encodes the rows of some exact slots, which were written at these times. A row that cannot be
    /// encoded stays exact for good.
    fn leave(&mut self, format: &SlotFormat, (slots, times): (&[usize], &[u64]), basis: usize) {
        for &slot in slots {
            if let Some(row) = self.exact.row_of(slot) {
                self.exact.stay(row);
            }
        }
        let place = (basis, self.pages.turns.of_new());
        if let Some(blocks) = self.encode(format, slots, place) {
            self.means.count(format, basis, slots.len(), &blocks);
            self.put((format, 0), slots, place, &blocks, times);
        } else if slots.len() > 1 {
            for (slot, time) in slots.chunks(1).zip(times.chunks(1)) {
                if let Some(blocks) = self.encode(format, slot, place) {
                    self.means.count(format, basis, 1, &blocks);
                    self.put((format, 0), slot, place, &blocks, time);
                }
            }
        }
    }

    /// Encodes exact slots to blocks, head by head, as rows that are turned later; none if a row cannot be encoded.
    pub(super) fn encode(
        &self,
        format: &SlotFormat,
        slots: &[usize],
        (basis, turn): (usize, usize),
    ) -> Option<Vec<Vec<u8>>> {
        let each = |head: usize| {
            let (mut rows, mut blocks) = (self.exact.wide(head, slots), Vec::new());
            rows.chunks_exact_mut(self.dim()).for_each(|row| self.pages.turns.turn_back(turn, row));
            self.code((format, 0), (head, basis), &mut rows, &mut blocks).then_some(blocks)
        };
        let heads = 0..self.exact.heads();
        // In the host's threads, if this one is among them.
        if slots.len() >= PIECE / 2 && threads::is_shared() {
            heads.into_par_iter().map(each).collect()
        } else {
            heads.map(each).collect()
        }
    }

    /// Encodes rows (`[n, dim]`) of one head to blocks of a tier and a basis; false if one cannot be encoded. The rows
    /// are used up.
    pub(super) fn code(
        &self,
        (format, tier): (&SlotFormat, usize),
        (head, basis): (usize, usize),
        rows: &mut [f32],
        blocks: &mut Vec<u8>,
    ) -> bool {
        let map = self.maps.of(head);
        prepare(rows, self.means.of(head, basis), map);
        format.encode(tier, rows, map.and_then(PairFactors::weights), blocks)
    }

    /// Makes slots codes of a tier, and of a basis and a turn, with a block per head and slot, and the times of their
    /// writes or one for all.
    pub(super) fn put(
        &mut self,
        format: (&SlotFormat, usize),
        slots: &[usize],
        place: (usize, usize),
        blocks: &[Vec<u8>],
        times: &[u64],
    ) {
        self.pages.set_place(slots, place);
        self.pages.put(format, slots, blocks, times);
        slots.iter().for_each(|&slot| self.exact.remove(slot));
    }

    /// Moves pages of codes that are due to the next tier. A page with a row that waits has codes to come. One
    /// with a code that cannot be encoded again stays.
    fn demote(&mut self, format: &SlotFormat) {
        for tier in 0..format.tiers().saturating_sub(1) {
            let Some(time) = self.exact.time().checked_sub(format.after(tier + 1) as u64) else { continue };
            for (page, newest) in self.pages.older(tier, time) {
                if self.exact.waits_in(page) {
                    continue;
                }
                let slots = self.pages.slots(tier, page);
                let blocks = |head| self.pages.blocks((format, tier), head, page, &slots);
                let recode = |head| {
                    format.recode(tier, &blocks(head), self.maps.of(head).and_then(PairFactors::weights))
                };
                let colder: Option<Vec<Vec<u8>>> = (0..self.exact.heads()).map(recode).collect();
                if let Some(colder) = colder {
                    let slots: Vec<usize> = slots.iter().map(|slot| page * PAGE_TOKENS + slot).collect();
                    self.pages.put((format, tier + 1), &slots, &colder, &[newest]);
                }
            }
        }
    }

    /// Decodes some slots of one head in a page, codes of a tier: `[slots, dim]`.
    pub(super) fn decode(
        &self,
        (format, tier): (&SlotFormat, usize),
        head: usize,
        page: usize,
        slots: &[usize],
    ) -> Vec<f32> {
        let mut rows = vec![0.0; slots.len() * self.dim()];
        let blocks = self.pages.blocks((format, tier), head, page, slots);
        if !blocks.is_empty() {
            format.decode(tier, &blocks, &mut rows);
            self.maps.undo(head, &mut rows);
            for (slot, row) in slots.iter().zip(rows.chunks_exact_mut(self.dim())) {
                let slot = page * PAGE_TOKENS + slot;
                add(row, self.means.of(head, self.pages.bases.of(slot)));
                self.pages.turns.turn(self.pages.turns.of(slot), row);
            }
        }
        rows
    }

    /// Reads slots from `first` on as f16; `out` is `[n, width]`. Empty slots give zeros.
    pub(super) fn read(&self, format: Option<&SlotFormat>, first: usize, out: &mut [f16]) {
        let (width, end) = (self.width, first + out.len() / self.width);
        for (slot, row) in (first..end).zip(out.chunks_exact_mut(width)) {
            match self.exact.row_of(slot) {
                Some(at) => self.exact.read(at, row),
                None => row.fill(f16::ZERO),
            }
        }
        let Some(format) = format else { return };
        for page in first / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
            for tier in 0..format.tiers() {
                self.read_codes((format, tier), page, first, out);
            }
        }
    }

    /// Reads the codes of a tier in a page, as far as they are among the rows from `first` on.
    fn read_codes(&self, of: (&SlotFormat, usize), page: usize, first: usize, out: &mut [f16]) {
        let (start, dim, end) = (page * PAGE_TOKENS, self.dim(), first + out.len() / self.width);
        let mut slots = self.pages.slots(of.1, page);
        slots.retain(|slot| (first..end).contains(&(start + slot)));
        if slots.is_empty() {
            return;
        }
        for head in 0..self.exact.heads() {
            let rows = self.decode(of, head, page, &slots);
            for (slot, row) in slots.iter().zip(rows.chunks_exact(dim)) {
                let at = (start + slot - first) * self.width + head * dim;
                // What the codec adds to the largest values must not make them infinite.
                let row: Vec<f32> = row.iter().map(|x| x.clamp(-LARGEST, LARGEST)).collect();
                out[at..at + dim].convert_from_f32_slice(&row);
            }
        }
    }

    /// Empties a slot. [`Stream::release`] frees its memory.
    pub(super) fn forget(&mut self, slot: usize) {
        self.exact.remove(slot);
        self.pages.remove(slot);
    }

    /// Frees what emptied slots have left.
    pub(super) fn release(&mut self) {
        self.exact.release_removed();
        self.pages.trim();
    }
}

/// What a slot holds, as it is copied.
#[derive(Debug)]
pub(super) enum Content {
    Empty,
    Exact {
        row: Vec<f16>,
        /// As of [`Stream::write`].
        place: Option<RowPlace>,
    },
    /// The tier, and a block per head.
    Coded(usize, Vec<Vec<u8>>),
}

impl Stream {
    /// True if no slot holds a row.
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.pages.are_empty()
    }

    /// What the codes of this stream depend on besides the rows; none before the first code.
    pub(super) fn basis(&self) -> Option<(StreamMeans, StreamMaps)> {
        let learns = self.is_learning() || matches!(self.means, StreamMeans::Learning { .. });
        (!learns).then(|| (self.means.clone(), self.maps.clone()))
    }

    pub(super) fn set_basis(&mut self, (means, maps): (StreamMeans, StreamMaps)) {
        (self.means, self.maps) = (means, maps);
    }

    /// The basis and the turn here of the code in a slot of another stream; none if it is no code, or cannot be that code
    /// here.
    pub(super) fn place_for(&mut self, other: &Self, slot: usize) -> Option<(usize, usize)> {
        other.pages.tier_of(slot).filter(|_| self.maps.is_same(&other.maps))?;
        let (basis, pages) = (other.pages.bases.of(slot), &self.pages);
        let basis = self.means.adopt(&other.means, basis, self.room, || pages.bases_in_use())?;
        let turn = self.pages.turns.adopt(&other.pages.turns, other.pages.turns.of(slot))?;
        Some((basis, turn))
    }

    /// Takes the bases by number of a stream that rows came from, if there is room for all of them.
    pub(super) fn adopt_numbers(&mut self, other: &Self) {
        let mut found: Vec<u8> = Vec::new();
        for basis in other.means.numbers() {
            let in_use = || {
                let mut used = self.pages.bases_in_use();
                used.resize(used.len().max(usize::from(u8::MAX) + 1), false);
                found.iter().for_each(|basis| used[usize::from(*basis)] = true);
                used
            };
            let Some(at) = self.means.adopt(&other.means, (*basis).into(), self.room, in_use) else { return };
            found.push(at as u8);
        }
        self.means.set_numbers(&found);
    }

    /// The blocks of some codes of a tier, by head.
    pub(super) fn all_blocks(&self, (format, tier): (&SlotFormat, usize), slots: &[usize]) -> Vec<Vec<u8>> {
        let mut blocks = vec![Vec::new(); self.exact.heads()];
        for slots in slots.chunk_by(|a, b| a / PAGE_TOKENS == b / PAGE_TOKENS) {
            let (page, within) =
                (slots[0] / PAGE_TOKENS, Vec::from_iter(slots.iter().map(|at| at % PAGE_TOKENS)));
            for (head, blocks) in blocks.iter_mut().enumerate() {
                blocks.extend(self.pages.blocks((format, tier), head, page, &within));
            }
        }
        blocks
    }

    /// Values per row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// What a slot holds: codes as they are, or decoded unless `as_codes`.
    pub(super) fn take_copy(&self, format: Option<&SlotFormat>, slot: usize, as_codes: bool) -> Content {
        match (self.place(slot), format) {
            (SlotPlace::Empty, _) => Content::Empty,
            (SlotPlace::Coded(tier), Some(format)) if as_codes => {
                let (page, within) = (slot / PAGE_TOKENS, [slot % PAGE_TOKENS]);
                let blocks = |head| self.pages.blocks((format, tier), head, page, &within);
                Content::Coded(tier, (0..self.exact.heads()).map(blocks).collect())
            }
            (place, _) => {
                let mut row = vec![f16::ZERO; self.width];
                self.read(format, slot, &mut row);
                let place = match place {
                    SlotPlace::Exact(at) => (!self.exact.stays(at)).then(|| self.exact.place_of(at)),
                    _ => Some(self.place_of_code(slot)),
                };
                Content::Exact { row, place }
            }
        }
    }

    /// The place of a row that is a code, as far as that is known.
    pub(super) fn place_of_code(&self, slot: usize) -> RowPlace {
        RowPlace { phase: (slot % BATCH) as u8, mean: self.means.number_of(self.pages.bases.of(slot)) }
    }

    /// Makes a slot hold a copy. Codes, which get a basis and a turn of this stream, count as written now.
    pub(super) fn put_copy(
        &mut self,
        format: Option<&SlotFormat>,
        slot: usize,
        content: Content,
        place: (usize, usize),
    ) {
        match (content, format) {
            (Content::Exact { row, place }, _) => self.write(slot, &row, place),
            (Content::Coded(tier, blocks), Some(format)) => {
                self.put((format, tier), &[slot], place, &blocks, &[self.exact.time()]);
            }
            (Content::Empty | Content::Coded(..), _) => self.forget(slot),
        }
    }
}

/// The largest f16.
const LARGEST: f32 = 65504.0;

//! The codes of a stream, in pages of [`PAGE_TOKENS`] slots. Each tier has pages of its own, and a slot is a
//! code in one of them. Pages lie in reserved address space, so none moves when others come or go.

use super::exact_rows::{cut, reach, trim};
use super::format::{STEPS, SlotFormat};
use super::page_numbers::PageNumbers;
use super::turns::{StreamTurns, TurnRule};
use crate::cache::format::PageFormat;
use crate::cache::life::PAGE_TOKENS;
use crate::reserve::Table;
use std::ops::Range;
use std::sync::Arc;
use tqkv_simd::page::{Line, SLOT_STEP};

/// Number of first pages that grow with their slots in a stream with a limit of bytes. Later ones have their full size at once,
/// as half a page is then a small share.
const GROWING: usize = 64;

/// The pages of one tier.
#[derive(Clone, Debug)]
struct TierPages {
    /// Lines of one head in pages with room for one, two and more steps of slots.
    lines: [usize; STEPS],
    /// Codes: each page has memory for `[heads, lines]` of a full page, and uses the first part of it that it
    /// has room in. Zeros in pages where no slot is a code.
    memory: Table<Line>,
    /// Steps of slots that each page has room for; 0 for a page without codes.
    room: Vec<u8>,
    /// One bit per slot, by page: set if the slot is a code of this tier.
    slots: Vec<u128>,
    /// Time of the newest write among the codes of each page; empty if there is one tier.
    newest: Vec<u64>,
}

impl TierPages {
    fn new(lines: [usize; STEPS], memory: Table<Line>) -> Self {
        Self { lines, memory, room: Vec::new(), slots: Vec::new(), newest: Vec::new() }
    }

    /// Lines of a full page of one head.
    fn whole(&self) -> usize {
        self.lines[STEPS - 1]
    }

    /// Steps of slots that a page has room for.
    fn room(&self, page: usize) -> usize {
        self.room.get(page).copied().unwrap_or(0).into()
    }

    /// The lines of a head in a page.
    fn part(&self, heads: usize, head: usize, page: usize) -> Range<usize> {
        let lines = self.room(page).checked_sub(1).map_or(0, |steps| self.lines[steps]);
        let start = page * heads * self.whole() + head * lines;
        start..start + lines
    }

    fn mask(&self, page: usize) -> u128 {
        self.slots.get(page).copied().unwrap_or(0)
    }

    /// Frees the memory of a page without codes, of `lines` lines. What it shares with a page of the system
    /// goes with the neighbours, if they have no codes either.
    fn free(&mut self, page: usize, lines: usize) {
        let first = page - usize::from(page > 0 && self.mask(page - 1) == 0);
        let last = page + usize::from(page + 1 < self.slots.len() && self.mask(page + 1) == 0);
        self.memory.forget(first * lines..(last + 1) * lines);
    }
}

/// The codes of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamPages {
    heads: usize,
    /// Pages of the stream at most.
    most: usize,
    /// Number of first pages that grow with their slots. The others have their full size at once, which takes
    /// less time.
    growing: usize,
    tiers: Vec<TierPages>,
    /// What the codes are differences to, whatever their tier.
    pub(super) bases: PageNumbers,
    /// How far shifts have turned the codes, whatever their tier.
    pub(super) turns: StreamTurns,
}

impl StreamPages {
    /// No codes, for a stream with this many slots.
    pub(super) fn new(heads: usize, slots: usize) -> Self {
        Self { heads, most: slots.div_ceil(PAGE_TOKENS), ..Self::default() }
    }

    /// Makes the first pages grow with their slots.
    pub(super) fn grow(&mut self) {
        self.growing = GROWING;
    }

    /// Divides pages without codes into this many heads.
    pub(super) fn divide(&mut self, heads: usize) {
        self.heads = heads;
    }

    /// True before the first code.
    pub(super) fn are_new(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Number of tiers that have or had a code.
    pub(super) fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// True if no slot is a code.
    pub(super) fn are_empty(&self) -> bool {
        self.tiers.iter().all(|tier| tier.slots.iter().all(|slots| *slots == 0))
    }

    /// Number of pages up to the last slot that was a code.
    pub(super) fn len(&self) -> usize {
        self.tiers.iter().map(|tier| tier.slots.len()).max().unwrap_or(0)
    }

    /// The slots of a page that are codes of a tier, one bit each.
    pub(super) fn mask(&self, tier: usize, page: usize) -> u128 {
        self.tiers.get(tier).map_or(0, |tier| tier.mask(page))
    }

    /// The slots of a page that are codes, one bit each.
    pub(super) fn all(&self, page: usize) -> u128 {
        self.tiers.iter().fold(0, |all, tier| all | tier.mask(page))
    }

    /// The tier of a slot's code.
    pub(super) fn tier_of(&self, slot: usize) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.mask(slot / PAGE_TOKENS) >> (slot % PAGE_TOKENS) & 1 == 1)
    }

    /// The slots of a page that are codes of a tier, counted in the page.
    pub(super) fn slots(&self, tier: usize, page: usize) -> Vec<usize> {
        let mask = self.mask(tier, page);
        (0..PAGE_TOKENS).filter(|slot| mask >> slot & 1 == 1).collect()
    }

    /// Codes of one head in a page; none where no slot of the page is a code of the tier.
    pub(super) fn page(&self, tier: usize, head: usize, page: usize) -> Option<&[Line]> {
        let tier = self.tiers.get(tier).filter(|tier| tier.mask(page) != 0)?;
        tier.memory.get(tier.part(self.heads, head, page))
    }

    /// Steps of slots that a page of a tier has room for.
    pub(super) fn room(&self, tier: usize, page: usize) -> usize {
        self.tiers.get(tier).map_or(0, |tier| tier.room(page))
    }

    /// For each basis, if a code has it.
    pub(super) fn bases_in_use(&self) -> Vec<bool> {
        let mut used = Vec::new();
        for page in 0..self.len() {
            let (codes, one) = (self.all(page), self.bases.one(page));
            let of = |slot: usize| one.unwrap_or_else(|| self.bases.of(page * PAGE_TOKENS + slot));
            for slot in (0..PAGE_TOKENS).filter(|slot| codes >> slot & 1 == 1) {
                let basis = of(slot);
                used.resize(used.len().max(basis + 1), false);
                used[basis] = true;
            }
        }
        used
    }

    /// Says that some slots are to have codes of a basis and a turn. They have none now, or other ones.
    pub(super) fn set_place(&mut self, slots: &[usize], (basis, turn): (usize, usize)) {
        for run in slots.chunk_by(|a, b| a / PAGE_TOKENS == b / PAGE_TOKENS) {
            let (page, own) =
                (run[0] / PAGE_TOKENS, run.iter().fold(0, |own, slot| own | 1 << (slot % PAGE_TOKENS)));
            let others = self.all(page) & !own;
            self.bases.set(page, own, others, basis);
            self.turns.set(page, own, others, turn);
        }
    }

    /// Sets the turns of all codes anew. `all` has those that occur, in positions and without none, and `of` those of all
    /// slots.
    pub(super) fn set_all_turns(&mut self, rule: &Arc<TurnRule>, all: &[i64], of: &[i64]) {
        self.turns = StreamTurns::new(rule, all);
        for (page, of) in of.chunks(PAGE_TOKENS).enumerate() {
            let (codes, mut known) = (self.all(page), 0);
            for turn in 0..self.turns.count() {
                let has = |slot: &usize| of[*slot] == self.turns.positions(turn);
                let own = (0..of.len()).filter(has).fold(0, |own, slot| own | 1 << slot) & codes;
                if own != 0 {
                    self.turns.set(page, own, known, turn);
                    known |= own;
                }
            }
        }
    }

    /// Writes the blocks of each head, and counts the slots as codes of a tier. `times` are those of their writes, or
    /// the one of all of them. The slots keep their bases.
    pub(super) fn put(
        &mut self,
        (format, tier): (&SlotFormat, usize),
        slots: &[usize],
        blocks: &[Vec<u8>],
        times: &[u64],
    ) {
        slots.iter().for_each(|&slot| self.remove_unless(slot, Some(tier)));
        while self.tiers.len() <= tier {
            let lines = format.lines(self.tiers.len());
            self.tiers.push(TierPages::new(lines, Table::new(self.most * self.heads * lines[STEPS - 1])));
        }
        let mut from = 0;
        for run in slots.chunk_by(|a, b| a / PAGE_TOKENS == b / PAGE_TOKENS) {
            let (page, within) =
                (run[0] / PAGE_TOKENS, run.iter().map(|slot| slot % PAGE_TOKENS).collect::<Vec<_>>());
            self.make_room((format, tier), page, &within);
            let heads = self.heads;
            let to = &mut self.tiers[tier];
            for (head, blocks) in blocks.iter().enumerate() {
                let (bytes, part) = (blocks.len() / slots.len(), to.part(heads, head, page));
                let blocks = &blocks[from * bytes..(from + run.len()) * bytes];
                if let Some(pages) = format.pages_of(tier, to.room(page)) {
                    pages.write_blocks(&mut to.memory[part], within.iter().copied(), blocks);
                }
            }
            within.iter().for_each(|slot| to.slots[page] |= 1 << slot);
            if let Some(newest) = to.newest.get_mut(page) {
                let times = times.get(from..from + run.len()).unwrap_or(times);
                *newest = times.iter().fold(*newest, |newest, time| newest.max(*time));
            }
            from += run.len();
        }
    }

    /// Makes a page large enough for some slots, which are counted in the page. Codes that it has are written
    /// again as they lie in the larger page.
    fn make_room(&mut self, (format, tier): (&SlotFormat, usize), page: usize, slots: &[usize]) {
        let (heads, growing, held) = (self.heads, self.growing, self.slots(tier, page));
        let of = &mut self.tiers[tier];
        if of.slots.len() <= page {
            reach(&mut of.slots, page);
            reach(&mut of.room, page);
            if format.tiers() > 1 {
                reach(&mut of.newest, page);
            }
            of.memory.resize(of.memory.len().max((page + 1) * heads * of.whole()));
        }
        let needed = slots.iter().max().map_or(0, |slot| slot / SLOT_STEP + 1);
        let (before, steps) = (of.room(page), if page < growing { needed } else { STEPS });
        if steps <= before {
            return;
        }
        let parts = |of: &TierPages| (0..heads).map(|head| of.part(heads, head, page)).collect::<Vec<_>>();
        let read = |pages: &PageFormat| {
            let part = |part| pages.read_blocks(&of.memory[part], held.iter().copied());
            parts(of).into_iter().map(part).collect::<Vec<_>>()
        };
        let blocks = format.pages_of(tier, before).map(read).unwrap_or_default();
        let start = page * heads * of.whole();
        of.memory[start..start + heads * of.lines[steps - 1]].fill(Line::ZERO);
        of.room[page] = steps as u8;
        let Some(pages) = format.pages_of(tier, steps) else { return };
        for (part, blocks) in parts(of).into_iter().zip(&blocks) {
            pages.write_blocks(&mut of.memory[part], held.iter().copied(), blocks);
        }
    }

    /// Marks a slot as no code any more, and frees its page after the last code.
    pub(super) fn remove(&mut self, slot: usize) {
        self.remove_unless(slot, None);
    }

    /// Same as [`StreamPages::remove`], except for a code of the tier `kept`.
    fn remove_unless(&mut self, slot: usize, kept: Option<usize>) {
        let Some(tier) = self.tier_of(slot).filter(|tier| Some(*tier) != kept) else { return };
        let (page, heads, of) = (slot / PAGE_TOKENS, self.heads, &mut self.tiers[tier]);
        of.slots[page] &= !(1 << (slot % PAGE_TOKENS));
        if of.slots[page] == 0 {
            of.room[page] = 0;
            if let Some(newest) = of.newest.get_mut(page) {
                *newest = 0;
            }
            of.free(page, heads * of.whole());
        }
    }

    /// Frees what the lists have after the last page with codes.
    pub(super) fn trim(&mut self) {
        for tier in &mut self.tiers {
            let pages = trim(&mut tier.slots);
            cut(&mut tier.room, pages);
            cut(&mut tier.newest, pages);
        }
        self.bases.cut(self.len());
        self.turns.cut(self.len());
    }

    /// The pages of a tier that have codes, none of them written after `time`, and the time of the newest.
    pub(super) fn older(&self, tier: usize, time: u64) -> Vec<(usize, u64)> {
        let Some(tier) = self.tiers.get(tier) else { return Vec::new() };
        let pages = tier.newest.iter().copied().enumerate();
        pages.filter(|&(page, newest)| tier.slots[page] != 0 && newest <= time).collect()
    }

    /// The blocks of some slots of a page of one head, back to back.
    pub(super) fn blocks(
        &self,
        (format, tier): (&SlotFormat, usize),
        head: usize,
        page: usize,
        slots: &[usize],
    ) -> Vec<u8> {
        let Some(lines) = self.page(tier, head, page) else { return Vec::new() };
        let pages = format.pages_of(tier, self.room(tier, page));
        pages.map_or_else(Vec::new, |pages| pages.read_blocks(lines, slots.iter().copied()))
    }

    /// Bytes held: pages of the system that have codes, and the lists.
    pub(super) fn held_bytes(&self) -> usize {
        let of = |tier: &TierPages| {
            let pages = (0..tier.slots.len()).filter(|&page| tier.slots[page] != 0);
            let last = |page| tier.part(self.heads, self.heads - 1, page).end;
            tier.memory.held_in(pages.map(|page| tier.part(self.heads, 0, page).start..last(page)))
                + tier.room.capacity()
                + tier.slots.capacity() * size_of::<u128>()
                + tier.newest.capacity() * size_of::<u64>()
        };
        self.tiers.iter().map(of).sum::<usize>() + self.bases.held_bytes() + self.turns.held_bytes()
    }
}

//! Pages: runs of encoded tokens of one KV head, and the store that holds them in order.

mod ring;

use super::budget::{Budget, Lease};
use super::format::PageFormat;
use super::life::PAGE_TOKENS;
use super::map::PairFactors;
use super::meter::{Event, count};
use super::spec::CacheSpec;
use super::spill::Spilled;
use super::tier::{TierStore, Tiers, encode_to, transcode};
use crate::attend::PageView;
use crate::error::CacheError;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use tqkv_simd::page::{Line, SLOT_STEP, ask_for};

/// The place of a page's lines.
#[derive(Clone, Debug)]
pub(super) enum PageMemory {
    /// Blocks back to back. The page has so few tokens that full lines would be larger than f16 rows.
    Loose(Box<[u8]>),
    Held(Box<[Line]>),
    Spilled(Spilled),
}

/// Up to [`PAGE_TOKENS`] blocks of one codec. Copy on write when forks share it. Starts small, so that even
/// one token takes less room than in f16.
#[derive(Debug)]
struct Page {
    memory: PageMemory,
    budget: Budget,
}

impl Page {
    fn new(memory: PageMemory, budget: &Budget) -> Self {
        let page = Self { memory, budget: budget.clone() };
        budget.take(page.allocated_bytes());
        page
    }

    fn set(&mut self, memory: PageMemory) {
        self.budget.give_back(self.allocated_bytes());
        self.memory = memory;
        self.budget.take(self.allocated_bytes());
    }

    /// The lines; empty if they are not in memory.
    fn lines(&self) -> &[Line] {
        match &self.memory {
            PageMemory::Held(lines) => lines,
            PageMemory::Loose(_) | PageMemory::Spilled(_) => &[],
        }
    }

    /// The lines, read from the file if they were spilled.
    fn load(&self) -> Result<Cow<'_, [Line]>, CacheError> {
        let PageMemory::Spilled(spilled) = &self.memory else { return Ok(Cow::Borrowed(self.lines())) };
        let mut lines = Vec::new();
        spilled.read(&mut lines).map_err(|error| CacheError::Spill(error.to_string()))?;
        Ok(Cow::Owned(lines))
    }

    /// Clears the lines for the next tokens.
    fn blank(&mut self) {
        if let PageMemory::Held(lines) = &mut self.memory {
            lines.fill(Line::ZERO);
        }
    }

    /// Bytes of the blocks and of the page's own structure.
    fn allocated_bytes(&self) -> usize {
        let blocks = match &self.memory {
            PageMemory::Loose(blocks) => blocks.len(),
            PageMemory::Held(lines) => size_of_val(&**lines),
            PageMemory::Spilled(_) => 0,
        };
        blocks + PAGE_OVERHEAD
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        Self::new(self.memory.clone(), &self.budget)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.budget.give_back(self.allocated_bytes());
    }
}

/// Empty pages of one tier of a ring; see [`ring`].
#[derive(Debug, Default)]
struct Shelf {
    pages: Vec<Arc<Page>>,
    /// Number of pages of the tier, on the shelf and in use, that a ring has. 0 without a ring.
    most: usize,
}

impl Clone for Shelf {
    /// The copy has no pages of its own yet.
    fn clone(&self) -> Self {
        Self { pages: Vec::new(), most: self.most }
    }
}

impl Shelf {
    /// Number of pages that a tier lacks, which uses `used` pages of its own.
    fn missing(&self, used: usize) -> usize {
        self.most.saturating_sub(used + self.pages.len())
    }

    /// Bytes of the list of these pages.
    fn list_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Arc<Page>>()
    }
}

/// Number of pages from which the last page is allocated in full. It is half empty on average, which is 3 %
/// of the memory then. A growing page is rewritten every [`SLOT_STEP`] tokens if tokens come one by one.
pub(super) const MANY_PAGES: usize = 16;

/// Memory of a page besides its blocks: the struct and its reference counts.
const PAGE_OVERHEAD: usize = size_of::<Page>() + 2 * size_of::<usize>();

impl CacheSpec {
    /// Bytes of a page's own structure, besides its blocks.
    pub const PAGE_HEADER_BYTES: usize = PAGE_OVERHEAD;
}

/// All encoded tokens of one head's keys (or values), oldest first.
///
/// Every page but the last is full, so token `i` is slot `i % PAGE_TOKENS` of page `i / PAGE_TOKENS`. Evicted
/// pages leave a gap at the front. The last page grows in steps, and is allocated in full once that costs
/// little: see [`Pages::arrangement`].
#[derive(Debug)]
pub(super) struct Pages {
    tiers: Tiers,
    pages: VecDeque<Arc<Page>>,
    /// For each tier after the warm one: number of pages, evicted ones included, in this tier or a colder
    /// one.
    cooled: Vec<usize>,
    /// Empty pages of each tier, which a ring takes its pages from.
    shelves: Vec<Shelf>,
    /// Arrangement of the last page if it is warm.
    last: PageFormat,
    /// Bytes of all pages.
    held: usize,
    /// Memory outside the pages that exists only because of them: the key means.
    beside: usize,
    /// Number of pages evicted from the front.
    evicted: usize,
    /// Number of tokens, evicted ones included.
    len: usize,
    /// The map that all vectors go through before they are encoded, if they are keys that have one.
    map: Option<Arc<PairFactors>>,
    /// Counts the bytes of the page list.
    list: Lease,
}

impl Clone for Pages {
    /// The copy has its own lease: its list has no spare room, unlike this one.
    fn clone(&self) -> Self {
        let Self { held, beside, evicted, len, .. } = *self;
        let (tiers, pages, cooled) = (self.tiers.clone(), self.pages.clone(), self.cooled.clone());
        let (map, list, shelves) = (self.map.clone(), self.list.budget().lease(), self.shelves.clone());
        let last = self.last;
        let mut copy = Self { tiers, pages, cooled, shelves, last, held, beside, evicted, len, map, list };
        copy.list.set(copy.list_bytes());
        copy
    }
}

/// A range of slots in one page.
pub(super) struct Run<'a> {
    pub(super) format: &'a PageFormat,
    pub(super) lines: Cow<'a, [Line]>,
    /// First slot.
    pub(super) slot: usize,
    /// Index of the page, counting evicted pages.
    pub(super) page: usize,
    pub(super) tier: usize,
}

impl Run<'_> {
    pub(super) fn view(&self) -> PageView<'_> {
        PageView { format: self.format, lines: &self.lines }
    }
}

impl Pages {
    pub(super) fn new(tiers: Tiers, budget: &Budget) -> Self {
        let last = *tiers.warm();
        Self {
            cooled: vec![0; tiers.len() - 1],
            shelves: vec![Shelf::default(); tiers.len()],
            tiers,
            pages: VecDeque::new(),
            last,
            held: 0,
            beside: 0,
            evicted: 0,
            len: 0,
            map: None,
            list: budget.lease(),
        }
    }

    pub(super) fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    pub(super) fn warm(&self) -> &PageFormat {
        self.tiers.warm()
    }

    /// Number of tokens, evicted ones included.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Index of the first token that is still held.
    pub(super) fn first(&self) -> usize {
        (self.evicted * PAGE_TOKENS).min(self.len)
    }

    /// The map that vectors go through before they are encoded.
    pub(super) fn map(&self) -> Option<&PairFactors> {
        self.map.as_deref()
    }

    /// The format that encodes: the warm one with the weights of the map. The bytes of pages do not depend on
    /// weights, so all else uses the warm format.
    pub(super) fn encoder(&self) -> PageFormat {
        self.warm().weighted(self.map().and_then(PairFactors::weights))
    }

    /// Sets the map of vectors that may have one. Without it, codecs of one width take the place of codes of
    /// quarters. There must be no page yet.
    pub(super) fn set_map(&mut self, map: Option<PairFactors>) {
        self.tiers.set_plain(map.is_none());
        self.last = *self.warm();
        self.map = map.map(Arc::new);
        self.list.set(self.list_bytes());
    }

    /// Sets the memory outside the pages that exists because of them.
    pub(super) fn set_beside(&mut self, bytes: usize) {
        self.beside = bytes;
    }

    /// Encodes vectors (`[n, dim]`) at the end: all of them or none.
    pub(super) fn push(&mut self, x: &[f32], blocks: &mut Vec<u8>) -> Result<(), CacheError> {
        encode_to(&self.encoder(), x, blocks)?;
        self.push_blocks(blocks);
        Ok(())
    }

    /// Appends blocks of the warm codec.
    pub(super) fn push_blocks(&mut self, mut blocks: &[u8]) {
        let bytes = self.warm().codec().block_bytes();
        while !blocks.is_empty() {
            let slot = self.len % PAGE_TOKENS;
            if slot == 0 {
                let page = self.take(0).unwrap_or_else(|| {
                    Arc::new(Page::new(PageMemory::Loose(Box::default()), self.list.budget()))
                });
                if self.is_ring() {
                    self.last = *self.warm();
                }
                self.add(page);
            }
            let count = (PAGE_TOKENS - slot).min(blocks.len() / bytes);
            let (now, later) = blocks.split_at(count * bytes);
            self.len += count;
            self.write_last(slot, now);
            blocks = later;
        }
    }

    fn add(&mut self, page: Arc<Page>) {
        self.held += page.allocated_bytes();
        self.pages.reserve_exact(1);
        self.pages.push_back(page);
        self.list.set(self.list_bytes());
    }

    /// Writes blocks to the last page from `slot` on; `len` already counts them.
    fn write_last(&mut self, slot: usize, blocks: &[u8]) {
        let bytes = self.warm().codec().block_bytes();
        let needed = slot + blocks.len() / bytes;
        let Some(page) = self.pages.back_mut() else { return };
        if let PageMemory::Held(lines) = &mut Arc::make_mut(page).memory
            && needed <= self.last.slots()
        {
            return self.last.write_blocks(lines, slot.., blocks);
        }
        let (wanted, in_lines) = self.arrangement(needed);
        let Some(page) = self.pages.back_mut() else { return };
        let page = Arc::make_mut(page);
        let before = match &page.memory {
            PageMemory::Loose(loose) => loose.to_vec(),
            PageMemory::Held(_) | PageMemory::Spilled(_) => self.last.read_blocks(page.lines(), 0..slot),
        };
        let all = [&before[..slot * bytes], blocks].concat();
        self.last = wanted;
        self.held -= page.allocated_bytes();
        page.set(if in_lines {
            PageMemory::Held(wanted.arrange(&all).into())
        } else {
            PageMemory::Loose(all.into())
        });
        self.held += page.allocated_bytes();
    }

    /// Arrangement of a last page of `needed` tokens, and true if it is kept in lines. Behind many pages
    /// whose codes have saved enough, the page is allocated in full. Else it is as small as possible, so that
    /// a cache is never larger than its f16 rows. If even that is larger, the blocks stay loose.
    fn arrangement(&self, needed: usize) -> (PageFormat, bool) {
        let warm = self.warm();
        let bytes = |format: &PageFormat| format.lines() * size_of::<Line>();
        let lists = self.list_bytes() + self.pages.len() * PAGE_OVERHEAD + self.beside;
        let others = (self.pages.len() - 1) * bytes(warm) + lists;
        let budget = self.f16_bytes().saturating_sub(others);
        let small = warm.of_slots(needed.next_multiple_of(SLOT_STEP).min(PAGE_TOKENS));
        // Codes as wide as f16 save nothing, and a full page cannot be smaller.
        let must = small.slots() == needed || self.saves_nothing();
        if self.is_ring() || (self.pages.len() > MANY_PAGES && bytes(warm) <= budget) {
            (*warm, true)
        } else {
            (small, must || bytes(&small) <= budget)
        }
    }

    fn saves_nothing(&self) -> bool {
        self.warm().codec().block_bytes() >= 2 * self.warm().codec().dim()
    }

    /// Bytes that the held tokens would take as f16.
    fn f16_bytes(&self) -> usize {
        (self.len - self.first()) * 2 * self.warm().codec().dim()
    }

    /// Bytes that the codes have saved against f16.
    pub(super) fn saved_bytes(&self) -> usize {
        self.f16_bytes().saturating_sub(self.allocated_bytes() + self.beside)
    }

    /// Upper bound of the bytes that `tokens` more tokens need during the operation, copies of shared pages
    /// included.
    pub(super) fn growth(&self, tokens: usize) -> usize {
        if tokens == 0 {
            return 0;
        }
        // The last page may be rewritten, and every page that becomes full may make another one cold.
        let pages = (self.len % PAGE_TOKENS + tokens).div_ceil(PAGE_TOKENS) + 1;
        let opened = (self.len + tokens).div_ceil(PAGE_TOKENS) - self.len.div_ceil(PAGE_TOKENS);
        if self.is_ring() && self.shelves.iter().all(|shelf| shelf.most == 0 || shelf.pages.len() >= opened) {
            // Only a last page that a fork shares is copied.
            let shared = self.pages.back().filter(|page| Arc::strong_count(page) > 1);
            return shared.map_or(0, |page| page.allocated_bytes());
        }
        let page = self.page_bytes();
        let lists = 2 * (self.pages.len() + pages) * size_of::<Arc<Page>>();
        pages * page * self.tiers.len() + lists
    }

    /// Bytes of a full warm page. The last page may have this size even with few tokens.
    pub(super) fn page_bytes(&self) -> usize {
        self.tier_page_bytes(0)
    }

    /// Bytes of a full page of a tier in memory.
    fn tier_page_bytes(&self, tier: usize) -> usize {
        self.tiers.format(tier).lines() * size_of::<Line>() + PAGE_OVERHEAD
    }

    /// Upper bound of the bytes that a cut at `len` tokens needs: a cold page in its way becomes warm.
    pub(super) fn truncate_growth(&self, len: usize) -> usize {
        let cut = len < self.len && !len.is_multiple_of(PAGE_TOKENS) && self.tier(len / PAGE_TOKENS) > 0;
        if cut { self.page_bytes() } else { 0 }
    }

    /// Number of listed pages that a cut at `len` keeps, and the tokens before `len` in a page that it goes
    /// through (0 if none).
    fn cut(&self, len: usize) -> (usize, usize) {
        (len.div_ceil(PAGE_TOKENS).saturating_sub(self.evicted), len % PAGE_TOKENS)
    }

    /// Converts a cold page that a cut at index `len` goes through to the warm codec, so that new tokens can
    /// follow.
    pub(super) fn plan_cut(&self, len: usize) -> Result<Option<PageMemory>, CacheError> {
        let (pages, kept) = self.cut(len);
        if len < self.len
            && kept > 0
            && let Some(page) = self.pages.get(pages - 1)
            && let tier = self.tier(self.evicted + pages - 1)
            && tier > 0
        {
            let mut lines = vec![Line::ZERO; self.warm().lines()];
            transcode((self.tiers.format(tier), &page.load()?), kept, (self.warm(), &mut lines))?;
            return Ok(Some(PageMemory::Held(lines.into())));
        }
        Ok(None)
    }

    /// Drops tokens from index `len` on. `warm` is the result of [`Pages::plan_cut`].
    pub(super) fn truncate(&mut self, len: usize, warm: Option<PageMemory>) {
        if len >= self.len {
            return;
        }
        let (pages, _) = self.cut(len);
        if let Some(memory) = warm {
            let page = Page::new(memory, self.list.budget());
            self.set(pages - 1, Arc::new(page));
        }
        // Every page before the last one is allocated in full.
        if pages < self.pages.len() {
            self.last = *self.warm();
        }
        while self.pages.len() > pages
            && let Some(page) = self.pages.pop_back()
        {
            self.give(self.tier(self.evicted + self.pages.len()), page);
        }
        self.held = self.pages.iter().map(|page| page.allocated_bytes()).sum();
        self.len = len;
        let full = self.len / PAGE_TOKENS;
        self.cooled.iter_mut().for_each(|cooled| *cooled = (*cooled).min(full));
        if len == 0 {
            self.clear();
        }
        self.refill();
        self.list.set(self.list_bytes());
    }

    /// Replaces a page. Returns the one before.
    fn set(&mut self, index: usize, page: Arc<Page>) -> Arc<Page> {
        self.held = self.held - self.pages[index].allocated_bytes() + page.allocated_bytes();
        std::mem::replace(&mut self.pages[index], page)
    }

    /// Sets counts for empty pages that follow evicted ones. `cooled` counts pages per tier, evicted ones
    /// included.
    pub(super) fn begin(&mut self, evicted: usize, cooled: Vec<usize>) {
        (self.evicted, self.len, self.cooled) = (evicted, evicted * PAGE_TOKENS, cooled);
    }

    /// Appends the blocks of the next page, full or the last one, in the place of its tier.
    pub(super) fn put_page(&mut self, page: usize, tokens: usize, blocks: &[u8]) -> Result<(), CacheError> {
        let tier = self.tier(page);
        if tier == 0 {
            self.push_blocks(blocks);
            return Ok(());
        }
        let lines = self.tiers.format(tier).arrange(blocks);
        let memory = match self.tiers.store(tier) {
            TierStore::Memory => PageMemory::Held(lines.into()),
            TierStore::File(file) => {
                PageMemory::Spilled(file.write(&lines).map_err(|error| CacheError::Spill(error.to_string()))?)
            }
        };
        self.add(Arc::new(Page::new(memory, self.list.budget())));
        self.len += tokens;
        Ok(())
    }

    /// For each tier after the warm one: number of pages, evicted ones included, in this tier or a colder
    /// one.
    pub(super) fn cooled(&self) -> &[usize] {
        &self.cooled
    }

    /// The tier of a page. The index counts evicted pages.
    pub(super) fn tier(&self, page: usize) -> usize {
        self.cooled.iter().filter(|&&cooled| page < cooled).count()
    }

    pub(super) fn clear(&mut self) {
        while let Some(page) = self.pages.pop_back() {
            self.give(self.tier(self.evicted + self.pages.len()), page);
        }
        if !self.is_ring() {
            self.pages = VecDeque::new();
        }
        self.cooled.fill(0);
        self.map = None;
        self.tiers.set_plain(false);
        (self.held, self.evicted, self.len, self.last) = (0, 0, 0, *self.warm());
        self.refill();
        self.list.set(self.list_bytes());
    }

    /// Frees the pages that end at or before token `first`.
    pub(super) fn evict_before(&mut self, first: usize) {
        while (self.evicted + 1) * PAGE_TOKENS <= first.min(self.len)
            && let Some(page) = self.pages.pop_front()
        {
            self.held -= page.allocated_bytes();
            let tier = self.tier(self.evicted);
            self.evicted += 1;
            self.give(tier, page);
            count(Event::PageEvicted, 1);
        }
        self.shrink_ring();
    }

    /// Moves full pages to the tiers that are due at a length of `len` tokens, of which the newest `warm` are in
    /// none. If the file refuses a page, this page and later ones stay in place.
    pub(super) fn cool(&mut self, len: usize, warm: usize) -> Result<(), CacheError> {
        for tier in 1..self.tiers.len() {
            let due = len.saturating_sub(self.tiers.after(tier).max(warm)).min(self.len) / PAGE_TOKENS;
            // Evicted pages need no cooling.
            self.cooled[tier - 1] = self.cooled[tier - 1].max(self.evicted.min(due));
            while self.cooled[tier - 1] < due {
                let index = self.cooled[tier - 1] - self.evicted;
                let page = self.cold_page(index, tier)?;
                let before = self.set(index, page);
                count(Event::PageCooled, 1);
                self.cooled[tier - 1] += 1;
                self.give(tier - 1, before);
            }
        }
        Ok(())
    }

    /// True if there are tiers after the warm one.
    pub(super) fn has_cold_tiers(&self) -> bool {
        self.tiers.len() > 1
    }

    /// For each tier after the warm one: the number of tokens up to the end of the page that comes there next, and
    /// the total number from which on that page has the age.
    pub(super) fn next_cooling(&self) -> impl Iterator<Item = (usize, usize)> {
        let end = |tier: usize| (self.cooled[tier - 1] + 1) * PAGE_TOKENS;
        (1..self.tiers.len()).map(move |tier| (end(tier), end(tier) + self.tiers.after(tier)))
    }

    /// A page as it is after its move from the previous tier to `tier`.
    fn cold_page(&mut self, index: usize, tier: usize) -> Result<Arc<Page>, CacheError> {
        let mut ready = self.take(tier);
        let lines = self.pages[index].load()?;
        // The same tokens have the same weights in all tiers.
        let (from, to) = (self.tiers.format(tier - 1), *self.tiers.format(tier));
        let to = &to.weighted(self.map().and_then(PairFactors::weights));
        if let TierStore::File(file) = self.tiers.store(tier) {
            let spilled = file.write(&lines).map_err(|error| CacheError::Spill(error.to_string()))?;
            return Ok(Arc::new(Page::new(PageMemory::Spilled(spilled), self.list.budget())));
        }
        if let Some(page) = ready.as_mut().and_then(Arc::get_mut)
            && let PageMemory::Held(cold) = &mut page.memory
        {
            transcode((from, &lines), PAGE_TOKENS, (to, cold))?;
        } else {
            let mut cold = vec![Line::ZERO; to.lines()];
            transcode((from, &lines), PAGE_TOKENS, (to, &mut cold))?;
            ready = Some(Arc::new(Page::new(PageMemory::Held(cold.into()), self.list.budget())));
        }
        ready.ok_or(CacheError::Memory { bytes: to.lines() * size_of::<Line>() })
    }

    /// The page that holds token `index`, from that token on. The page must not be evicted.
    ///
    /// # Errors
    /// A page that cannot be read from the spill file.
    pub(super) fn run(&self, index: usize) -> Result<Run<'_>, CacheError> {
        let number = index / PAGE_TOKENS;
        let page = &self.pages[number - self.evicted];
        let tier = self.tier(number);
        let is_last = number + 1 == self.evicted + self.pages.len();
        let (format, lines) = match &page.memory {
            PageMemory::Loose(blocks) => (&self.last, Cow::Owned(self.last.arrange(blocks))),
            PageMemory::Held(_) if tier == 0 && is_last => (&self.last, Cow::Borrowed(page.lines())),
            PageMemory::Held(_) | PageMemory::Spilled(_) => (self.tiers.format(tier), page.load()?),
        };
        Ok(Run { format, lines, slot: index % PAGE_TOKENS, page: number, tier })
    }

    /// One past the last token of the page that holds token `index`.
    pub(super) fn page_end(&self, index: usize) -> usize {
        ((index / PAGE_TOKENS + 1) * PAGE_TOKENS).min(self.len)
    }

    /// Lines of the page that holds token `index`; empty if they are not in memory.
    pub(super) fn lines(&self, index: usize) -> &[Line] {
        let page = (index / PAGE_TOKENS).checked_sub(self.evicted).and_then(|page| self.pages.get(page));
        page.map_or(&[], |page| page.lines())
    }

    /// Prefetches the structure of the page that holds token `index`. Pages are far apart in memory, and
    /// attention would wait for it.
    pub(super) fn ask_for(&self, index: usize) {
        let page = (index / PAGE_TOKENS).checked_sub(self.evicted).and_then(|page| self.pages.get(page));
        if let Some(page) = page {
            ask_for(&**page);
        }
    }

    /// Decodes tokens of one page, in the domain of warm blocks.
    pub(super) fn decode_rotated(&self, from: usize, out: &mut [f32]) -> Result<(), CacheError> {
        let run = self.run(from)?;
        run.format.decode_rotated(&run.lines, run.slot, out);
        let (codec, warm) = (run.format.codec(), self.warm().codec());
        if codec.id().rotates_quarters() != warm.id().rotates_quarters() {
            tqkv_simd::codec::unrotate(run.format.level(), codec, out);
            let own = out.to_vec();
            tqkv_simd::codec::rotate_queries(run.format.level(), warm, &own, out);
            // Queries are divided by the dim, which vectors are not.
            let dim = warm.dim() as f32;
            out.iter_mut().for_each(|x| *x *= dim);
        }
        Ok(())
    }

    /// Brings sums (`[n, dim]`) of vectors without a map back from the domain of the blocks.
    pub(super) fn unrotate(&self, sums: &mut [f32]) {
        tqkv_simd::codec::unrotate(self.warm().level(), self.warm().codec(), sums);
    }

    /// Brings vectors or sums (`[n, dim]`) back from the domain of the blocks.
    pub(super) fn undo(&self, sums: &mut [f32]) {
        self.unrotate(sums);
        if let Some(map) = self.map() {
            map.undo(sums);
        }
    }

    /// True if a held page is in tier `tier`.
    pub(super) fn is_used(&self, tier: usize) -> bool {
        tier == 0 || self.cooled.get(tier - 1).is_some_and(|&pages| pages > self.evicted)
    }

    /// True if all held pages are in memory and have kernels.
    pub(super) fn are_quick(&self) -> bool {
        let is_quick = |tier| {
            matches!(self.tiers.store(tier), TierStore::Memory) && self.tiers.format(tier).has_kernels()
        };
        (0..self.tiers.len()).filter(|&tier| self.is_used(tier)).all(is_quick)
    }

    /// Number of tokens in tiers after the warm one, without evicted ones.
    pub(super) fn cold_len(&self) -> usize {
        self.cooled.first().map_or(0, |pages| pages.saturating_sub(self.evicted) * PAGE_TOKENS)
    }

    pub(super) fn list_bytes(&self) -> usize {
        let shelves: usize = self.shelves.iter().map(Shelf::list_bytes).sum();
        let map = self.map().map_or(0, PairFactors::allocated_bytes);
        self.pages.capacity() * size_of::<Arc<Page>>() + map + shelves
    }

    /// Bytes of the pages, used and on shelves, and their lists. Shared pages count in full.
    pub(super) fn allocated_bytes(&self) -> usize {
        let shelf = |(tier, shelf): (usize, &Shelf)| shelf.pages.len() * self.tier_page_bytes(tier);
        let shelves: usize = self.shelves.iter().enumerate().map(shelf).sum();
        self.held + shelves + self.list_bytes()
    }

    /// Bytes of pages that other caches share.
    pub(super) fn shared_bytes(&self) -> usize {
        self.pages.iter().filter(|page| Arc::strong_count(page) > 1).map(|page| page.allocated_bytes()).sum()
    }

    /// Bytes of pages in the spill file.
    pub(super) fn spilled_bytes(&self) -> usize {
        let spilled = |page: &Arc<Page>| match &page.memory {
            PageMemory::Spilled(spilled) => Some(spilled.len() * size_of::<Line>()),
            PageMemory::Loose(_) | PageMemory::Held(_) => None,
        };
        self.pages.iter().filter_map(spilled).sum()
    }
}

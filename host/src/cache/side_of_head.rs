//! One side (keys or values) of one KV head: sinks, encoded pages, and recent rows.
//!
//! Positions count from the start of the sequence: first the sinks, then the pages, then the uncompressed
//! recent rows. This file appends and drops tokens; [`read`] serves attention.

mod read;

use super::ahead::Ahead;
use super::budget::Budget;
use super::bytes::Ring;
use super::life::{BATCH, LEARN_TOKENS, MEAN_TOKENS, PAGE_TOKENS, PIECE, RING_PIECE, first_values};
use super::map::{Learner, PairFactors, map_bytes, prepare, shares};
use super::mean_rule::first_mean;
use super::means::{Means, State};
use super::meter::{Event, count};
use super::page::{PageMemory, Pages};
use super::rows::HalfRows;
use super::sample::Sample;
use super::scratch::HeadScratch;
use super::spec::KeyMap;
use super::summaries::Summaries;
use super::tier::Tiers;
use super::vectors::Vectors;
use super::window::Window;
use crate::error::CacheError;
use crate::memory;
use std::sync::Arc;
use tqkv_core::AnyCodec;
use tqkv_simd::Level;

/// A planned cut. It cannot fail any more, because everything it needs has been read.
pub(super) struct Cut {
    len: usize,
    means: Option<Means>,
    page: Option<PageMemory>,
}

#[derive(Clone, Debug)]
pub(super) struct SideOfHead {
    dim: usize,
    sink_capacity: usize,
    hot: Window,
    /// What a ring takes at the start; [`SideOfHead::hold`] takes it.
    pub(super) ring: Option<Arc<Ring>>,
    /// Shared by forks until one of them writes.
    sinks: Arc<HalfRows>,
    pages: Pages,
    recent: Arc<HalfRows>,
    /// Means of keys, or the mean of values.
    means: Means,
    /// Learns the map of keys that have one.
    pub(super) learner: Option<Learner>,
    /// True for keys that get a map by themselves where few pairs hold their energy.
    pub(super) may_get_map: bool,
    /// The oldest recent tokens, if their encoding has begun.
    ahead: Option<Ahead>,
    sample: Sample,
    /// Means of keys from which queries pick tokens.
    pub(super) summaries: Option<Summaries>,
}

impl SideOfHead {
    pub(super) fn new(tiers: Tiers, (sinks, hot): (usize, &Window), means: Means, budget: &Budget) -> Self {
        let (dim, level) = (tiers.warm().codec().dim(), tiers.warm().level());
        Self {
            dim,
            sink_capacity: sinks,
            hot: hot.clone(),
            ring: None,
            sinks: Arc::new(HalfRows::new(dim, level, budget)),
            pages: Pages::new(tiers, budget),
            recent: Arc::new(HalfRows::new(dim, level, budget)),
            means,
            learner: None,
            may_get_map: false,
            ahead: None,
            sample: Sample::default(),
            summaries: None,
        }
    }

    /// Makes the means of a full page anew, if the side has them.
    fn summarise(&mut self, page: usize) -> Result<(), CacheError> {
        if let Some(summaries) = &mut self.summaries {
            let mut keys = memory::filled(PAGE_TOKENS * self.dim, 0.0)?;
            self.pages.decode_rotated(page * PAGE_TOKENS, &mut keys)?;
            self.pages.undo(&mut keys);
            summaries.put(page, &keys);
        }
        Ok(())
    }

    /// Takes all memory of a ring, or what is missing of it.
    ///
    /// # Errors
    /// [`CacheError::Memory`].
    pub(super) fn hold(&mut self) -> Result<(), CacheError> {
        let Some(ring) = &self.ring else { return Ok(()) };
        own(&mut self.sinks)?.make_room(self.sink_capacity)?;
        own(&mut self.recent)?.make_room(ring.rows)?;
        self.means.hold(self.dim);
        self.pages.hold(&ring.pages);
        self.pages.set_beside(self.means.allocated_bytes());
        Ok(())
    }

    /// Bytes of a ring that [`SideOfHead::hold`] has not taken yet. 0 without one.
    pub(super) fn missing_bytes(&self) -> usize {
        let all = self.ring.as_ref().map_or(0, |ring| ring.bytes.total() as usize);
        all.saturating_sub(self.allocated_bytes() - self.shared_bytes())
    }

    /// Number of tokens that are appended at once. It bounds the rows that wait.
    fn piece(&self) -> usize {
        if self.ring.is_some() { RING_PIECE } else { PIECE }
    }

    pub(super) fn sample(&self) -> Sample {
        self.sample
    }

    pub(super) fn len(&self) -> usize {
        self.sinks.len() + self.pages.len() + self.recent.len()
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn sinks(&self) -> &HalfRows {
        &self.sinks
    }

    pub(super) fn recent(&self) -> &HalfRows {
        &self.recent
    }

    pub(super) fn means(&self) -> &Means {
        &self.means
    }

    pub(super) fn codec(&self) -> &AnyCodec {
        self.pages.warm().codec()
    }

    /// The instruction set for all work on the side.
    pub(super) fn level(&self) -> Level {
        self.pages.warm().level()
    }

    /// Position of the oldest recent row.
    pub(super) fn coded_end(&self) -> usize {
        self.sinks.len() + self.pages.len()
    }

    pub(super) fn sink_capacity(&self) -> usize {
        self.sink_capacity
    }

    /// Number of the oldest of `held` recent rows that are encoded at a length of `len` tokens.
    pub(super) fn leaving(&self, held: usize, len: usize) -> usize {
        self.hot.leaving(held, len, self.wait())
    }

    /// True if the encoder searches, so that encoding is worth a thread.
    pub(super) fn is_dear(&self) -> bool {
        self.codec().id().trellis().is_some()
    }

    /// Number of recent rows beyond the hot window that wait before any is encoded.
    fn wait(&self) -> usize {
        let map = if self.learns_map() { LEARN_TOKENS } else { 0 };
        let mean = if self.means.state() == State::Learning { MEAN_TOKENS } else { 0 };
        map.max(mean)
    }

    /// Number of oldest rows that give the first mean; 0 if it is decided.
    fn mean_rows(&self) -> usize {
        if self.means.state() == State::Learning {
            MEAN_TOKENS
        } else if self.means.are_of_values() && self.pages.len() == 0 {
            first_values(self.hot.least())
        } else {
            0
        }
    }

    /// True if keys wait for their map. It is made with the first page.
    fn learns_map(&self) -> bool {
        self.learner.is_some() && self.pages.len() == 0
    }

    /// Number of tokens from position `from` on whose queries teach a map.
    pub(super) fn taught_to(&self, from: usize) -> usize {
        let learner = self.learner.as_ref().filter(|_| self.learns_map());
        learner.map_or(0, |learner| learner.end().saturating_sub(from))
    }

    /// Shows the learner of a map the queries (`[group, dim]`) at a position.
    pub(super) fn see_queries(&self, position: usize, q: &[f32]) -> Result<(), CacheError> {
        match self.learner.as_ref().filter(|_| self.learns_map()) {
            Some(learner) => learner.see(position, q),
            None => Ok(()),
        }
    }

    /// Makes room for the rows of `tokens` more tokens. These are the large allocations of an append. If one
    /// fails, nothing has changed yet.
    pub(super) fn make_room(&mut self, tokens: usize) -> Result<(), CacheError> {
        let (sinks, recent) = self.rows_after(tokens);
        if sinks > self.sinks.len() {
            own(&mut self.sinks)?.make_room(sinks)?;
        }
        let (len, learns) = (self.len() + tokens, self.learns_map());
        if let Some(learner) = self.learner.as_mut().filter(|_| learns) {
            learner.make_room(len)?;
        }
        // Nearly every append finds room in rows of its own, and to own them once is enough.
        if Arc::strong_count(&self.recent) == 1 && self.recent.capacity() >= recent {
            return Ok(());
        }
        let spare = self.hot.spare(recent);
        own(&mut self.recent)?.make_room(if tokens < spare { recent + spare } else { recent })
    }

    /// Upper bounds of the sink rows and of the recent rows while `tokens` more tokens are appended.
    fn rows_after(&self, tokens: usize) -> (usize, usize) {
        let sinks = tokens.min(self.sink_capacity - self.sinks.len());
        let (held, after) = (self.recent.len(), self.recent.len() + tokens - sinks);
        let waits = if self.learner.is_some() { LEARN_TOKENS } else { MEAN_TOKENS };
        let hot = || self.hot.at(self.len());
        let most = self.ring.as_ref().map_or_else(|| hot() + waits + PIECE + 2 * BATCH, |ring| ring.rows);
        let most = after.min(most).max(held);
        (self.sinks.len() + sinks, most)
    }

    /// Appends tokens and encodes those that leave the hot window.
    pub(super) fn push(&mut self, x: Vectors<'_>, scratch: &mut HeadScratch) -> Result<(), CacheError> {
        let mut from = 0;
        if self.sinks.len() < self.sink_capacity && x.len() > 0 {
            from = (self.sink_capacity - self.sinks.len()).min(x.len());
            own(&mut self.sinks)?.push(x.part(0, from).rows())?;
        }
        while from < x.len() {
            let to = x.len().min(from + self.piece());
            own(&mut self.recent)?.push(x.part(from, to).rows())?;
            self.encode_oldest(scratch)?;
            from = to;
        }
        Ok(())
    }

    /// Encodes the recent tokens that have left the hot window.
    fn encode_oldest(&mut self, scratch: &mut HeadScratch) -> Result<(), CacheError> {
        let (count, teach) = (self.leaving(self.recent.len(), self.len()), self.mean_rows());
        if teach > 0 && count > 0 {
            let (mean, rows) = scratch.rows((1 + teach) * self.dim).split_at_mut(self.dim);
            self.recent.read(0, rows);
            let share = first_mean(rows, mean);
            self.means.learn(mean, share);
            self.pages.set_beside(self.means.allocated_bytes());
            let mean = if self.means.state() == State::On { &*mean } else { &[] };
            if self.may_get_map
                && let Some(map) = PairFactors::of_keys(&shares(rows, self.dim, mean), None)
            {
                self.pages.set_map(Some(map));
            }
        }
        if self.learns_map() && count > 0 {
            self.learn_map();
        }
        let (mut done, mut result) = (0, Ok(()));
        while done < count && result.is_ok() {
            // All tokens of a page have the same mean.
            let now = (count - done).min(PAGE_TOKENS - self.pages.len() % PAGE_TOKENS);
            result = self.encode(done, now, count, scratch);
            done += if result.is_ok() { now } else { 0 };
        }
        if done > 0 {
            // Half of the saved bytes may be spare rows. The other half is for vectors that are encoded
            // ahead.
            let spare = self.pages.saved_bytes() / 2 / self.recent.row_bytes();
            let recent = Arc::make_mut(&mut self.recent);
            recent.drop_front(done);
            let (spare, rows) = (spare.min(BATCH), recent.len());
            if self.ring.is_none() && recent.capacity() > rows + spare.max(self.hot.spare(rows)) {
                recent.shrink(spare);
            }
        }
        result?;
        self.plan_ahead(scratch);
        Ok(())
    }

    /// Encodes `now` recent tokens from row `row` on, all of one page. `leaving` tokens are encoded in total.
    fn encode(
        &mut self,
        row: usize,
        now: usize,
        leaving: usize,
        scratch: &mut HeadScratch,
    ) -> Result<(), CacheError> {
        let page = self.pages.len() / PAGE_TOKENS;
        match self.made_ahead(now, leaving) {
            Some(blocks) => self.pages.push_blocks(&blocks),
            None => {
                let mean = self.open_page(page, scratch);
                let rows = scratch.rows(now * self.dim);
                self.recent.read(row, rows);
                prepare(rows, mean.as_deref().unwrap_or_default(), self.pages.map());
                let from = self.coded_end();
                let (rows, blocks) = scratch.rows_and_blocks();
                self.pages
                    .push(rows, blocks)
                    .map_err(|error| error.within(format_args!("tokens {from} to {}", from + now - 1)))?;
            }
        }
        if self.pages.len().is_multiple_of(PAGE_TOKENS) {
            self.close_page(page, row + now - 1, scratch)?;
        }
        Ok(())
    }

    /// The mean of the page that comes next, or of the last one. Makes it if the page starts a new one.
    fn open_page(&mut self, page: usize, scratch: &mut HeadScratch) -> Option<Arc<[f32]>> {
        let sums = scratch.rows(self.means.sum().len());
        let mean = self.means.open(page, &self.pages, sums);
        self.pages.set_beside(self.means.allocated_bytes());
        mean
    }

    /// Handles a page that became full: adds its keys to the mean, and samples its last token, which is still
    /// in row `row`.
    fn close_page(&mut self, page: usize, row: usize, scratch: &mut HeadScratch) -> Result<(), CacheError> {
        count(Event::PageClosed, 1);
        if self.means.follow() {
            let keys = scratch.rows(PAGE_TOKENS * self.dim);
            self.pages.decode_rotated(page * PAGE_TOKENS, keys)?;
            self.means.close(keys, self.dim);
            self.pages.set_beside(self.means.allocated_bytes());
        }
        let (vector, decoded) = scratch.rows(2 * self.dim).split_at_mut(self.dim);
        self.recent.read(row, vector);
        self.pages.decode_rotated(self.pages.len() - 1, decoded)?;
        self.pages.undo(decoded);
        let mean = self.means.index(page).map(|mean| &*self.means.list()[mean].values);
        self.sample.take(vector, mean, decoded);
        self.summarise(page)
    }

    /// Copies the tokens that leave next, so that another thread can encode them. Only for codecs whose
    /// search is slow. A ring does without: the copy and the hand-over would allocate.
    fn plan_ahead(&mut self, scratch: &mut HeadScratch) {
        let waits = self.wait() > 0 || self.learns_map();
        let one_page = self.pages.len() % PAGE_TOKENS <= PAGE_TOKENS - BATCH;
        if !self.is_dear()
            || self.ring.is_some()
            || self.ahead.is_some()
            || self.hot.least() < BATCH
            || waits
            || !one_page
        {
            return;
        }
        let paid = self.pages.saved_bytes() / 2 >= BATCH * self.dim * size_of::<f32>();
        if paid && self.recent.len() >= BATCH {
            let mean = self.open_page(self.pages.len() / PAGE_TOKENS, scratch);
            let mut rows = vec![0.0; BATCH * self.dim];
            self.recent.read(0, &mut rows);
            prepare(&mut rows, mean.as_deref().unwrap_or_default(), self.pages.map());
            self.ahead = Some(Ahead::new(self.coded_end(), rows));
        }
    }

    /// Starts the encoding of the tokens that leave next on a spare thread.
    pub(super) fn encode_ahead(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.begin(&self.pages.encoder());
        }
    }

    /// Blocks of the oldest `count` recent tokens, if exactly these leave and were encoded ahead.
    fn made_ahead(&mut self, count: usize, leaving: usize) -> Option<Vec<u8>> {
        let ahead = self.ahead.take()?;
        if count == BATCH && leaving == BATCH && ahead.first() == self.coded_end() {
            ahead.blocks(&self.pages.encoder())
        } else {
            None
        }
    }

    /// Makes the map from the oldest keys and the queries so far.
    fn learn_map(&mut self) {
        let Some(learner) = &mut self.learner else { return };
        let (sinks, recent) = (self.sinks.len(), learner.keys().min(self.recent.len()));
        let mut keys = vec![0.0; (sinks + recent) * self.dim];
        let (first, rest) = keys.split_at_mut(sinks * self.dim);
        self.sinks.read(0, first);
        self.recent.read(0, rest);
        let mean = self.means.list().first().map(|mean| &*mean.values);
        let map = learner.learn(&keys, mean);
        learner.clear();
        self.pages.set_map(map);
    }

    /// Frees encoded pages whose tokens all lie before position `first`.
    pub(super) fn evict_before(&mut self, first: usize) {
        self.pages.evict_before(first.saturating_sub(self.sink_capacity));
    }

    /// Moves the pages to colder tiers that are due at a length of `len` tokens.
    pub(super) fn cool(&mut self, len: usize) -> Result<(), CacheError> {
        let before = self.summaries.as_ref().map(|_| self.pages.cooled().to_vec());
        let cooled = self.pages.cool(len.saturating_sub(self.sink_capacity), self.hot.warm_tokens(len));
        for (tier, before) in (1..).zip(before.into_iter().flatten()) {
            // A file has the codes as they were.
            if self.pages.tiers().is_recoded(tier) {
                (before..self.pages.cooled()[tier - 1]).try_for_each(|page| self.summarise(page))?;
            }
        }
        cooled
    }

    /// The length at which the next page goes cold.
    pub(super) fn next_cooling(&self) -> Option<usize> {
        let sinks = self.sink_capacity;
        let next = self.pages.next_cooling();
        next.map(|(tokens, from)| self.hot.cools_at(from + sinks, tokens + sinks)).min()
    }

    /// First position after the sinks that the side still holds.
    pub(super) fn first_live(&self) -> usize {
        self.sink_capacity + self.pages.first()
    }

    /// Reads the pages that a cut at position `len` needs. Changes nothing.
    ///
    /// # Errors
    /// A page that cannot be read from the spill file.
    pub(super) fn plan_cut(&self, len: usize) -> Result<Cut, CacheError> {
        let coded = len.saturating_sub(self.sinks.len()).min(self.pages.len());
        Ok(Cut { len, means: self.reopened(coded)?, page: self.pages.plan_cut(coded)? })
    }

    /// Copies the rows that a cut at `len` shortens if a fork shares them. Changes no value.
    pub(super) fn own_rows_from(&mut self, len: usize) -> Result<(), CacheError> {
        if len < self.len() {
            own(&mut self.recent)?;
        }
        if len < self.sinks.len() {
            own(&mut self.sinks)?;
        }
        Ok(())
    }

    /// Drops tokens. The plan must be of the present contents.
    pub(super) fn truncate(&mut self, cut: Cut) {
        let Cut { len, means, page } = cut;
        if let Some(learner) = &mut self.learner {
            // A failed append may have shown queries of tokens that it did not append.
            learner.truncate(len);
        }
        if len >= self.len() {
            return;
        }
        // Other tokens may follow in place of the dropped ones.
        self.ahead = self.ahead.take().filter(|ahead| ahead.first() + BATCH <= len);
        let coded = len.saturating_sub(self.sinks.len()).min(self.pages.len());
        if let Some(means) = means {
            self.means = means;
            if self.ring.is_some() {
                self.means.hold(self.dim);
            }
            self.pages.set_beside(self.means.allocated_bytes());
        }
        self.pages.truncate(coded, page);
        if let Some(summaries) = &mut self.summaries {
            summaries.truncate(coded / PAGE_TOKENS);
        }
        let recent = len.saturating_sub(self.coded_end());
        if recent < self.recent.len() {
            Arc::make_mut(&mut self.recent).truncate(recent);
        }
        if len < self.sinks.len() {
            Arc::make_mut(&mut self.sinks).truncate(len);
        }
    }

    /// The means without the keys of full pages that the cut opens or removes. `None` if the means do not
    /// change.
    fn reopened(&self, coded: usize) -> Result<Option<Means>, CacheError> {
        if coded >= self.pages.len() {
            return Ok(None);
        }
        let mut means = self.means.clone();
        if means.follow() {
            let mut keys = Vec::new();
            let full = (coded / PAGE_TOKENS).max(self.pages.first() / PAGE_TOKENS);
            for page in full..self.pages.len() / PAGE_TOKENS {
                keys.resize(PAGE_TOKENS * self.dim, 0.0);
                self.pages.decode_rotated(page * PAGE_TOKENS, &mut keys)?;
                means.reopen(&keys);
            }
        }
        means.truncate(coded.div_ceil(PAGE_TOKENS));
        Ok(Some(means))
    }

    pub(super) fn clear(&mut self) {
        self.ahead = None;
        self.sample = Sample::default();
        self.pages.clear();
        if let Some(summaries) = &mut self.summaries {
            summaries.truncate(0);
        }
        self.means.clear();
        if let Some(learner) = &mut self.learner {
            learner.clear();
        }
        self.pages.set_beside(0);
        for rows in [&mut self.sinks, &mut self.recent] {
            if self.ring.is_some() {
                Arc::make_mut(rows).empty();
            } else {
                *rows = Arc::new(rows.emptied());
            }
        }
    }

    /// Replaces the contents with those of a snapshot.
    pub(super) fn restore(
        &mut self,
        sinks: HalfRows,
        pages: Pages,
        recent: HalfRows,
        means: impl FnOnce(&mut Means),
        learner: Option<Learner>,
    ) -> Result<(), CacheError> {
        self.learner = learner;
        (self.sinks, self.pages, self.recent) = (Arc::new(sinks), pages, Arc::new(recent));
        means(&mut self.means);
        self.pages.set_beside(self.means.allocated_bytes());
        // Layers that select evict nothing, so the caller refuses a snapshot in which they did.
        let full = if self.pages.first() == 0 { self.pages.len() / PAGE_TOKENS } else { 0 };
        (0..full).try_for_each(|page| self.summarise(page))
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let ahead = self.ahead.as_ref().map_or(0, Ahead::allocated_bytes);
        let rows = self.sinks.allocated_bytes() + self.recent.allocated_bytes();
        let summaries = self.summaries.as_ref().map_or(0, Summaries::allocated_bytes);
        let others = self.means.allocated_bytes() + self.learner_bytes() + ahead + summaries;
        rows + self.pages.allocated_bytes() + others
    }

    /// Bytes of the queries that wait for a map.
    fn learner_bytes(&self) -> usize {
        self.learner.as_ref().map_or(0, Learner::allocated_bytes)
    }

    /// Bytes of this side that other caches share.
    pub(super) fn shared_bytes(&self) -> usize {
        let summaries = self.summaries.as_ref().map_or(0, Summaries::shared_bytes);
        shared_bytes(&self.sinks) + shared_bytes(&self.recent) + self.pages.shared_bytes() + summaries
    }

    /// Upper bound of the bytes that [`SideOfHead::truncate`] allocates. Shared rows are copied if some of them
    /// are dropped.
    pub(super) fn truncate_growth(&self, len: usize) -> usize {
        let sinks = if len < self.sinks.len() { shared_bytes(&self.sinks) } else { 0 };
        let recent = if len < self.len() { shared_bytes(&self.recent) } else { 0 };
        let means = if len < self.coded_end() { self.means.allocated_bytes() } else { 0 };
        sinks + recent + means + self.pages.truncate_growth(len.saturating_sub(self.sinks.len()))
    }

    /// Bytes of a copy that it does not share.
    pub(super) fn list_bytes(&self) -> usize {
        let summaries = self.summaries.as_ref().map_or(0, Summaries::list_bytes);
        self.pages.list_bytes() + self.means.allocated_bytes() + self.learner_bytes() + summaries
    }

    /// Upper bound of the bytes that `tokens` more tokens need during the operation, copies of shared parts
    /// included.
    pub(super) fn growth(&self, tokens: usize) -> usize {
        let row = self.recent.row_bytes();
        let (sinks, most) = self.rows_after(tokens);
        let most = most + self.hot.spare(most);
        let more_sinks = sinks.saturating_sub(self.sinks.capacity());
        let sinks = sinks - self.sinks.len();
        let after = self.recent.len() + tokens - sinks;
        let rows = more_sinks * row + most.saturating_sub(self.recent.capacity()) * row;
        let coded = self.hot.leaving(after, self.len() + tokens, 0);
        let pages = self.pages.growth(coded);
        let map = self.map_growth(tokens, coded);
        let learns = self.mean_rows() > 0;
        let means = if coded > 0 { self.means.growth(self.dim, learns) } else { 0 };
        let copies = if sinks > 0 { shared_bytes(&self.sinks) } else { 0 } + shared_bytes(&self.recent);
        let ahead =
            if self.is_dear() && self.ring.is_none() { BATCH * self.dim * size_of::<f32>() } else { 0 };
        let full = (self.pages.len() + coded) / PAGE_TOKENS - self.pages.len() / PAGE_TOKENS;
        let summaries = self.summaries.as_ref().map_or(0, |summaries| summaries.growth(full));
        rows + pages + means + copies + ahead + map + summaries
    }

    /// Upper bound of the bytes of the map, which comes with the first page, and of the queries for it. `coded`
    /// of `tokens` more tokens are encoded.
    fn map_growth(&self, tokens: usize, coded: usize) -> usize {
        let learner = self.learner.as_ref().filter(|_| self.learns_map());
        let gets = learner.is_some() || self.may_get_map && coded > 0 && self.pages.len() == 0;
        let queries = learner.map_or(0, |learner| learner.bytes(self.len() + tokens));
        queries + if gets { map_bytes(KeyMap::Pairs, self.dim) } else { 0 }
    }
}

/// Bytes of rows that a fork shares, which are copied before they are written.
fn shared_bytes(rows: &Arc<HalfRows>) -> usize {
    if Arc::strong_count(rows) > 1 { rows.allocated_bytes() } else { 0 }
}

/// Returns rows for writing, after a copy if a fork shares them.
fn own(rows: &mut Arc<HalfRows>) -> Result<&mut HalfRows, CacheError> {
    if Arc::strong_count(rows) > 1 {
        *rows = Arc::new(rows.copy()?);
    }
    Ok(Arc::make_mut(rows))
}

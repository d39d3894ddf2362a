//! Pages of a ring: all of them are made at once, so that all memory is taken when the cache is made.
//!
//! A page that leaves the ring goes back to the shelf of its tier, and the next page of that tier comes
//! from there. Other caches have empty shelves, and their pages come from the allocator.

use super::{Page, PageMemory, Pages, Shelf};
use std::sync::Arc;
use tqkv_simd::page::Line;

impl Pages {
    /// True if the pages are those of a ring.
    pub(super) fn is_ring(&self) -> bool {
        self.shelves[0].most > 0
    }

    /// Makes a ring of this many pages of each tier. Takes the memory of all of them, and of the list.
    pub(in crate::cache) fn hold(&mut self, pages: &[usize]) {
        self.shelves.iter_mut().zip(pages).for_each(|(shelf, &pages)| shelf.most = pages);
        self.fill();
    }

    /// Fills the shelves of a ring again after pages left that a fork shares, and frees those beyond its number: a
    /// rollback makes a warm page of a colder one, and pages of a fork that has gone are its own. Without room in the
    /// budget, the next pages ask for it when they are needed.
    pub(super) fn refill(&mut self) {
        if !self.is_ring() {
            return;
        }
        for tier in 0..self.tiers.len() {
            let own = self.own_pages(tier);
            let shelf = &mut self.shelves[tier];
            shelf.pages.truncate(shelf.most.saturating_sub(own));
        }
        let missing =
            |(tier, shelf): (usize, &Shelf)| shelf.missing(self.own_pages(tier)) * self.tier_page_bytes(tier);
        let bytes = self.shelves.iter().enumerate().map(missing).sum();
        let budget = self.list.budget().clone();
        if let Ok(_room) = budget.reserve(bytes) {
            self.fill();
        }
    }

    /// Fills the shelves with pages whose bytes are reserved, and makes room in the list.
    fn fill(&mut self) {
        for tier in 0..self.tiers.len() {
            let (own, lines) = (self.own_pages(tier), self.tiers.format(tier).lines());
            let budget = self.list.budget().clone();
            let make = || Page::new(PageMemory::Held(vec![Line::ZERO; lines].into()), &budget);
            let shelf = &mut self.shelves[tier];
            let more = shelf.missing(own);
            shelf.pages.reserve_exact(shelf.most.saturating_sub(shelf.pages.len()));
            shelf.pages.extend(std::iter::repeat_with(make).take(more).map(Arc::new));
        }
        self.pages.reserve_exact(self.most().saturating_sub(self.pages.len()));
        self.list.set(self.list_bytes());
    }

    /// Number of pages of a tier that no fork shares.
    fn own_pages(&self, tier: usize) -> usize {
        let pages = self.pages.iter().enumerate();
        let own = pages.filter(|(_, page)| Arc::strong_count(page) == 1);
        own.filter(|(index, _)| self.tier(self.evicted + index) == tier).count()
    }

    /// An empty page from the shelf of a tier. `None` if there is none, as without a ring.
    pub(super) fn take(&mut self, tier: usize) -> Option<Arc<Page>> {
        self.shelves[tier].pages.pop()
    }

    /// Puts a page that is not in the list any more on the shelf of its tier, or frees it. One that a fork shares stays
    /// with the fork.
    pub(super) fn give(&mut self, tier: usize, mut page: Arc<Page>) {
        let colder =
            |tier: usize| self.cooled.get(tier).map_or(0, |&pages| pages.saturating_sub(self.evicted));
        let warmer = if tier == 0 { self.pages.len() } else { colder(tier - 1) };
        let used = warmer.saturating_sub(colder(tier));
        let shelf = &mut self.shelves[tier];
        if shelf.missing(used) > 0
            && let Some(own) = Arc::get_mut(&mut page)
        {
            own.blank();
            shelf.pages.push(page);
        }
    }

    /// Frees the room in the list that a long chunk has left behind.
    pub(super) fn shrink_ring(&mut self) {
        let most = self.most();
        if self.is_ring() && self.pages.capacity() > most && self.pages.len() <= most {
            self.pages.shrink_to(most);
            self.list.set(self.list_bytes());
        }
    }

    /// Number of pages of all tiers of a ring.
    fn most(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.most).sum()
    }
}

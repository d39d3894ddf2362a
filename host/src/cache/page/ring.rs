//! Pages of a ring: all of them are made at once, and go back to a shelf when they leave.

use super::{Page, PageMemory, Pages};
use crate::cache::spare_pages::Shelf;
use std::sync::Arc;
use tqkv_simd::page::Line;

impl Pages {
    /// True if the pages are those of a ring.
    pub(super) fn is_ring(&self) -> bool {
        self.shelves[0].most() > 0
    }

    /// Makes a ring of this many pages of each tier. Takes the memory of all of them, and of the list.
    pub(in crate::cache) fn hold(&mut self, pages: &[usize]) {
        self.shelves.iter_mut().zip(pages).for_each(|(shelf, &pages)| shelf.set_most(pages));
        self.fill();
    }

    /// Fills the shelves of a ring again after pages left that a fork shares. Without room in the budget, the
    /// next pages ask for it when they are needed.
    pub(super) fn refill(&mut self) {
        if !self.is_ring() {
            return;
        }
        let missing = |(tier, shelf): (usize, &Shelf<Page>)| {
            shelf.missing(self.own_pages(tier)) * self.tier_page_bytes(tier)
        };
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
            self.shelves[tier]
                .fill(own, || Page::new(PageMemory::Held(vec![Line::ZERO; lines].into()), &budget));
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
        self.shelves[tier].take()
    }

    /// Puts a page that is not in the list any more on the shelf of its tier, or frees it.
    pub(super) fn give(&mut self, tier: usize, page: Arc<Page>) {
        let colder =
            |tier: usize| self.cooled.get(tier).map_or(0, |&pages| pages.saturating_sub(self.evicted));
        let warmer = if tier == 0 { self.pages.len() } else { colder(tier - 1) };
        let used = warmer.saturating_sub(colder(tier));
        self.shelves[tier].give(page, used, Page::blank);
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
        self.shelves.iter().map(Shelf::most).sum()
    }
}

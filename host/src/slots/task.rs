//! The operands of attention over the slots of one stream.

use super::format::SlotFormat;
use super::rule::{QueryMask, QueryRule};
use super::stream::Stream;
use crate::attend::{HeadQueries, PageView};
use tqkv_simd::page::Line;

/// The keys or the values of one KV head in one stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamSide<'a> {
    /// The stream, with all its heads.
    pub stream: &'a Stream,
    /// The format of the heads.
    pub format: &'a SlotFormat,
    /// Index of the head.
    pub head: usize,
}

impl<'a> StreamSide<'a> {
    /// The one mean that values are stored less of; empty if they have none.
    pub(super) fn mean_of_values(&self) -> &'a [f32] {
        self.stream.means.of(self.head, 0)
    }

    /// The codes of a tier in a page; none where it has no code.
    pub(super) fn page(&self, tier: usize, page: usize) -> Option<PageView<'a>> {
        let pages = &self.stream.pages;
        let lines = pages.page(tier, self.head, page)?;
        Some(PageView { format: self.format.pages_of(tier, pages.room(tier, page))?, lines })
    }

    /// Prepares queries (`[heads, dim]`) for keys of each turn.
    pub(super) fn prepare_all(&self, q: &[f32], scale: f32, queries: &mut [HeadQueries]) {
        for (turn, queries) in queries.iter_mut().enumerate() {
            if turn == 0 {
                self.prepare(q, scale, queries);
                continue;
            }
            let mut turned = q.to_vec();
            for q in turned.chunks_exact_mut(self.format.dim) {
                self.stream.pages.turns.turn_back(turn, q);
            }
            self.prepare(&turned, scale, queries);
        }
    }

    /// Prepares queries (`[heads, dim]`) for keys without a turn.
    pub(super) fn prepare(&self, q: &[f32], scale: f32, queries: &mut HeadQueries) {
        queries.set((q, scale), self.format.dim, self.stream.means.all_of(self.head));
        let is_used = |tier| tier < self.stream.pages.tiers();
        let formats = (0..self.format.tiers()).map(|tier| self.format.pages(tier).filter(|_| is_used(tier)));
        let map = self.stream.maps.of(self.head);
        queries.code(formats, map.map(|map| |queries: &mut [f32]| map.apply_to_queries(queries)));
    }

    /// The lines of a page; none where it has no code.
    pub(super) fn lines(&self, tier: usize, page: usize) -> &'a [Line] {
        self.stream.pages.page(tier, self.head, page).unwrap_or_default()
    }
}

/// Keys, values and n queries (`[n, head_dim]`) with their settings.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) rule: &'a QueryRule,
    pub(super) keys: StreamSide<'a>,
    pub(super) values: StreamSide<'a>,
    pub(super) asked: &'a [QueryMask<'a>],
    pub(super) queries: &'a [f32],
}

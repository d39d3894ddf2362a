//! The tokens of a sequence in blocks as parts of the loop of attention in `tqkv-simd`.

use super::{Paged, Pages, Side};
use crate::attend::{HeadQueries, PageSum, PageView, score_page, sum_pages};
use crate::cache::life::cap;
use arrayvec::ArrayVec;
use std::ops::Range;
use tqkv_simd::page::{AttentionParts, Line, MAX_HEADS, MAX_PARTS, WeightedPart, rescale};

/// One KV head of a sequence.
pub(super) struct Sequence<'a, M> {
    pub(super) paged: &'a Paged,
    pub(super) pages: &'a Pages<M>,
    /// The numbers of its blocks.
    pub(super) table: &'a [i32],
    pub(super) kv_head: usize,
    pub(super) soft_cap: Option<f32>,
}

/// The tokens of a sequence in blocks, and the queries that attend to them.
pub(super) struct BlockTokens<'a, M> {
    pub(super) sequence: &'a Sequence<'a, M>,
    pub(super) queries: &'a HeadQueries,
    /// What each query sees.
    pub(super) seen: ArrayVec<Range<usize>, MAX_HEADS>,
    pub(super) rotated: &'a mut [f32],
}

impl<M: AsRef<[Line]>> BlockTokens<'_, M> {
    /// The codes of one side of the block that has a token.
    fn page(&self, side: Side, token: usize) -> Option<PageView<'_>> {
        let Sequence { paged, pages, table, kv_head, .. } = *self.sequence;
        let block = usize::try_from(*table.get(token / paged.layout.block_tokens)?).ok()?;
        pages.view(paged, side, block, kv_head)
    }

    /// Lines to prefetch.
    fn next(&self, side: Side, token: usize) -> &[Line] {
        self.page(side, token).map_or(&[], |page| page.lines)
    }
}

impl<M: AsRef<[Line]>> AttentionParts for BlockTokens<'_, M> {
    fn part_end(&self, from: usize) -> usize {
        let tokens = self.sequence.paged.layout.block_tokens;
        (from / tokens + 1) * tokens
    }

    fn scores(&self, from: usize, to: usize, logits: &mut [f32]) {
        let Some(page) = self.page(Side::Keys, from) else { return logits.fill(f32::NEG_INFINITY) };
        let (slot, next) = (from % page.format.slots(), self.next(Side::Values, from));
        score_page(page, slot, (self.queries.coded(0), &[]), next, logits);
        if let Some(soft_cap) = self.sequence.soft_cap {
            cap(logits, soft_cap);
        }
        for (logits, seen) in logits.chunks_exact_mut(to - from).zip(&self.seen) {
            let hidden = [from..seen.start.clamp(from, to), seen.end.clamp(from, to)..to];
            hidden
                .into_iter()
                .for_each(|hidden| logits[hidden.start - from..hidden.end - from].fill(f32::NEG_INFINITY));
        }
    }

    fn rescale(&mut self, factors: &[f32]) {
        rescale(factors, self.sequence.paged.layout.head_dim, self.rotated);
    }

    fn joins(&self, _before: usize, _from: usize) -> bool {
        self.sequence.paged.format(Side::Values).joins(self.seen.len())
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        let rotated = std::mem::take(&mut self.rotated);
        let mut pages = ArrayVec::<PageSum<'_>, MAX_PARTS>::new();
        // As many blocks of keys as there are of values are read next.
        let mut next = parts.last().map_or(0, |part| part.to);
        for &WeightedPart { from, to, weights } in parts {
            if let Some(page) = self.page(Side::Values, from) {
                pages.push(PageSum { page, index: from, weights, next: self.next(Side::Keys, next) });
            }
            next += to - from;
        }
        sum_pages(pages.iter().copied(), rotated);
        drop(pages);
        self.rotated = rotated;
    }
}

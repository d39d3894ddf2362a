//! Read access for attention: ends of parts, logits, weighted sums, and decoded vectors.

use super::SideOfHead;
use crate::attend::{HeadQueries, PageSum, score_page, sum_pages};
use crate::cache::life::{self, PAGE_TOKENS};
use crate::cache::means::RING_MEANS;
use crate::cache::page::Run;
use crate::cache::token_lists::RUN;
use crate::error::CacheError;
use arrayvec::ArrayVec;
use tqkv_simd::page::{Line, MAX_PART, MAX_PARTS, WeightedPart};

impl SideOfHead {
    /// End of the part that holds position `from`: the sinks, one page, or the recent rows. At most
    /// [`MAX_PART`] on.
    pub(in crate::cache) fn part_end(&self, from: usize) -> usize {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        let end = if from < sinks {
            sinks
        } else if from < coded {
            sinks + self.pages.page_end(from - sinks)
        } else {
            self.len()
        };
        end.min(from + MAX_PART)
    }

    /// First position of the run of [`RUN`] tokens that holds a position. Runs begin with the sinks and with the pages.
    pub(in crate::cache) fn run_start(&self, position: usize) -> usize {
        self.start_of(position, RUN)
    }

    /// First position of the page that holds a position.
    pub(in crate::cache) fn page_start(&self, position: usize) -> usize {
        self.start_of(position, PAGE_TOKENS)
    }

    /// First position of the `tokens` tokens that hold a position. They are counted from the first sink on, and again
    /// from the first page on.
    fn start_of(&self, position: usize, tokens: usize) -> usize {
        let first = if position < self.sink_capacity { 0 } else { self.sink_capacity };
        first + (position - first) / tokens * tokens
    }

    /// Lines of the page that holds a position. Empty if the position is not encoded.
    pub(in crate::cache) fn lines(&self, position: usize) -> &[Line] {
        position.checked_sub(self.sinks.len()).map_or(&[], |index| self.pages.lines(index))
    }

    /// Prefetches the structure of the page that holds a position.
    pub(in crate::cache) fn ask_for(&self, position: usize) {
        if let Some(index) = position.checked_sub(self.sinks.len()) {
            self.pages.ask_for(index);
        }
    }

    /// True if a position is encoded.
    pub(in crate::cache) fn is_coded(&self, position: usize) -> bool {
        position >= self.sinks.len() && position < self.coded_end()
    }

    /// Prepares queries (`[heads, dim]`) for these keys.
    pub(in crate::cache) fn prepare(&self, q: &[f32], scale: f32, queries: &mut HeadQueries) {
        let (pages, tiers) = (&self.pages, self.pages.tiers());
        queries.set((q, scale), self.dim, self.means.values());
        let formats = (0..tiers.len()).map(|tier| pages.is_used(tier).then(|| tiers.format(tier)));
        queries.code(formats, pages.map().map(|map| |queries: &mut [f32]| map.apply_to_queries(queries)));
    }

    /// Takes the memory for the queries of `heads` query heads, any tier, and as many means as a ring may have.
    pub(in crate::cache) fn hold_queries(&self, heads: usize, queries: &mut HeadQueries) {
        let tiers = self.pages.tiers();
        self.prepare(&vec![0.0; heads * self.dim], 1.0, queries);
        let formats = (0..tiers.len()).map(|tier| Some(tiers.format(tier)));
        queries.code(formats, None::<fn(&mut [f32])>);
        queries.hold(RING_MEANS);
    }

    /// Logits of the positions from `from` on, all in one part: `out` is `[heads, n]`. `next` is memory to
    /// prefetch.
    pub(in crate::cache) fn scores(
        &self,
        queries: &HeadQueries,
        from: usize,
        next: &[Line],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        if from < sinks {
            self.sinks.scores(from, queries.plain(), out);
        } else if from >= coded {
            self.recent.scores(from - coded, queries.plain(), out);
        } else {
            let run = self.pages.run(from - sinks)?;
            let queries = (queries.coded(run.tier), queries.offsets(self.means.index(run.page)));
            score_page(run.view(), run.slot, queries, next, out);
        }
        Ok(())
    }

    /// True if the values from `from` on, the start of a part, are summed together with those of the part that ends
    /// with `before`. Both must be encoded, in one page or in pages that gain from it with this number of heads.
    pub(in crate::cache) fn joins(&self, (before, from): (usize, usize), heads: usize) -> bool {
        let page = |position: usize| (position - self.sinks.len()) / PAGE_TOKENS;
        self.is_coded(before)
            && self.is_coded(from)
            && (page(before) == page(from) || self.pages.warm().joins(heads))
    }

    /// Adds the weighted values of parts that [join](SideOfHead::joins), or of one part; `next` has memory to prefetch for each.
    /// The two sums (`[heads, dim]`) are of uncompressed rows and means, and of blocks in the rotated domain.
    pub(in crate::cache) fn accumulate(
        &self,
        parts: &[WeightedPart<'_>],
        next: &[&[Line]],
        [plain, rotated]: [&mut [f32]; 2],
    ) -> Result<(), CacheError> {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        let Some(&WeightedPart { from, weights, .. }) = parts.first() else { return Ok(()) };
        if from < sinks {
            self.sinks.accumulate(from, weights, plain);
            return Ok(());
        }
        if from >= coded {
            self.recent.accumulate(from - coded, weights, plain);
            return Ok(());
        }
        if let (1, [next]) = (parts.len(), next) {
            let run = self.pages.run(from - sinks)?;
            run.format.accumulate(&run.lines, from - sinks, weights, next, rotated);
            life::add_weighted(plain, weights, self.mean_of(run.page));
            return Ok(());
        }
        let mut runs = ArrayVec::<Run<'_>, MAX_PARTS>::new();
        for part in parts {
            runs.push(self.pages.run(part.from - sinks)?);
        }
        let pages = runs.iter().zip(parts).zip(next).map(|((run, part), next)| {
            let (page, weights) = (run.view(), part.weights);
            PageSum { page, index: part.from - sinks, weights, next }
        });
        sum_pages(pages, rotated);
        for (run, part) in runs.iter().zip(parts) {
            life::add_weighted(plain, part.weights, self.mean_of(run.page));
        }
        Ok(())
    }

    /// The mean that the vectors of a page are stored less of; empty if they have none.
    pub(in crate::cache) fn mean_of(&self, page: usize) -> &[f32] {
        self.means.index(page).map_or(&[], |mean| &self.means.list()[mean].values)
    }

    /// Decodes the encoded tokens of positions `from..to` into `out`, in the domain of the blocks.
    pub(in crate::cache) fn decode_rotated(
        &self,
        from: usize,
        to: usize,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let mut at = from;
        while at < to {
            let end = to.min(self.part_end(at));
            debug_assert!(end > at, "the part of {at} ends at {end}");
            let out = &mut out[(at - from) * self.dim..(end - from) * self.dim];
            self.pages.decode_rotated(at - self.sinks.len(), out)?;
            at = end;
        }
        Ok(())
    }

    /// Reads positions `from..to` as vectors: `[n, dim]`. All of them must be held.
    pub(in crate::cache) fn read(&self, from: usize, to: usize, out: &mut [f32]) -> Result<(), CacheError> {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        let mut at = from;
        while at < to {
            let end = to.min(self.part_end(at));
            debug_assert!(end > at, "the part of {at} ends at {end}");
            let out = &mut out[(at - from) * self.dim..(end - from) * self.dim];
            if at < sinks {
                self.sinks.read(at, out);
            } else if at >= coded {
                self.recent.read(at - coded, out);
            } else {
                self.pages.decode_rotated(at - sinks, out)?;
                self.pages.undo(out);
                life::add(out, self.mean_of((at - sinks) / PAGE_TOKENS));
            }
            at = end;
        }
        Ok(())
    }
}

//! What attention asks of a track: where its parts end, logits, weighted sums, and vectors read back.

use super::Track;
use crate::cache::format::PAGE_TOKENS;
use crate::cache::scratch::Queries;
use crate::error::CacheError;
use tqkv_simd::page::{Line, MAX_PART, Part, ValuePages};

impl Track {
    /// End of the range from position `from` on that lies in one part: sinks, a page, recent rows.
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

    /// Lines of the page that holds a position; empty where it is not encoded.
    pub(in crate::cache) fn lines(&self, position: usize) -> &[Line] {
        position.checked_sub(self.sinks.len()).map_or(&[], |index| self.pages.lines(index))
    }

    /// Asks for what says where the page of a position is.
    pub(in crate::cache) fn ask_for(&self, position: usize) {
        if let Some(index) = position.checked_sub(self.sinks.len()) {
            self.pages.ask_for(index);
        }
    }

    /// Whether a position is encoded.
    pub(in crate::cache) fn is_coded(&self, position: usize) -> bool {
        position >= self.sinks.len() && position < self.coded_end()
    }

    /// Logits of the positions from `from` on, all in one part: `out` is `[heads, n]`. `next` is memory that
    /// is read soon.
    pub(in crate::cache) fn scores(
        &self,
        queries: &Queries,
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
            run.format.scores(&run.lines, run.slot, queries.coded(run.tier), next, out);
            if let Some(mean) = self.means.index(run.page) {
                let n = out.len() / queries.heads();
                for (out, offset) in out.chunks_exact_mut(n).zip(queries.offsets(mean)) {
                    out.iter_mut().for_each(|logit| *logit += offset);
                }
            }
        }
        Ok(())
    }

    /// Adds the weighted values of the positions from `from` on, all in one part: `weights` is `[heads, n]`,
    /// the sums `[heads, dim]`, of rows and of blocks in their domain.
    pub(in crate::cache) fn accumulate(
        &self,
        weights: &[f32],
        from: usize,
        next: &[Line],
        [plain, rotated]: [&mut [f32]; 2],
    ) -> Result<(), CacheError> {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        if from < sinks {
            self.sinks.accumulate(from, weights, plain);
        } else if from >= coded {
            self.recent.accumulate(from - coded, weights, plain);
        } else {
            let run = self.pages.run(from - sinks)?;
            run.format.accumulate(&run.lines, run.slot, weights, next, rotated);
        }
        Ok(())
    }

    /// Whether values from `from` on, where a part begins, are summed together with those before for so many
    /// heads: both encoded, in pages that gain by it.
    pub(in crate::cache) fn joins(&self, from: usize, heads: usize) -> bool {
        from > 0 && self.is_coded(from - 1) && self.is_coded(from) && self.pages.warm().joins(heads)
    }

    /// [`Track::accumulate`] for two parts in pages of one codec; false where they are not. Which codec it is
    /// alone decides: memory that is spilled, or has room to spare, changes no bit.
    pub(in crate::cache) fn accumulate_two(
        &self,
        [first, second]: [&Part<'_>; 2],
        next: [&[Line]; 2],
        rotated: &mut [f32],
    ) -> Result<bool, CacheError> {
        let sinks = self.sinks.len();
        let runs = [self.pages.run(first.from - sinks)?, self.pages.run(second.from - sinks)?];
        if runs[0].format.codec().id() != runs[1].format.codec().id() {
            return Ok(false);
        }
        let part = |i: usize, weights| runs[i].format.part(&runs[i].lines, runs[i].slot, weights, next[i]);
        let (Some(one), Some(two)) = (part(0, first.weights), part(1, second.weights)) else {
            return Ok(false);
        };
        ValuePages::accumulate_parts(runs[0].format.level(), &[one, two], rotated);
        Ok(true)
    }

    /// Encoded tokens of positions `from..to`, decoded in the domain of the blocks into `out`.
    pub(in crate::cache) fn decode_rotated(
        &self,
        from: usize,
        to: usize,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let mut at = from;
        while at < to {
            let end = to.min(self.part_end(at));
            let out = &mut out[(at - from) * self.dim..(end - from) * self.dim];
            self.pages.decode_rotated(at - self.sinks.len(), out)?;
            at = end;
        }
        Ok(())
    }

    /// Positions `from..to`, all held, as vectors: `[n, dim]`.
    pub(in crate::cache) fn read(&self, from: usize, to: usize, out: &mut [f32]) -> Result<(), CacheError> {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        let mut at = from;
        while at < to {
            let end = to.min(self.part_end(at));
            let out = &mut out[(at - from) * self.dim..(end - from) * self.dim];
            if at < sinks {
                self.sinks.read(at, out);
            } else if at >= coded {
                self.recent.read(at - coded, out);
            } else {
                self.pages.decode_rotated(at - sinks, out)?;
                self.pages.unrotate(out);
                if let Some(mean) = self.means.index((at - sinks) / PAGE_TOKENS) {
                    let mean = &self.means.list()[mean].values;
                    for row in out.chunks_exact_mut(self.dim) {
                        row.iter_mut().zip(mean.iter()).for_each(|(x, m)| *x += m);
                    }
                }
            }
            at = end;
        }
        Ok(())
    }
}

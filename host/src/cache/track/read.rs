//! Read access for attention: ends of parts, logits, weighted sums, and decoded vectors.

use super::Track;
use crate::cache::chosen::RUN;
use crate::cache::life::{self, PAGE_TOKENS};
use crate::cache::page::Run;
use crate::cache::scratch::HeadQueries;
use crate::error::CacheError;
use arrayvec::ArrayVec;
use tqkv_simd::page::{Line, MAX_PART, MAX_PARTS, ValuePages, ValuePart, WeightedPart};

impl Track {
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

    /// First position of the run of [`RUN`] tokens that holds a position. Runs begin with the pages.
    pub(in crate::cache) fn run_start(&self, position: usize) -> usize {
        self.start_of(position, RUN)
    }

    /// First position of the page that holds a position.
    pub(in crate::cache) fn page_start(&self, position: usize) -> usize {
        self.start_of(position, PAGE_TOKENS)
    }

    /// First position of the `tokens` tokens after the sinks, counted from page to page, that hold a position.
    fn start_of(&self, position: usize, tokens: usize) -> usize {
        let index = position.checked_sub(self.sink_capacity);
        index.map_or(0, |index| self.sink_capacity + index / tokens * tokens)
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

    /// Adds the weighted values of the positions from `from` on, all in one part. `weights` is `[heads, n]`.
    /// The two sums (`[heads, dim]`) are of uncompressed rows and means, and of blocks in the rotated domain.
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
            run.format.accumulate(&run.lines, from - sinks, weights, next, rotated);
            life::add_weighted(plain, weights, self.mean_of(run.page));
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

    /// [`Track::accumulate`] for several parts in pages of one codec. Returns false if the codecs differ. Only
    /// the codec decides, so spilled memory or spare room changes no bit.
    pub(in crate::cache) fn accumulate_parts(
        &self,
        parts: &[WeightedPart<'_>],
        next: &[&[Line]],
        [plain, rotated]: [&mut [f32]; 2],
    ) -> Result<bool, CacheError> {
        let mut runs = ArrayVec::<Run<'_>, MAX_PARTS>::new();
        for part in parts {
            runs.push(self.pages.run(part.from - self.sinks.len())?);
        }
        let Some(&Run { format, .. }) = runs.first() else { return Ok(true) };
        let mut summed = ArrayVec::<ValuePart<'_>, MAX_PARTS>::new();
        for ((run, part), next) in runs.iter().zip(parts).zip(next) {
            let values = run.format.part(&run.lines, part.from - self.sinks.len(), part.weights, next);
            match values {
                Some(values) if run.format.codec().id() == format.codec().id() => summed.push(values),
                _ => return Ok(false),
            }
        }
        ValuePages::accumulate_parts(format.level(), &summed, rotated);
        for (run, part) in runs.iter().zip(parts) {
            life::add_weighted(plain, part.weights, self.mean_of(run.page));
        }
        Ok(true)
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

//! One side (keys or values) of one KV head: sinks, encoded pages, recent rows.
//!
//! Positions count from the start of the sequence. Those below the number of sinks are sinks;
//! then come the pages; what is newer is uncompressed.

use super::ahead::Ahead;
use super::format::{CodedQueries, Side};
use super::page::{ColdStore, Pages};
use super::rows::Rows;
use super::spec::{CacheSpec, Centring};
use crate::error::CacheError;
use tqkv_core::AnyCodec;
use tqkv_simd::Level;
use tqkv_simd::page::{Line, MAX_PART};

/// Tokens that leave the hot window together: encoders are faster with several vectors.
const BATCH: usize = 4;

/// Of `extra` tokens beyond a hot window of `hot`, how many are encoded.
pub(super) fn leaving(hot: usize, extra: usize) -> usize {
    // A window shorter than a batch means every token at once.
    if hot < BATCH { extra } else { extra / BATCH * BATCH }
}

/// Query heads that share a track, in the forms that its parts need.
pub(super) struct Queries {
    /// As the model made them, times 1/sqrt(head_dim): `[heads, dim]`.
    pub(super) plain: Vec<f32>,
    /// Added to the scores of encoded tokens: <plain, mu> for each head.
    pub(super) offsets: Vec<f32>,
    warm: CodedQueries,
    /// For cold pages of another codec.
    cold: Option<CodedQueries>,
}

/// Weighted values of some heads under construction, `[heads, dim]` in both domains.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// Uncompressed values.
    pub(super) plain: Vec<f32>,
    /// Blocks, in their domain.
    pub(super) rotated: Vec<f32>,
}

#[derive(Clone, Debug)]
pub(super) struct Track {
    side: Side,
    dim: usize,
    sink_capacity: usize,
    sinks: Rows,
    pages: Pages,
    recent: Rows,
    /// The oldest recent tokens, where their encoding has begun.
    ahead: Option<Ahead>,
}

impl Track {
    pub(super) fn new(
        spec: &CacheSpec,
        level: Level,
        side: Side,
        codec: AnyCodec,
        cold: Option<ColdStore>,
    ) -> Self {
        let dim = codec.dim();
        let centred = side == Side::Keys && spec.centring != Centring::Off;
        let mean = if centred { dim * size_of::<f32>() } else { 0 };
        Self {
            side,
            dim,
            sink_capacity: spec.sinks,
            sinks: Rows::new(dim, level),
            pages: Pages::new(codec, cold, side, spec.arithmetic, level, mean),
            recent: Rows::new(dim, level),
            ahead: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sinks.len() + self.pages.len() + self.recent.len()
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn sinks(&self) -> &Rows {
        &self.sinks
    }

    pub(super) fn recent(&self) -> &Rows {
        &self.recent
    }

    pub(super) fn codec(&self) -> &AnyCodec {
        self.pages.warm().codec()
    }

    /// The instruction set of all work on the track.
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

    /// Appends uncompressed tokens, `[n, dim]`.
    pub(super) fn push(&mut self, rows: &[f32]) {
        let room = (self.sink_capacity - self.sinks.len()) * self.dim;
        let (sinks, recent) = rows.split_at(room.min(rows.len()));
        if !sinks.is_empty() {
            self.sinks.push(sinks);
        }
        self.recent.push(recent);
    }

    /// Encodes the oldest recent tokens that leave a hot window of `hot`, each less `mean` where given.
    pub(super) fn encode_all_but(&mut self, hot: usize, mean: Option<&[f32]>) -> Result<(), CacheError> {
        let count = leaving(hot, self.recent.len().saturating_sub(hot));
        if count > 0 {
            match self.made_ahead(count) {
                Some(blocks) => self.pages.push_blocks(&blocks),
                None => {
                    let (from, oldest) = (self.coded_end(), self.oldest(count, mean));
                    let tokens =
                        format_args!("{} of tokens {from} to {}", self.side.name(), from + count - 1);
                    self.pages.push(&oldest).map_err(|error| error.within(tokens))?;
                }
            }
            // Half of what is saved may be spare rows, half may be vectors that are encoded ahead.
            let spare = self.pages.saved_bytes() / 2 / (2 * self.dim);
            let wanted = ((self.recent.len() - count) / 8).max(BATCH);
            self.recent.drop_front(count, spare.min(wanted));
        }
        // The next to leave are all there, and codes with a search are worth a thread.
        let dear = self.codec().trellis().is_some();
        let paid = self.pages.saved_bytes() / 2 >= BATCH * self.dim * size_of::<f32>();
        if dear && paid && self.ahead.is_none() && self.recent.len() >= BATCH && hot >= BATCH {
            self.ahead = Some(Ahead::new(self.coded_end(), self.oldest(BATCH, mean)));
        }
        Ok(())
    }

    /// Has the tokens that leave next encoded on a spare thread.
    pub(super) fn encode_ahead(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.begin(self.pages.warm());
        }
    }

    /// The oldest recent tokens, each less `mean` where given: `[count, dim]`.
    fn oldest(&self, count: usize, mean: Option<&[f32]>) -> Vec<f32> {
        let mut rows = vec![0.0; count * self.dim];
        self.recent.read(0, &mut rows);
        if let Some(mean) = mean {
            for row in rows.chunks_exact_mut(self.dim) {
                row.iter_mut().zip(mean).for_each(|(x, m)| *x -= m);
            }
        }
        rows
    }

    /// Blocks of the oldest `count` recent tokens, where these have been encoded ahead.
    fn made_ahead(&mut self, count: usize) -> Option<Vec<u8>> {
        let ahead = self.ahead.take()?;
        if count == BATCH && ahead.first() == self.coded_end() {
            ahead.blocks(self.pages.warm())
        } else {
            None
        }
    }

    /// Mean of the oldest `count` recent tokens, and the share of their energy that it holds.
    pub(super) fn mean_of_oldest(&self, count: usize) -> (Vec<f32>, f32) {
        let (mut mean, mut energy, mut row) = (vec![0.0; self.dim], 0.0, vec![0.0; self.dim]);
        for i in 0..count {
            self.recent.read(i, &mut row);
            for (m, x) in mean.iter_mut().zip(&row) {
                *m += x;
                energy += x * x;
            }
        }
        mean.iter_mut().for_each(|m| *m /= count as f32);
        let mean_energy: f32 = mean.iter().map(|m| m * m).sum();
        let share = if energy > 0.0 { mean_energy * count as f32 / energy } else { 0.0 };
        (mean, share)
    }

    /// Frees encoded pages whose tokens all lie before position `first`.
    pub(super) fn evict_before(&mut self, first: usize) {
        self.pages.evict_before(first.saturating_sub(self.sink_capacity));
    }

    /// Cools pages whose tokens all lie before position `before`.
    pub(super) fn cool_before(&mut self, before: usize) -> Result<(), CacheError> {
        self.pages.cool_before(before.saturating_sub(self.sink_capacity))
    }

    /// First position after the sinks that is still held.
    pub(super) fn first_live(&self) -> usize {
        self.sink_capacity + self.pages.first()
    }

    pub(super) fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        // Other tokens may come where some are dropped.
        self.ahead = self.ahead.take().filter(|ahead| ahead.first() + BATCH <= len);
        self.recent.truncate(len.saturating_sub(self.coded_end()).min(self.recent.len()));
        self.pages.truncate(len.saturating_sub(self.sinks.len()))?;
        self.sinks.truncate(len.min(self.sinks.len()));
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.ahead = None;
        self.sinks.clear();
        self.pages.clear();
        self.recent.clear();
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let ahead = self.ahead.as_ref().map_or(0, Ahead::allocated_bytes);
        self.sinks.allocated_bytes() + self.pages.allocated_bytes() + self.recent.allocated_bytes() + ahead
    }

    /// Makes queries (`[heads, dim]`, times 1/sqrt(head_dim)) ready for [`Track::scores`].
    pub(super) fn queries(&self, plain: Vec<f32>, offsets: Vec<f32>) -> Queries {
        let demoted = self.pages.any_cold() && self.pages.cold().codec().id() != self.codec().id();
        Queries {
            warm: self.pages.warm().queries(&plain),
            cold: demoted.then(|| self.pages.cold().queries(&plain)),
            plain,
            offsets,
        }
    }

    /// End of the range from position `from` on that lies in one part: sinks, a page, recent rows.
    pub(super) fn part_end(&self, from: usize) -> usize {
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
    pub(super) fn lines(&self, position: usize) -> &[Line] {
        position.checked_sub(self.sinks.len()).map_or(&[], |index| self.pages.lines(index))
    }

    /// Logits of the positions from `from` on, all in one part: `out` is `[heads, n]`. `next` is memory that
    /// is read soon.
    pub(super) fn scores(&self, queries: &Queries, from: usize, next: &[Line], out: &mut [f32]) {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        if from < sinks {
            self.sinks.scores(from, &queries.plain, out);
        } else if from >= coded {
            self.recent.scores(from - coded, &queries.plain, out);
        } else {
            let run = self.pages.run(from - sinks);
            let coded = queries.cold.as_ref().filter(|_| run.is_cold).unwrap_or(&queries.warm);
            run.format.scores(&run.lines, run.slot, coded, next, out);
            let n = out.len() / queries.offsets.len();
            for (out, offset) in out.chunks_exact_mut(n).zip(&queries.offsets) {
                out.iter_mut().for_each(|logit| *logit += offset);
            }
        }
    }

    /// Adds the weighted values of the positions from `from` on, all in one part: `weights` is `[heads, n]`.
    pub(super) fn accumulate(&self, weights: &[f32], from: usize, next: &[Line], sums: &mut Sums) {
        let (sinks, coded) = (self.sinks.len(), self.coded_end());
        if from < sinks {
            self.sinks.accumulate(from, weights, &mut sums.plain);
        } else if from >= coded {
            self.recent.accumulate(from - coded, weights, &mut sums.plain);
        } else {
            let run = self.pages.run(from - sinks);
            run.format.accumulate(&run.lines, run.slot, weights, next, &mut sums.rotated);
        }
    }

    /// Encoded tokens of positions `from..to`, decoded in the domain of the blocks into `out`.
    pub(super) fn decode_rotated(&self, from: usize, to: usize, out: &mut [f32]) {
        let mut at = from;
        while at < to {
            let end = to.min(self.part_end(at));
            let run = self.pages.run(at - self.sinks.len());
            run.format.decode_rotated(
                &run.lines,
                run.slot,
                &mut out[(at - from) * self.dim..(end - from) * self.dim],
            );
            at = end;
        }
    }
}

/// Plain dot product of equally long slices, in eight lanes that the compiler can vectorise.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (left, right) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (x, y) in left.0.iter().zip(right.0) {
        for (lane, (p, q)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += p * q;
        }
    }
    lanes.iter().sum::<f32>() + left.1.iter().zip(right.1).map(|(p, q)| p * q).sum::<f32>()
}

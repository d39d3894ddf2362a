//! One side (keys or values) of one KV head: sinks, encoded pages, recent rows.
//!
//! Positions count from the start of the sequence. Those below the number of sinks are sinks;
//! then come the pages; what is newer is uncompressed.

use super::level;
use super::page::{ColdStore, Pages};
use super::rows::Rows;
use crate::error::CacheError;
use half::f16;
use half::slice::HalfFloatSliceExt;
use tqkv_core::{AnyCodec, CodecId};

/// A query in the forms that the parts of a track need.
pub(super) struct Query<'a> {
    /// As the model made it, times 1/sqrt(head_dim).
    pub(super) plain: &'a [f32],
    /// In the domain of the track's blocks.
    pub(super) rotated: &'a [f32],
    /// Added to the score of every block: <plain, mu>.
    pub(super) offset: f32,
}

/// Attention output under construction, in both domains.
pub(super) struct Accumulator<'a> {
    /// Sum of weighted uncompressed values.
    pub(super) plain: &'a mut [f32],
    /// Sum of weighted blocks, in their domain.
    pub(super) rotated: &'a mut [f32],
}

#[derive(Clone, Debug)]
pub(super) struct Track {
    dim: usize,
    sink_capacity: usize,
    sinks: Rows,
    pages: Pages,
    recent: Rows,
}

impl Track {
    pub(super) fn new(codec: AnyCodec, cold: Option<ColdStore>, sink_capacity: usize) -> Self {
        let dim = codec.dim();
        Self {
            dim,
            sink_capacity,
            sinks: Rows::new(dim),
            pages: Pages::new(codec, cold),
            recent: Rows::new(dim),
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
        self.pages.codec()
    }

    /// Position one past the last encoded token.
    pub(super) fn coded_end(&self) -> usize {
        if self.pages.len() == 0 { self.sinks.len() } else { self.sink_capacity + self.pages.len() }
    }

    pub(super) fn sink_capacity(&self) -> usize {
        self.sink_capacity
    }

    /// Appends an uncompressed token.
    pub(super) fn push(&mut self, row: &[f32]) {
        if self.sinks.len() < self.sink_capacity { self.sinks.push(row) } else { self.recent.push(row) }
    }

    /// Encodes the oldest recent tokens until `keep` are left, each less `mean` where given.
    pub(super) fn encode_all_but(&mut self, keep: usize, mean: Option<&[f32]>) -> Result<(), CacheError> {
        let mut row = vec![0.0; self.dim];
        while self.recent.len() > keep {
            self.recent.read(0, &mut row);
            for (x, m) in row.iter_mut().zip(mean.unwrap_or_default()) {
                *x -= m;
            }
            self.pages.push(&row)?;
            self.recent.pop_front();
        }
        self.recent.release();
        Ok(())
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
        let coded_end = self.sinks.len() + self.pages.len();
        self.recent.truncate(len.saturating_sub(coded_end));
        self.pages.truncate(len.saturating_sub(self.sinks.len()))?;
        self.sinks.truncate(len.min(self.sinks.len()));
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.sinks.clear();
        self.pages.clear();
        self.recent.clear();
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.sinks.allocated_bytes() + self.pages.allocated_bytes() + self.recent.allocated_bytes()
    }

    /// The parts of `from..to` (positions that are held): sinks, blocks, recent.
    fn split(&self, from: usize, to: usize) -> [(usize, usize); 3] {
        let (sinks, coded) = (self.sinks.len(), self.sinks.len() + self.pages.len());
        let part = |low: usize, high: usize| {
            let (start, end) = (from.max(low), to.min(high));
            (start, end.max(start))
        };
        [part(0, sinks), part(sinks, coded), part(coded, usize::MAX)]
    }

    /// Logits of positions `from..from + out.len()`.
    pub(super) fn scores(&self, query: &Query<'_>, from: usize, out: &mut [f32]) {
        let [sinks, coded, recent] = self.split(from, from + out.len());
        let mut row = vec![0.0; self.dim];
        for position in sinks.0..sinks.1 {
            self.sinks.read(position, &mut row);
            out[position - from] = dot(query.plain, &row);
        }
        let first_block = self.sinks.len();
        for (token, codec, bytes) in
            self.pages.runs(coded.0 - first_block.min(coded.0), coded.1 - first_block.min(coded.1))
        {
            let at = token + first_block - from;
            let scores = &mut out[at..at + bytes.len() / codec.block_bytes()];
            if codec.id() == CodecId::F16 {
                for (score, block) in scores.iter_mut().zip(bytes.chunks_exact(codec.block_bytes())) {
                    read_halves(block, &mut row);
                    *score = dot(query.rotated, &row);
                }
            } else {
                tqkv_simd::codec::scores(level(), &codec, query.rotated, bytes, scores);
            }
            scores.iter_mut().for_each(|score| *score += query.offset);
        }
        for position in recent.0..recent.1 {
            self.recent.read(position - first_block - self.pages.len(), &mut row);
            out[position - from] = dot(query.plain, &row);
        }
    }

    /// Adds the values of positions `from..from + weights.len()`, weighted.
    pub(super) fn accumulate(&self, weights: &[f32], from: usize, sum: &mut Accumulator<'_>) {
        let [sinks, coded, recent] = self.split(from, from + weights.len());
        let mut row = vec![0.0; self.dim];
        for position in sinks.0..sinks.1 {
            self.sinks.read(position, &mut row);
            add_scaled(sum.plain, weights[position - from], &row);
        }
        let first_block = self.sinks.len();
        for (token, codec, bytes) in
            self.pages.runs(coded.0 - first_block.min(coded.0), coded.1 - first_block.min(coded.1))
        {
            let at = token + first_block - from;
            let weights = &weights[at..at + bytes.len() / codec.block_bytes()];
            if codec.id() == CodecId::F16 {
                for (&weight, block) in weights.iter().zip(bytes.chunks_exact(codec.block_bytes())) {
                    read_halves(block, &mut row);
                    add_scaled(sum.rotated, weight, &row);
                }
            } else {
                tqkv_simd::codec::accumulate(level(), &codec, weights, bytes, sum.rotated);
            }
        }
        for position in recent.0..recent.1 {
            self.recent.read(position - first_block - self.pages.len(), &mut row);
            add_scaled(sum.plain, weights[position - from], &row);
        }
    }

    /// Encoded tokens of positions `from..to`, decoded in the domain of the blocks into `out`.
    pub(super) fn decode_rotated(&self, from: usize, to: usize, out: &mut [f32]) {
        let start = from - self.sink_capacity;
        for (token, codec, bytes) in self.pages.runs(start, to - self.sink_capacity) {
            let rows = &mut out[(token - start) * self.dim..];
            tqkv_simd::codec::decode_rotated(level(), &codec, bytes, rows);
        }
    }
}

/// A block of `f16` as f32, many values an instruction; the codec's own loop takes one at a time.
fn read_halves(block: &[u8], row: &mut [f32]) {
    let mut halves = [f16::ZERO; 64];
    for (bytes, out) in block.chunks(2 * halves.len()).zip(row.chunks_mut(64)) {
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves[..out.len()].convert_to_f32_slice(out);
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

fn add_scaled(sum: &mut [f32], weight: f32, row: &[f32]) {
    for (s, x) in sum.iter_mut().zip(row) {
        *s += weight * x;
    }
}

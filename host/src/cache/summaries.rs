//! Means of a few keys each, by which single queries pick the tokens that they attend to (`select=`).
//!
//! Each full page has a mean of every [`GRAIN`] keys, less the mean that the page itself has, in 4 bits. It is made
//! of the codes as the page holds them, again if the page is encoded again, so a restored cache has the same ones.

use super::budget::{Budget, Lease};
use super::format::{CodedQueries, PageFormat, PageRole};
use super::layer::LayerKind;
use super::life::PAGE_TOKENS;
use super::spec::{Arithmetic, CacheSpec, MOST_TOKENS};
use super::tier::encode_to;
use crate::error::CacheError;
use std::sync::Arc;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;
use tqkv_simd::page::Line;

/// Number of keys in a mean.
pub(super) const GRAIN: usize = 8;

/// Number of means of a page.
pub(super) const PAGE_GRAINS: usize = PAGE_TOKENS / GRAIN;

/// Number of pages whose means lie together.
const CHUNK_PAGES: usize = 4;

/// Number of means that lie together.
const CHUNK: usize = CHUNK_PAGES * PAGE_GRAINS;

/// Bytes of a page's share of what lies next to the means, rounded up.
pub(super) const CHUNK_HEADER: usize =
    (size_of::<MeanChunk>() + 3 * size_of::<usize>()).div_ceil(CHUNK_PAGES);

/// Means of four pages. Forks share them.
#[derive(Clone, Debug)]
struct MeanChunk {
    lines: Box<[Line]>,
    /// Counts the bytes.
    _lease: Lease,
}

#[derive(Clone, Debug)]
pub(super) struct Summaries {
    format: PageFormat,
    chunks: Vec<Arc<MeanChunk>>,
    /// Number of pages that have means.
    pages: usize,
    /// Counts the bytes of the list.
    list: Lease,
}

impl Summaries {
    /// No means, of keys of this head dim.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`] for a head dim that the code of the means does not have.
    pub(super) fn new(
        dim: usize,
        options: Options,
        level: Level,
        budget: &Budget,
    ) -> Result<Self, CacheError> {
        let format = format(dim, options, level)?;
        Ok(Self { format, chunks: Vec::new(), pages: 0, list: budget.lease() })
    }

    /// Number of pages that have means.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    fn chunk_bytes(&self) -> usize {
        self.format.lines() * size_of::<Line>() + size_of::<MeanChunk>() + 2 * size_of::<usize>()
    }

    /// Makes the means of a page, the one after the last or one that has some, from its keys less their mean. A mean
    /// that the code cannot hold counts as 0.
    pub(super) fn put(&mut self, page: usize, keys: &[f32]) {
        let dim = self.format.codec().dim();
        let mut means = vec![0.0; PAGE_GRAINS * dim];
        for (mean, keys) in means.chunks_exact_mut(dim).zip(keys.chunks_exact(GRAIN * dim)) {
            for key in keys.chunks_exact(dim) {
                mean.iter_mut().zip(key).for_each(|(mean, x)| *mean += x);
            }
            mean.iter_mut().for_each(|mean| *mean *= 1.0 / GRAIN as f32);
        }
        let mut blocks = Vec::new();
        if encode_to(&self.format, &means, &mut blocks).is_err() {
            blocks.fill(0);
        }
        if page / CHUNK_PAGES == self.chunks.len() {
            let mut lease = self.list.budget().lease();
            lease.set(self.chunk_bytes());
            let lines = vec![Line::ZERO; self.format.lines()].into();
            self.chunks.push(Arc::new(MeanChunk { lines, _lease: lease }));
            self.list.set(self.list_bytes());
        }
        let chunk = Arc::make_mut(&mut self.chunks[page / CHUNK_PAGES]);
        self.format.write_blocks(&mut chunk.lines, page % CHUNK_PAGES * PAGE_GRAINS.., &blocks);
        self.pages = self.pages.max(page + 1);
    }

    /// Forgets the means of all but the first pages.
    pub(super) fn truncate(&mut self, pages: usize) {
        self.pages = self.pages.min(pages);
        self.chunks.truncate(self.pages.div_ceil(CHUNK_PAGES));
        self.list.set(self.list_bytes());
    }

    /// Prepares queries (`[heads, dim]`, for keys without a map) for [`Summaries::scores`].
    pub(super) fn set_queries(&self, queries: &[f32], coded: &mut CodedQueries) {
        self.format.set_queries(queries, coded);
    }

    /// Calls `each` with the logits (`[heads, n]`) of the means of pages in turn, and the first of these pages.
    pub(super) fn scores(
        &self,
        (coded, heads): (&CodedQueries, usize),
        room: &mut Vec<f32>,
        mut each: impl FnMut(usize, &mut [f32]),
    ) {
        for first in (0..self.pages).step_by(CHUNK_PAGES) {
            self.scores_from(first, (coded, heads), room);
            each(first, room);
        }
    }

    /// Logits (`[heads, n]`) of the means from page `first` on, the first one of those that lie together.
    pub(super) fn scores_from(
        &self,
        first: usize,
        (coded, heads): (&CodedQueries, usize),
        room: &mut Vec<f32>,
    ) {
        let chunk = first / CHUNK_PAGES;
        room.resize(heads * (self.pages - first).min(CHUNK_PAGES) * PAGE_GRAINS, 0.0);
        let next = self.chunks.get(chunk + 1).map_or(&[][..], |next| &next.lines);
        self.format.scores(&self.chunks[chunk].lines, 0, coded, next, room);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.chunks.len() * self.chunk_bytes() + self.list_bytes()
    }

    /// Bytes of a copy that it does not share.
    pub(super) fn list_bytes(&self) -> usize {
        self.chunks.len() * size_of::<Arc<MeanChunk>>()
    }

    /// Bytes that other caches share.
    pub(super) fn shared_bytes(&self) -> usize {
        self.chunks.iter().filter(|chunk| Arc::strong_count(chunk) > 1).count() * self.chunk_bytes()
    }

    /// Upper bound of the bytes that the means of `pages` more pages need, with the copy of a shared chunk.
    pub(super) fn growth(&self, pages: usize) -> usize {
        if pages == 0 {
            0
        } else {
            (pages.div_ceil(CHUNK_PAGES) + 1) * (self.chunk_bytes() + size_of::<Arc<MeanChunk>>())
        }
    }
}

/// Fewest tokens to select. Up to 127 of them are in a page that is not full, and are always selected.
const LEAST_SELECTED: usize = 2 * PAGE_TOKENS;

/// Arrangement of the means.
fn format(dim: usize, options: Options, level: Level) -> Result<PageFormat, CacheError> {
    let codec = AnyCodec::new(CodecId::S4, dim, options)
        .map_err(|error| CacheError::BadSpec(format!("select= with head_dim {dim}: {error}")))?;
    Ok(PageFormat::new(codec, PageRole::Keys, Arithmetic::Int8, level).of_slots(CHUNK))
}

impl CacheSpec {
    /// Bytes that a page of one KV head of a layer takes for `select=`, besides keys and values. 0 without it.
    ///
    /// # Errors
    /// A head dim that the code of the means does not have.
    pub fn selection_bytes(&self, layer: usize) -> Result<usize, CacheError> {
        if self.selects(layer).is_none() {
            return Ok(0);
        }
        let bytes = |dim| {
            // The instruction set does not change the arrangement.
            let format = format(dim, self.options, Level::Portable)?;
            Ok(format.lines() * size_of::<Line>() / CHUNK_PAGES)
        };
        self.summarised_dims(layer).into_iter().flatten().map(bytes).sum()
    }

    /// Coordinates of the vectors whose means are kept: keys, or latent vectors and their positional parts.
    pub(super) fn summarised_dims(&self, layer: usize) -> [Option<usize>; 2] {
        let dim = self.shape_at(layer).head_dim - self.position_dim;
        match self.selects(layer) {
            None => [None; 2],
            Some(_) => [Some(dim), Some(self.position_dim).filter(|dim| *dim > 0)],
        }
    }

    /// Number of encoded tokens that single queries of a layer attend to. `None` if that is all that they see.
    pub(super) fn selects(&self, layer: usize) -> Option<usize> {
        self.select.filter(|_| self.kind(layer) == LayerKind::Full)
    }

    /// Refuses a selection that a cache cannot have.
    pub(super) fn check_selection(&self) -> Result<(), CacheError> {
        let Some(tokens) = self.select else { return Ok(()) };
        if (LEAST_SELECTED..=MOST_TOKENS).contains(&tokens) {
            return Ok(());
        }
        let expected = format!("expected {LEAST_SELECTED} to {MOST_TOKENS} tokens");
        Err(CacheError::BadSpec(format!("select={tokens} is not valid: {expected}")))
    }
}

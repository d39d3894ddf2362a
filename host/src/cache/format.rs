//! Arrangement of the blocks of one codec in a page: the interface between the cache and the page kernels.
//!
//! Codecs with page kernels have their own arrangement. The blocks of other codecs lie one after the other. A
//! codec that gains kernels changes only [`PageLayout::new`].

use super::layer::KvPair;
use super::life::PAGE_TOKENS;
use super::spec::{Arithmetic, CacheSpec};
use crate::error::CacheError;
use tqkv_core::unstable::trellis::QUARTERS;
use tqkv_core::{AnyCodec, CodecId, MAX_HEAD_DIM};
use tqkv_simd::Level;
use tqkv_simd::page::{HalfPages, KeyPages, Line, Queries, ValuePages, ValuePart, row_scores, row_sums};

/// More bytes than a block of any codec has.
pub(super) const MAX_BLOCK_BYTES: usize = size_of::<f32>() * MAX_HEAD_DIM;

/// Bytes of the blocks that are decoded at once.
const DECODED_BYTES: usize = 4 * MAX_BLOCK_BYTES;

/// The role of a page's vectors in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRole {
    Keys,
    Values,
    /// Both keys and values.
    Latent,
    /// The positional part of latent keys, kept as f16.
    Position,
}

#[derive(Clone, Copy, Debug)]
enum PageLayout {
    /// Codes with integer scores.
    Keys(KeyPages),
    /// Codes with integer sums.
    Values(ValuePages),
    /// f16 rows. Each row takes a whole number of lines.
    Halves(HalfPages),
    /// f16 rows, back to back.
    Rows,
    /// Blocks back to back, in their stored form.
    Blocks,
}

impl PageLayout {
    fn new(codec: &AnyCodec, side: PageRole, arithmetic: Arithmetic) -> Self {
        if codec.id() == CodecId::F16 {
            return HalfPages::new(codec.dim(), PAGE_TOKENS).map_or(Self::Rows, Self::Halves);
        }
        match (arithmetic, side) {
            (Arithmetic::F32, _) | (Arithmetic::Int8, PageRole::Latent | PageRole::Position) => None,
            (Arithmetic::Int8, PageRole::Keys) => KeyPages::new(codec, PAGE_TOKENS).map(Self::Keys),
            (Arithmetic::Int8, PageRole::Values) => ValuePages::new(codec, PAGE_TOKENS).map(Self::Values),
        }
        .unwrap_or(Self::Blocks)
    }
}

/// A codec and the arrangement of its blocks in pages of [`PAGE_TOKENS`] tokens, or fewer in a page that
/// begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFormat {
    codec: AnyCodec,
    layout: PageLayout,
    level: Level,
    slots: usize,
    /// Tokens from slot 0 of a page to that of the next one.
    period: usize,
}

/// Query heads in the domain of the blocks, at most [`tqkv_simd::page::MAX_HEADS`].
#[derive(Clone, Debug, Default)]
pub(crate) struct CodedQueries {
    /// `[heads, dim]`
    rotated: Vec<f32>,
    /// The same queries as signed bytes. Empty if the format scores in f32.
    int8: Box<Queries>,
}

impl PageFormat {
    pub(crate) fn new(codec: AnyCodec, side: PageRole, arithmetic: Arithmetic, level: Level) -> Self {
        Self {
            codec,
            layout: PageLayout::new(&codec, side, arithmetic),
            level,
            slots: PAGE_TOKENS,
            period: PAGE_TOKENS,
        }
    }

    /// The instruction set for all work on these pages.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    pub(crate) fn codec(&self) -> &AnyCodec {
        &self.codec
    }

    /// The format with other weights of the errors of quarters, for a code that has them. Only its encoder differs.
    pub(crate) fn weighted(self, weights: Option<[f32; QUARTERS]>) -> Self {
        weights.map_or(self, |weights| Self { codec: self.codec.weighted(weights), ..self })
    }

    /// The format with fewer slots, a multiple of [`SLOT_STEP`].
    pub(crate) fn of_slots(&self, slots: usize) -> Self {
        let codec = &self.codec;
        let layout = match self.layout {
            PageLayout::Keys(_) => KeyPages::new(codec, slots).map(PageLayout::Keys),
            PageLayout::Values(_) => ValuePages::new(codec, slots).map(PageLayout::Values),
            PageLayout::Halves(_) => HalfPages::new(codec.dim(), slots).map(PageLayout::Halves),
            PageLayout::Rows => Some(PageLayout::Rows),
            PageLayout::Blocks => Some(PageLayout::Blocks),
        };
        layout.map_or(*self, |layout| Self { layout, slots, ..*self })
    }

    /// The format of blocks of this many tokens, which follow each other in a sequence.
    pub(crate) fn in_blocks(&self, tokens: usize) -> Self {
        Self { period: tokens, ..self.of_slots(tokens) }
    }

    /// True if the pages have kernels, which are faster than decoding.
    pub(crate) fn has_kernels(&self) -> bool {
        matches!(self.layout, PageLayout::Keys(_) | PageLayout::Values(_) | PageLayout::Halves(_))
    }

    /// Number of slots in a page.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Arranges blocks (back to back, at most one per slot) as a page.
    pub(super) fn arrange(&self, blocks: &[u8]) -> Vec<Line> {
        let mut lines = vec![Line::ZERO; self.lines()];
        self.write_blocks(&mut lines, 0.., blocks);
        lines
    }

    /// Number of lines in a page.
    pub(crate) fn lines(&self) -> usize {
        match &self.layout {
            PageLayout::Keys(pages) => pages.lines(),
            PageLayout::Values(pages) => pages.lines(),
            PageLayout::Halves(pages) => pages.lines(),
            PageLayout::Rows | PageLayout::Blocks => {
                (self.slots * self.codec.block_bytes()).div_ceil(size_of::<Line>())
            }
        }
    }

    /// Writes a block to a slot.
    pub(crate) fn write(&self, page: &mut [Line], slot: usize, block: &[u8]) {
        match &self.layout {
            PageLayout::Keys(pages) => pages.write(page, slot, block),
            PageLayout::Values(pages) => pages.write(page, slot, block),
            PageLayout::Halves(pages) => pages.write(page, slot, block),
            PageLayout::Rows => {
                let halves: &mut [u16] = bytemuck::cast_slice_mut(page);
                let row = &mut halves[slot * self.codec.dim()..(slot + 1) * self.codec.dim()];
                for (half, bytes) in row.iter_mut().zip(block.as_chunks::<2>().0) {
                    *half = u16::from_le_bytes(*bytes);
                }
            }
            PageLayout::Blocks => {
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(page);
                bytes[slot * block.len()..(slot + 1) * block.len()].copy_from_slice(block);
            }
        }
    }

    /// Reads a block back in its stored form.
    pub(crate) fn read(&self, page: &[Line], slot: usize, block: &mut [u8]) {
        match &self.layout {
            PageLayout::Keys(pages) => pages.read(page, slot, block),
            PageLayout::Values(pages) => pages.read(page, slot, block),
            PageLayout::Halves(pages) => pages.read(page, slot, block),
            PageLayout::Rows => {
                let row = &halves(page)[slot * self.codec.dim()..(slot + 1) * self.codec.dim()];
                for (bytes, half) in block.as_chunks_mut::<2>().0.iter_mut().zip(row) {
                    *bytes = half.to_le_bytes();
                }
            }
            PageLayout::Blocks => block.copy_from_slice(self.blocks(page, slot, slot + 1)),
        }
    }

    /// Writes blocks, back to back, to some slots.
    pub(crate) fn write_blocks(
        &self,
        page: &mut [Line],
        slots: impl IntoIterator<Item = usize>,
        blocks: &[u8],
    ) {
        let blocks = blocks.chunks_exact(self.codec.block_bytes());
        slots.into_iter().zip(blocks).for_each(|(slot, block)| self.write(page, slot, block));
    }

    /// Reads some slots as blocks, back to back.
    pub(crate) fn read_blocks(&self, page: &[Line], slots: impl ExactSizeIterator<Item = usize>) -> Vec<u8> {
        let mut blocks = vec![0; slots.len() * self.codec.block_bytes()];
        let each = slots.zip(blocks.chunks_exact_mut(self.codec.block_bytes()));
        each.for_each(|(slot, block)| self.read(page, slot, block));
        blocks
    }

    /// Prepares queries (`[heads, dim]`) for [`PageFormat::scores`]. Reuses memory.
    pub(crate) fn set_queries(&self, plain: &[f32], queries: &mut CodedQueries) {
        queries.rotated.resize(plain.len(), 0.0);
        tqkv_simd::codec::rotate_queries(self.level, &self.codec, plain, &mut queries.rotated);
        if let PageLayout::Keys(pages) = &self.layout {
            *queries.int8 = pages.queries(self.level, &queries.rotated);
        }
    }

    /// Logits of the slots from `from` on: `out` is `[heads, n]`. `next` is memory to prefetch.
    pub(crate) fn scores(
        &self,
        page: &[Line],
        from: usize,
        queries: &CodedQueries,
        next: &[Line],
        out: &mut [f32],
    ) {
        let dim = self.codec.dim();
        let n = out.len() / (queries.rotated.len() / dim);
        match &self.layout {
            PageLayout::Keys(pages) => pages.scores(self.level, page, from, &queries.int8, next, out),
            PageLayout::Halves(pages) => pages.scores(self.level, page, from, &queries.rotated, next, out),
            PageLayout::Rows => {
                row_scores(
                    self.level,
                    &halves(page)[from * dim..(from + n) * dim],
                    dim,
                    &queries.rotated,
                    out,
                );
            }
            PageLayout::Values(_) | PageLayout::Blocks => {
                let blocks = self.blocks(page, from, from + n);
                for (query, out) in queries.rotated.chunks_exact(dim).zip(out.chunks_exact_mut(n)) {
                    tqkv_simd::codec::scores(self.level, &self.codec, query, blocks, out);
                }
            }
        }
    }

    /// Adds the weighted values of the tokens from `index` on, which counts from the first page of the
    /// sequence: `weights` is `[heads, n]`, `acc` is `[heads, dim]`.
    pub(crate) fn accumulate(
        &self,
        page: &[Line],
        index: usize,
        weights: &[f32],
        next: &[Line],
        acc: &mut [f32],
    ) {
        let (dim, from) = (self.codec.dim(), index % self.period);
        let n = weights.len() / (acc.len() / dim);
        match &self.layout {
            PageLayout::Values(pages) => {
                let part = ValuePart { pages, page, start: index - from, from, weights, next };
                ValuePages::accumulate_parts(self.level, &[part], acc);
            }
            PageLayout::Halves(pages) => pages.accumulate(self.level, page, from, weights, next, acc),
            PageLayout::Rows => {
                row_sums(self.level, &halves(page)[from * dim..(from + n) * dim], dim, weights, acc);
            }
            PageLayout::Keys(_) | PageLayout::Blocks => {
                let blocks = self.blocks(page, from, from + n);
                for (weights, acc) in weights.chunks_exact(n).zip(acc.chunks_exact_mut(dim)) {
                    tqkv_simd::codec::accumulate(self.level, &self.codec, weights, blocks, acc);
                }
            }
        }
    }

    /// True if sums over two pages are made together for this number of heads; see [`PageFormat::part`].
    pub(crate) fn joins(&self, heads: usize) -> bool {
        matches!(&self.layout, PageLayout::Values(pages) if pages.joins(heads))
    }

    /// Tokens of a page of values for [`ValuePages::accumulate_parts`], if its format supports that. They
    /// begin with `index`, as in [`PageFormat::accumulate`].
    pub(crate) fn part<'a>(
        &'a self,
        page: &'a [Line],
        index: usize,
        weights: &'a [f32],
        next: &'a [Line],
    ) -> Option<ValuePart<'a>> {
        let PageLayout::Values(pages) = &self.layout else { return None };
        let from = index % self.period;
        Some(ValuePart { pages, page, start: index - from, from, weights, next })
    }

    /// Decodes the slots from `from` on, in the domain of the blocks: `out` is `[n, dim]`.
    pub(super) fn decode_rotated(&self, page: &[Line], from: usize, out: &mut [f32]) {
        let (dim, bytes) = (self.codec.dim(), self.codec.block_bytes());
        let mut memory = [0; DECODED_BYTES];
        let at_once = DECODED_BYTES / bytes;
        for (i, out) in out.chunks_mut(at_once * dim).enumerate() {
            let blocks = &mut memory[..out.len() / dim * bytes];
            for (slot, block) in (from + i * at_once..).zip(blocks.chunks_exact_mut(bytes)) {
                self.read(page, slot, block);
            }
            tqkv_simd::codec::decode_rotated(self.level, &self.codec, blocks, out);
        }
    }

    /// Blocks of slots `from..to`, if they lie back to back.
    fn blocks<'a>(&self, page: &'a [Line], from: usize, to: usize) -> &'a [u8] {
        &bytemuck::cast_slice(page)[from * self.codec.block_bytes()..to * self.codec.block_bytes()]
    }
}

fn halves(page: &[Line]) -> &[u16] {
    bytemuck::cast_slice(page)
}

impl CacheSpec {
    /// Bytes of the blocks of a warm page of [`PAGE_TOKENS`] keys, and of a page of values, of one KV head of
    /// a layer.
    ///
    /// All pages but the last are full. The last page is allocated in full once that takes less than its
    /// tokens in f16. Uncompressed tokens take `2 * head_dim` bytes per token, for keys and for values.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub fn page_bytes(&self, layer: usize) -> Result<[usize; 2], CacheError> {
        self.page_bytes_of(layer, self.codecs_at(layer))
    }

    /// The role of each of the two vectors of a token.
    pub(super) fn roles(&self) -> [PageRole; 2] {
        if self.position_dim > 0 {
            [PageRole::Latent, PageRole::Position]
        } else {
            [PageRole::Keys, PageRole::Values]
        }
    }

    /// [`CacheSpec::page_bytes`] of pages in these codecs.
    pub(super) fn page_bytes_of(&self, layer: usize, codecs: KvPair) -> Result<[usize; 2], CacheError> {
        let [key, value] = self.make_codecs(layer, codecs)?;
        let sides = self.roles();
        let bytes = |codec, side| {
            // The instruction set does not change the arrangement.
            let format = PageFormat::new(codec, side, self.arithmetic, Level::Portable);
            format.lines() * size_of::<Line>()
        };
        Ok([bytes(key, sides[0]), bytes(value, sides[1])])
    }
}

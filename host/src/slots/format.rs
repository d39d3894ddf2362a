//! How the vectors of one side of a KV head are encoded and arranged.

use crate::cache::format::{PageFormat, Side as PageSide};
use crate::cache::spec::Arithmetic;
use crate::cache::tier;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::Line;
use tqkv_simd::{Level, codec};

/// The role of vectors in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys, which queries are scored against.
    Keys,
    /// Values, which attention sums.
    Values,
}

/// A codec at a head dim, and its pages.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub(super) dim: usize,
    pub(super) level: Level,
    /// None for f16, where every row stays exact.
    pub(super) coded: Option<PageFormat>,
}

impl Format {
    /// The format of vectors of `dim` values; `None` if the codec does not have this head dim.
    pub(super) fn new(id: CodecId, dim: usize, side: Side, options: Options, level: Level) -> Option<Self> {
        // A head that codes of quarters do not fit has the code of one width.
        let id = if id.block_bytes(dim).is_some() { id } else { id.of_one_width() };
        // f16 needs the check too: the kernels of exact rows support only these head dims.
        let codec = AnyCodec::new(id, dim, options).ok()?;
        let side = match side {
            Side::Keys => PageSide::Keys,
            Side::Values => PageSide::Values,
        };
        let pages = PageFormat::new(codec, side, Arithmetic::Int8, level);
        match id {
            CodecId::F16 => Some(Self { dim, level, coded: None }),
            _ => pages.has_kernels().then_some(Self { dim, level, coded: Some(pages) }),
        }
    }

    /// The head dim.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The codec of the vectors; none for f16, where every row stays exact.
    pub fn codec(&self) -> Option<&AnyCodec> {
        self.coded.as_ref().map(PageFormat::codec)
    }

    /// Lines of a page of one head; 0 for f16.
    pub(super) fn lines(&self) -> usize {
        self.coded.as_ref().map_or(0, PageFormat::lines)
    }

    /// Encodes vectors (`[n, dim]`) to blocks back to back; false if one cannot be encoded. A code of
    /// quarters takes the weights of their errors.
    pub(super) fn encode(&self, x: &[f32], weights: Option<[f32; 4]>, blocks: &mut Vec<u8>) -> bool {
        let Some(pages) = self.coded else { return false };
        blocks.clear();
        blocks.resize(x.len() / self.dim * pages.codec().block_bytes(), 0);
        let pages = weights.map_or(pages, |weights| pages.weighted(weights));
        tier::encode(&pages, x, blocks).is_ok()
    }

    /// True if the codec rotates vectors before it codes them, so that a map moves its error.
    pub(super) fn is_rotated(&self) -> bool {
        self.coded.is_some_and(|pages| pages.codec().id().is_rotated())
    }

    /// True for a code whose widths differ by quarter.
    pub(super) fn is_of_quarters(&self) -> bool {
        self.coded.is_some_and(|pages| pages.codec().id().rotates_quarters())
    }

    /// Brings sums of blocks (`[n, dim]`) from the domain of the blocks to that of the vectors.
    pub(super) fn unrotate(&self, sums: &mut [f32]) {
        if let Some(pages) = &self.coded {
            codec::unrotate(self.level, pages.codec(), sums);
        }
    }

    /// Encodes vectors (`[n, dim]`) and decodes them again; false if one cannot be encoded.
    pub(super) fn round_trip(&self, x: &mut [f32]) -> bool {
        let (Some(pages), mut blocks) = (&self.coded, Vec::new()) else { return false };
        self.encode(x, None, &mut blocks) && codec::decode(self.level, pages.codec(), &blocks, x).is_ok()
    }

    /// Writes a block to a slot of a page.
    pub(super) fn write(&self, page: &mut [Line], slot: usize, block: &[u8]) {
        if let Some(pages) = &self.coded {
            pages.write(page, slot, block);
        }
    }

    /// Reads slots of a page as blocks, back to back.
    pub(super) fn read(&self, page: &[Line], slots: &[usize]) -> Vec<u8> {
        let Some(pages) = &self.coded else { return Vec::new() };
        let bytes = pages.codec().block_bytes();
        let mut blocks = vec![0; slots.len() * bytes];
        slots
            .iter()
            .zip(blocks.chunks_exact_mut(bytes))
            .for_each(|(&slot, block)| pages.read(page, slot, block));
        blocks
    }

    /// Decodes slots of a page: `out` is `[slots, dim]`.
    pub(super) fn decode(&self, page: &[Line], slots: &[usize], out: &mut [f32]) {
        let Some(pages) = &self.coded else { return };
        if codec::decode(self.level, pages.codec(), &self.read(page, slots), out).is_err() {
            // Blocks that `encode` made always decode. If one ever did not, NaN is better than a panic in the
            // host.
            out.fill(f32::NAN);
        }
    }
}

//! How the vectors of one side of a KV head are encoded and arranged.

use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::{KeyPages, Line, ValuePages};
use tqkv_simd::{Level, codec};

/// Slots per page.
pub const SLOTS: usize = 128;

/// The role of vectors in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys, which queries are scored against.
    Keys,
    /// Values, which attention sums.
    Values,
}

/// Arrangement of the [`SLOTS`] blocks of a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pages {
    Keys(KeyPages),
    Values(ValuePages),
}

/// A codec at a head dim, and its pages.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub(super) dim: usize,
    pub(super) level: Level,
    /// None for f16, where every row stays exact.
    pub(super) coded: Option<(AnyCodec, Pages)>,
}

impl Format {
    /// The format of vectors of `dim` values; `None` if the codec does not have this head dim.
    pub fn new(id: CodecId, dim: usize, side: Side, options: Options, level: Level) -> Option<Self> {
        // f16 needs the check too: the kernels of exact rows support only these head dims.
        let codec = AnyCodec::new(id, dim, options).ok()?;
        let pages = match side {
            Side::Keys => KeyPages::new(&codec, SLOTS).map(Pages::Keys),
            Side::Values => ValuePages::new(&codec, SLOTS).map(Pages::Values),
        };
        if id != CodecId::F16 && pages.is_none() {
            return None;
        }
        Some(Self { dim, level, coded: pages.map(|pages| (codec, pages)) })
    }

    /// The head dim.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a page of one head; 0 for f16.
    pub fn page_bytes(&self) -> usize {
        self.coded.as_ref().map_or(0, |(_, pages)| pages.lines() * size_of::<Line>())
    }

    /// Encodes vectors (`[n, dim]`) to blocks back to back; false if one cannot be encoded. A code of
    /// quarters takes the weights of their errors.
    pub(super) fn encode(&self, x: &[f32], weights: Option<[f32; 4]>, blocks: &mut Vec<u8>) -> bool {
        let Some((codec, _)) = self.coded else { return false };
        blocks.clear();
        blocks.resize(x.len() / self.dim * codec.block_bytes(), 0);
        let codec = weights.map_or(codec, |weights| codec.weighted(weights));
        codec::encode(self.level, &codec, x, blocks).is_ok()
    }

    /// True if the codec rotates vectors before it codes them, so that a map moves its error.
    pub(super) fn is_rotated(&self) -> bool {
        self.coded.is_some_and(|(codec, _)| codec.id().is_rotated())
    }

    /// True for a code whose widths differ by quarter.
    pub(super) fn is_of_quarters(&self) -> bool {
        self.coded.is_some_and(|(codec, _)| codec.id().rotates_quarters())
    }

    /// Encodes vectors (`[n, dim]`) and decodes them again; false if one cannot be encoded.
    pub(super) fn round_trip(&self, x: &mut [f32]) -> bool {
        let (Some((codec, _)), mut blocks) = (&self.coded, Vec::new()) else { return false };
        self.encode(x, None, &mut blocks) && codec::decode(self.level, codec, &blocks, x).is_ok()
    }

    /// Writes blocks, which are back to back, to slots of a page.
    pub(super) fn write(&self, page: &mut [Line], slots: impl Iterator<Item = usize>, blocks: &[u8]) {
        let Some((codec, pages)) = &self.coded else { return };
        for (slot, block) in slots.zip(blocks.chunks_exact(codec.block_bytes())) {
            match pages {
                Pages::Keys(pages) => pages.write(page, slot, block),
                Pages::Values(pages) => pages.write(page, slot, block),
            }
        }
    }

    /// Decodes slots of a page: `out` is `[slots, dim]`.
    pub(super) fn decode(&self, page: &[Line], slots: &[usize], out: &mut [f32]) {
        let Some((codec, pages)) = &self.coded else { return };
        let mut blocks = vec![0; slots.len() * codec.block_bytes()];
        for (&slot, block) in slots.iter().zip(blocks.chunks_exact_mut(codec.block_bytes())) {
            match pages {
                Pages::Keys(pages) => pages.read(page, slot, block),
                Pages::Values(pages) => pages.read(page, slot, block),
            }
        }
        if codec::decode(self.level, codec, &blocks, out).is_err() {
            // Blocks that `encode` made always decode. If one ever did not, NaN is better than a panic in the
            // host.
            out.fill(f32::NAN);
        }
    }
}

impl Pages {
    pub(super) fn lines(&self) -> usize {
        match self {
            Self::Keys(pages) => pages.lines(),
            Self::Values(pages) => pages.lines(),
        }
    }
}

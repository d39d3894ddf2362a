//! How the vectors of one side of a KV head are encoded and arranged.

use crate::cache::format::{PageFormat, PageRole};
use crate::cache::life::PAGE_TOKENS;
use crate::cache::spec::Arithmetic;
use crate::cache::tier::{encode_to, recode};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::SLOT_STEP;
use tqkv_simd::{Level, codec};

/// The role of vectors in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSide {
    /// Keys, which queries are scored against.
    Keys,
    /// Values, which attention sums.
    Values,
}

/// Steps of [`SLOT_STEP`] slots in a full page.
pub(super) const STEPS: usize = PAGE_TOKENS / SLOT_STEP;

/// A codec at a head dim, and its pages.
#[derive(Clone, Copy, Debug)]
struct TierFormat {
    /// Pages with room for one, two and more steps of [`SLOT_STEP`] slots. The last is a full page.
    pages: [PageFormat; STEPS],
    /// A page whose codes are all of older writes than this is in a colder tier.
    after: usize,
}

/// The codecs of one side of a layer, warm first, at a head dim.
#[derive(Clone, Debug)]
pub struct SlotFormat {
    pub(super) dim: usize,
    pub(super) level: Level,
    /// Empty for f16, where every row stays exact.
    tiers: Vec<TierFormat>,
}

impl SlotFormat {
    /// The format of vectors of `dim` values in a codec, and in the codecs of colder tiers with the number of
    /// newer writes from which pages are there. `None` if one of them does not have this head dim.
    pub(super) fn new(
        (id, cold): (CodecId, &[(usize, CodecId)]),
        dim: usize,
        side: StoreSide,
        options: Options,
        level: Level,
    ) -> Option<Self> {
        let side = match side {
            StoreSide::Keys => PageRole::Keys,
            StoreSide::Values => PageRole::Values,
        };
        // A head that codes of quarters do not fit has the code of one width.
        let codec = |id: CodecId| {
            let id = if id.block_bytes(dim).is_some() { id } else { id.of_one_width() };
            AnyCodec::new(id, dim, options).ok()
        };
        // f16 needs the check too: the kernels of exact rows support only these head dims.
        let warm = codec(id)?;
        if id == CodecId::F16 {
            return Some(Self { dim, level, tiers: Vec::new() });
        }
        let tier = |codec, after| {
            let whole = PageFormat::new(codec, side, Arithmetic::Int8, level);
            let pages = std::array::from_fn(|step| whole.of_slots((step + 1) * SLOT_STEP));
            whole.has_kernels().then_some(TierFormat { pages, after })
        };
        let mut tiers = vec![tier(warm, 0)?];
        for &(after, id) in cold {
            tiers.push(tier(codec(id)?, after)?);
        }
        Some(Self { dim, level, tiers })
    }

    /// The head dim.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The codec of the newer vectors; none for f16, where every row stays exact.
    pub fn codec(&self) -> Option<&AnyCodec> {
        Some(self.pages(0)?.codec())
    }

    /// The codec of the oldest vectors, that of the last tier; none for f16.
    pub fn coldest_codec(&self) -> Option<&AnyCodec> {
        Some(self.pages(self.tiers().checked_sub(1)?)?.codec())
    }

    /// Number of tiers; 0 for f16.
    pub(super) fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Whole pages of a tier.
    pub(super) fn pages(&self, tier: usize) -> Option<&PageFormat> {
        self.pages_of(tier, STEPS)
    }

    /// Pages of a tier with room for so many steps of [`SLOT_STEP`] slots.
    pub(super) fn pages_of(&self, tier: usize, steps: usize) -> Option<&PageFormat> {
        self.tiers.get(tier)?.pages.get(steps.checked_sub(1)?)
    }

    /// Number of newer writes from which pages are in a tier.
    pub(super) fn after(&self, tier: usize) -> usize {
        self.tiers[tier].after
    }

    /// Lines of one head in pages of a tier with room for one, two and more steps of slots.
    pub(super) fn lines(&self, tier: usize) -> [usize; STEPS] {
        self.tiers.get(tier).map_or([0; STEPS], |tier| tier.pages.map(|pages| pages.lines()))
    }

    /// Encodes vectors (`[n, dim]`) to blocks of a tier back to back; false if one cannot be encoded. A code of
    /// quarters takes the weights of their errors.
    pub(super) fn encode(
        &self,
        tier: usize,
        x: &[f32],
        weights: Option<[f32; 4]>,
        blocks: &mut Vec<u8>,
    ) -> bool {
        self.pages(tier).is_some_and(|pages| encode_to(&pages.weighted(weights), x, blocks).is_ok())
    }

    /// Converts blocks of a tier to blocks of the next one; none if one cannot be encoded. A code of quarters
    /// takes the weights of their errors.
    pub(super) fn recode(&self, tier: usize, blocks: &[u8], weights: Option<[f32; 4]>) -> Option<Vec<u8>> {
        let (from, to) = (self.pages(tier)?, &self.pages(tier + 1)?.weighted(weights));
        let (bytes, colder) = (from.codec().block_bytes(), to.codec().block_bytes());
        let mut result = vec![0; blocks.len() / bytes * colder];
        let pairs = blocks.chunks_exact(bytes).zip(result.chunks_exact_mut(colder));
        pairs.into_iter().try_for_each(|(block, result)| recode(from, block, to, result)).ok()?;
        Some(result)
    }

    /// True if the codec rotates vectors before it codes them, so that a map moves its error.
    pub(super) fn is_rotated(&self) -> bool {
        self.codec().is_some_and(|codec| codec.id().is_rotated())
    }

    /// True if some tier has a code whose widths differ by quarter.
    pub(super) fn is_of_quarters(&self) -> bool {
        self.tiers.iter().any(|tier| tier.pages[STEPS - 1].codec().id().rotates_quarters())
    }

    /// Brings sums of blocks (`[n, dim]`) from the domain of the blocks to that of the vectors.
    pub(super) fn unrotate(&self, sums: &mut [f32]) {
        if let Some(codec) = self.codec() {
            codec::unrotate(self.level, codec, sums);
        }
    }

    /// Encodes vectors (`[n, dim]`) and decodes them again; false if one cannot be encoded.
    pub(super) fn round_trip(&self, x: &mut [f32]) -> bool {
        let (Some(codec), mut blocks) = (self.codec(), Vec::new()) else { return false };
        self.encode(0, x, None, &mut blocks) && codec::decode(self.level, codec, &blocks, x).is_ok()
    }

    /// Decodes blocks of the first tier in their own domain: `out` becomes `[blocks, dim]`.
    pub(super) fn decode_rotated(&self, blocks: &[u8], out: &mut Vec<f32>) {
        out.clear();
        if let Some(codec) = self.codec() {
            out.resize(blocks.len() / codec.block_bytes() * self.dim, 0.0);
            codec::decode_rotated(self.level, codec, blocks, out);
        }
    }

    /// Decodes blocks of a tier: `out` is `[blocks, dim]`.
    pub(super) fn decode(&self, tier: usize, blocks: &[u8], out: &mut [f32]) {
        let Some(pages) = self.pages(tier) else { return };
        if codec::decode(self.level, pages.codec(), blocks, out).is_err() {
            // Blocks that `encode` made always decode. If one ever did not, NaN is better than a panic in the
            // host.
            out.fill(f32::NAN);
        }
    }
}

//! The tiers of the encoded tokens of one side of a head: warm first, then colder ones.

use super::format::{MAX_BLOCK_BYTES, PageFormat, PageRole};
use super::life::cold_age;
use super::spec::{CacheSpec, Cold};
use super::spill::SpillFile;
use crate::error::CacheError;
use std::sync::Arc;
use tqkv_core::{AnyCodec, EncodeError, MAX_HEAD_DIM, ScaleMode, demote};
use tqkv_simd::Level;
use tqkv_simd::page::Line;

/// The place of a tier's pages.
#[derive(Clone, Debug)]
pub(super) enum TierStore {
    Memory,
    File(SpillFile),
}

#[derive(Debug)]
struct Tier {
    format: PageFormat,
    /// The format of vectors without a map, of equal bytes.
    plain: PageFormat,
    /// A page whose tokens are all older than this is in this tier or a colder one.
    after: usize,
    store: TierStore,
}

/// The tiers, warm first. All heads of a layer share them.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    list: Arc<[Tier]>,
    /// True if no map came to be, so that codecs of one width take the place of codes of quarters.
    is_plain: bool,
}

impl Tiers {
    /// Makes the tiers of one side of a layer. `file` is set if the last tier is a file.
    pub(super) fn new(
        spec: &CacheSpec,
        layer: usize,
        side: PageRole,
        level: Level,
        file: Option<&SpillFile>,
    ) -> Result<Self, CacheError> {
        let pick = |[first, second]: [AnyCodec; 2]| match side {
            PageRole::Keys | PageRole::Latent => first,
            PageRole::Values | PageRole::Position => second,
        };
        let format = |codecs| {
            let codec = pick(spec.make_codecs(layer, codecs)?);
            let plain = AnyCodec::new(codec.id().of_one_width(), codec.dim(), codec.options());
            let plain = plain.map_err(|error| CacheError::BadSpec(error.to_string()))?;
            Ok::<_, CacheError>([codec, plain].map(|it| PageFormat::new(it, side, spec.arithmetic, level)))
        };
        let mut last = format(spec.codecs_at(layer))?;
        let mut tiers = vec![Tier { format: last[0], plain: last[1], after: 0, store: TierStore::Memory }];
        for (after, cold) in &spec.cold {
            let store = match (cold, file) {
                (Cold::Demote { key, value }, _) => {
                    last = format((*key, *value))?;
                    TierStore::Memory
                }
                (Cold::Spill(_), Some(file)) => TierStore::File(file.clone()),
                (Cold::Spill(_), None) => {
                    return Err(CacheError::BadSpec("a spill tier without a file".into()));
                }
            };
            tiers.push(Tier { format: last[0], plain: last[1], after: cold_age(*after, spec.hot), store });
        }
        Ok(Self { list: tiers.into(), is_plain: false })
    }

    /// Says whether the vectors of the pages have no map. There must be no page yet.
    pub(super) fn set_plain(&mut self, is_plain: bool) {
        self.is_plain = is_plain;
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn warm(&self) -> &PageFormat {
        self.format(0)
    }

    pub(super) fn format(&self, tier: usize) -> &PageFormat {
        if self.is_plain { &self.list[tier].plain } else { &self.list[tier].format }
    }

    /// True if the codes of a tier after the warm one are not those of the tier before it.
    pub(super) fn is_recoded(&self, tier: usize) -> bool {
        self.format(tier).codec().id() != self.format(tier - 1).codec().id()
    }

    pub(super) fn after(&self, tier: usize) -> usize {
        self.list[tier].after
    }

    pub(super) fn store(&self, tier: usize) -> &TierStore {
        &self.list[tier].store
    }
}

/// [`encode`] for vectors (`[n, dim]`) whose blocks take the place of those that are there.
pub(crate) fn encode_to(format: &PageFormat, x: &[f32], blocks: &mut Vec<u8>) -> Result<(), CacheError> {
    blocks.clear();
    blocks.resize(x.len() / format.codec().dim() * format.codec().block_bytes(), 0);
    encode(format, x, blocks)
}

/// Encodes vectors. If only the correction of a scale overflows f16, the vector is stored with its plain
/// norm.
pub(crate) fn encode(format: &PageFormat, x: &[f32], blocks: &mut [u8]) -> Result<(), CacheError> {
    let (level, codec) = (format.level(), format.codec());
    let at_once = tqkv_simd::codec::encode(level, codec, x, blocks);
    match at_once.map_err(|failed| failed.error) {
        Err(EncodeError::OutOfRange) => {
            let options = codec.options().scale_mode(ScaleMode::Raw);
            let raw = AnyCodec::new(codec.id(), codec.dim(), options).map_err(|_| EncodeError::OutOfRange);
            let vectors = x.chunks_exact(codec.dim()).zip(blocks.chunks_exact_mut(codec.block_bytes()));
            let weights = codec.weights().map(|weights| weights.values);
            let raw = raw.map(|raw| weights.map_or(raw, |weights| raw.weighted(weights)));
            raw.and_then(|raw| {
                vectors.into_iter().try_for_each(|(x, block)| {
                    encode_one(level, codec, x, block).or_else(|_| encode_one(level, &raw, x, block))
                })
            })
        }
        result => result,
    }
    .map_err(|error| CacheError::Encode(error.to_string()))
}

fn encode_one(level: Level, codec: &AnyCodec, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    tqkv_simd::codec::encode(level, codec, x, block).map_err(|failed| failed.error)
}

/// Converts the first `count` tokens of a page to an empty page of another format. Blocks of the same
/// codec stay unchanged. A nested codec drops bits for a narrower nested one. Any other pair goes through
/// the decoded vectors.
pub(super) fn transcode(
    (from, page): (&PageFormat, &[Line]),
    count: usize,
    (to, lines): (&PageFormat, &mut [Line]),
) -> Result<(), CacheError> {
    let (mut block, mut result) = ([0; MAX_BLOCK_BYTES], [0; MAX_BLOCK_BYTES]);
    let (block, result) = (&mut block[..from.codec().block_bytes()], &mut result[..to.codec().block_bytes()]);
    for slot in 0..count {
        from.read(page, slot, block);
        recode(from, block, to, result)?;
        to.write(lines, slot, result);
    }
    Ok(())
}

/// Converts a block to one of another format, as [`transcode`] does.
pub(crate) fn recode(
    from: &PageFormat,
    block: &[u8],
    to: &PageFormat,
    result: &mut [u8],
) -> Result<(), CacheError> {
    let (codec, target) = (from.codec(), to.codec());
    let nested = |codec: &AnyCodec| codec.id().is_nested();
    if codec.id() == target.id() {
        result.copy_from_slice(block);
        return Ok(());
    }
    if nested(codec) && nested(target) && target.id().bits() <= codec.id().bits() {
        return demote(codec, block, target, result).map_err(|error| CacheError::Encode(error.to_string()));
    }
    let x = &mut [0.0; MAX_HEAD_DIM][..codec.dim()];
    codec.decode(block, x).map_err(|error| CacheError::Encode(error.to_string()))?;
    encode(to, x, result)
}

//! The tiers of the encoded tokens of one side of a head: warm first, then colder ones.

use super::format::{PageFormat, Side};
use super::spec::{CacheSpec, Cold};
use super::spill::SpillFile;
use crate::error::CacheError;
use std::sync::Arc;
use tqkv_core::{AnyCodec, EncodeError, ScaleMode, demote};
use tqkv_simd::Level;
use tqkv_simd::page::Line;

/// Number of tokens that leave the hot window together. Encoders are faster with several vectors.
pub(super) const BATCH: usize = 4;

/// The place of a tier's pages.
#[derive(Clone, Debug)]
pub(super) enum Store {
    Memory,
    File(SpillFile),
}

#[derive(Debug)]
struct Tier {
    format: PageFormat,
    /// A page whose tokens are all older than this is in this tier or a colder one.
    after: usize,
    store: Store,
}

/// The tiers, warm first. All heads of a layer share them.
#[derive(Clone, Debug)]
pub(super) struct Tiers(Arc<[Tier]>);

impl Tiers {
    /// Makes the tiers of one side of a layer. `file` is set if the last tier is a file.
    pub(super) fn new(
        spec: &CacheSpec,
        layer: usize,
        side: Side,
        level: Level,
        file: Option<&SpillFile>,
    ) -> Result<Self, CacheError> {
        let pick = |[first, second]: [AnyCodec; 2]| match side {
            Side::Keys | Side::Latent => first,
            Side::Values | Side::Position => second,
        };
        let format = |codec| PageFormat::new(codec, side, spec.arithmetic, level);
        let warm = format(pick(spec.make_codecs(spec.codecs_at(layer))?));
        let mut tiers = vec![Tier { format: warm, after: 0, store: Store::Memory }];
        for (after, cold) in &spec.cold {
            let last = tiers.last().map_or(warm, |tier| tier.format);
            let (format, store) = match (cold, file) {
                (Cold::Demote { key, value }, _) => {
                    (format(pick(spec.make_codecs((*key, *value))?)), Store::Memory)
                }
                (Cold::Spill(_), Some(file)) => (last, Store::File(file.clone())),
                (Cold::Spill(_), None) => {
                    return Err(CacheError::BadSpec("a spill tier without a file".into()));
                }
            };
            // A page is full once its last token and the rest of that batch have left the hot window.
            tiers.push(Tier { format, after: (*after).max(spec.hot + BATCH - 1), store });
        }
        Ok(Self(tiers.into()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn warm(&self) -> &PageFormat {
        self.format(0)
    }

    pub(super) fn format(&self, tier: usize) -> &PageFormat {
        &self.0[tier].format
    }

    pub(super) fn after(&self, tier: usize) -> usize {
        self.0[tier].after
    }

    pub(super) fn store(&self, tier: usize) -> &Store {
        &self.0[tier].store
    }
}

/// Encodes vectors. If only the correction of a scale overflows f16, the vector is stored with its plain
/// norm.
pub(super) fn encode(format: &PageFormat, x: &[f32], blocks: &mut [u8]) -> Result<(), CacheError> {
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

/// Converts the first `count` tokens of a page to another format. Blocks of the same codec stay unchanged. A
/// nested codec drops bits for a narrower nested one. Any other pair goes through the decoded vectors.
pub(super) fn transcode(
    from: &PageFormat,
    page: &[Line],
    count: usize,
    to: &PageFormat,
) -> Result<Vec<Line>, CacheError> {
    let (codec, target) = (from.codec(), to.codec());
    let blocks = from.read_blocks(page, 0, count);
    let mut lines = vec![Line::ZERO; to.lines()];
    let nested = |codec: &AnyCodec| codec.id().is_nested();
    let drops = nested(codec) && nested(target) && target.id().bits() <= codec.id().bits();
    let (mut result, mut x) = (vec![0; target.block_bytes()], vec![0.0; codec.dim()]);
    for (slot, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
        if codec.id() == target.id() {
            result.copy_from_slice(block);
        } else if drops {
            demote(codec, block, target, &mut result)
                .map_err(|error| CacheError::Encode(error.to_string()))?;
        } else {
            codec.decode(block, &mut x).map_err(|error| CacheError::Encode(error.to_string()))?;
            encode(to, &x, &mut result)?;
        }
        to.write(&mut lines, slot, &result);
    }
    Ok(lines)
}

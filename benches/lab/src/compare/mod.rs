//! Similarity of two stored forms of the same vectors: codes, directions, distance.
//!
//! It does not tell how good either form is. Use the vectors themselves (`tqkv-lab stats`) or a model (`tqkv
//! eval`) for that.

mod arrays;
mod caches;
mod files;
mod run;

pub(crate) use arrays::{ArrayFigures, arrays, is_array};
pub(crate) use caches::{LayerFigures, caches};
pub(crate) use files::files;
pub(crate) use run::{ModelRun, RunArgs, RunSetting};

use half::f16;
use serde::Serialize;
use tqkv_core::AnyCodec;

/// Similarity of two forms of the same vectors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Vectors compared.
    pub(crate) vectors: u64,
    /// Squared distance over the squared norm of the first form, summed over all vectors.
    pub(crate) relative_error: f64,
    /// Mean cosine.
    pub(crate) mean_cosine: f64,
    /// Share of coordinates with the same code; null if the codes have different meanings.
    pub(crate) code_agreement: Option<f64>,
    /// Share of blocks with equal bytes, scales included; null in the same case.
    pub(crate) equal_blocks: Option<f64>,
}

/// Sums over pairs of vectors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alike {
    vectors: u64,
    cosine: f64,
    distance: f64,
    norm: f64,
    codes: u64,
    same_codes: u64,
    blocks: u64,
    same_blocks: u64,
}

impl Alike {
    /// Adds rows of `dim` coordinates.
    pub(crate) fn rows(&mut self, dim: usize, a: &[f32], b: &[f32]) {
        for (a, b) in a.chunks_exact(dim).zip(b.chunks_exact(dim)) {
            let (mut aa, mut bb, mut ab) = (0f64, 0f64, 0f64);
            for (&a, &b) in a.iter().zip(b) {
                let (a, b) = (f64::from(a), f64::from(b));
                aa += a * a;
                bb += b * b;
                ab += a * b;
                self.distance += (a - b) * (a - b);
            }
            self.norm += aa;
            self.vectors += 1;
            // Two zero vectors are equal.
            self.cosine +=
                if aa == bb && aa == 0.0 { 1.0 } else { ab / (aa * bb).sqrt().max(f64::MIN_POSITIVE) };
        }
    }

    /// Adds blocks of one codec. Codes are the same if they decode to the same vector at the same scale.
    pub(crate) fn blocks(&mut self, codec: &AnyCodec, a: &[u8], b: &[u8]) {
        let (bytes, dim) = (codec.block_bytes(), codec.dim());
        let (mut left, mut right) = (vec![0.0; dim], vec![0.0; dim]);
        for (a, b) in a.chunks_exact(bytes).zip(b.chunks_exact(bytes)) {
            self.blocks += 1;
            self.codes += dim as u64;
            if a == b {
                self.same_blocks += 1;
                self.same_codes += dim as u64;
                continue;
            }
            codec.decode_rotated(&unscaled(codec, a), &mut left);
            codec.decode_rotated(&unscaled(codec, b), &mut right);
            self.same_codes += left.iter().zip(&right).filter(|(a, b)| a == b).count() as u64;
        }
    }

    /// Adds the sums of other pairs.
    pub(crate) fn add(&mut self, other: &Self) {
        self.vectors += other.vectors;
        self.cosine += other.cosine;
        self.distance += other.distance;
        self.norm += other.norm;
        self.codes += other.codes;
        self.same_codes += other.same_codes;
        self.blocks += other.blocks;
        self.same_blocks += other.same_blocks;
    }

    pub(crate) fn figures(&self) -> Figures {
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        Figures {
            vectors: self.vectors,
            relative_error: self.distance / self.norm.max(f64::MIN_POSITIVE),
            mean_cosine: self.cosine / self.vectors.max(1) as f64,
            code_agreement: share(self.same_codes, self.codes),
            equal_blocks: share(self.same_blocks, self.blocks),
        }
    }
}

/// The block with its scale set to 1, if it has one scale for all its codes.
fn unscaled(codec: &AnyCodec, block: &[u8]) -> Vec<u8> {
    let mut block = block.to_vec();
    if codec.id().layout().has_one_scale() {
        block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv_core::{CodecId, Options};

    #[test]
    fn codes_are_compared_without_their_scales() {
        for id in CodecId::ALL.iter().copied().filter(|id| id.block_bytes(64).is_some()) {
            let codec = AnyCodec::new(id, 64, Options::DEFAULT).unwrap();
            let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.5) / 8.0).collect();
            let encode = |x: &[f32]| {
                let mut block = vec![0; codec.block_bytes()];
                codec.encode(x, &mut block).unwrap();
                block
            };
            let (one, other) = (encode(&x), encode(&x.iter().map(|x| -x).collect::<Vec<_>>()));
            let mut alike = Alike::default();
            alike.blocks(&codec, &one, &one);
            assert_eq!(alike.figures().code_agreement, Some(1.0), "{}", id.name());
            // Only the scale differs: all codes are equal, and no block is.
            if id.layout().has_one_scale() {
                let mut louder = one.clone();
                louder[1] ^= 4;
                let mut alike = Alike::default();
                alike.blocks(&codec, &one, &louder);
                let figures = alike.figures();
                assert_eq!(
                    (figures.code_agreement, figures.equal_blocks),
                    (Some(1.0), Some(0.0)),
                    "{}",
                    id.name()
                );
            }
            let mut alike = Alike::default();
            alike.blocks(&codec, &one, &other);
            assert!(alike.figures().code_agreement < Some(0.5), "{}", id.name());
        }
    }

    #[test]
    fn rows_have_a_cosine_and_a_distance() {
        let mut alike = Alike::default();
        alike.rows(2, &[3.0, 4.0, 0.0, 0.0], &[3.0, 3.0, 0.0, 0.0]);
        let figures = alike.figures();
        assert!((figures.relative_error - 1.0 / 25.0).abs() < 1e-12);
        assert!((figures.mean_cosine - (1.0 + 21.0 / (5.0 * 18f64.sqrt())) / 2.0).abs() < 1e-12);
        assert_eq!((figures.vectors, figures.code_agreement), (2, None));
    }
}

//! The exact contents of a side without centring. Each token is encoded from its f16 row when it leaves the
//! window, and again in every tier that it enters.

use super::truth::{Of, Rows, halves};
use std::ops::Range;
use tqkv::Level;
use tqkv_core::{AnyCodec, demote};
use tqkv_simd::codec;

/// The blocks of the KV heads of one side of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Exact {
    pub(crate) rows: Rows,
    pub(crate) of: Of,
    pub(crate) layer: usize,
    /// Values per row, of which the first are encoded.
    pub(crate) width: usize,
    /// One codec per tier.
    pub(crate) codecs: Vec<AnyCodec>,
    /// Blocks of each head, oldest first. The token's tier gives the codec.
    pub(crate) heads: Vec<Vec<Vec<u8>>>,
}

impl Exact {
    /// Encodes tokens for all heads.
    pub(crate) fn push(&mut self, tokens: &[u64]) {
        let Self { rows, of, layer, width, ref codecs, .. } = *self;
        let warm = &codecs[0];
        for (head, blocks) in self.heads.iter_mut().enumerate() {
            let row = |&token| halves(&rows.row(of, token, layer, head, width)[..warm.dim()]);
            let x: Vec<f32> = tokens.iter().flat_map(row).collect();
            blocks.extend(encode(warm, &x).chunks_exact(warm.block_bytes()).map(<[u8]>::to_vec));
        }
    }

    /// Moves tokens from one tier to another. If the codecs allow it, this drops bits; otherwise it encodes
    /// the decoded tokens.
    pub(crate) fn recode(&mut self, tokens: Range<usize>, from: usize, to: usize) {
        let [from, to] = [from, to].map(|tier| self.codecs[tier]);
        if from.id() == to.id() {
            return;
        }
        let drops = from.id().is_nested() && to.id().is_nested() && to.id().bits() < from.id().bits();
        for block in self.heads.iter_mut().flat_map(|blocks| &mut blocks[tokens.clone()]) {
            *block = if drops {
                let mut narrow = vec![0; to.block_bytes()];
                demote(&from, block, &to, &mut narrow).unwrap();
                narrow
            } else {
                encode(&to, &decoded(&from, block))
            };
        }
    }

    pub(crate) fn truncate(&mut self, coded: usize) {
        self.heads.iter_mut().for_each(|blocks| blocks.truncate(coded));
    }

    /// A decoded token as caches read it, which is decoded to the domain of the blocks first.
    pub(crate) fn row(&self, head: usize, token: usize, tier: usize) -> Vec<f32> {
        let (codec, level) = (&self.codecs[tier], Level::fastest());
        let mut x = vec![0.0; codec.dim()];
        codec::decode_rotated(level, codec, &self.heads[head][token], &mut x);
        codec::unrotate(level, codec, &mut x);
        x
    }
}

fn encode(with: &AnyCodec, x: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; x.len() / with.dim() * with.block_bytes()];
    codec::encode(Level::fastest(), with, x, &mut blocks).unwrap();
    blocks
}

fn decoded(with: &AnyCodec, block: &[u8]) -> Vec<f32> {
    let mut x = vec![0.0; with.dim()];
    with.decode(block, &mut x).unwrap();
    x
}

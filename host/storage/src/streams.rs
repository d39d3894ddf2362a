//! Coefficients of one width as blocks of trellis codes.
//!
//! A stream holds the coefficients of all runs of its width, token after token, cut into vectors of 256.
//! Zeros fill the last vector. The random rotation of a block spreads a token over its neighbours, and one
//! scale serves 256 values. The scales are unbiased: noise averages out over the attended tokens, shrinkage
//! does not.

use std::sync::LazyLock;

use tqkv_core::{AnyCodec, CodecId, Effort, Options};
use tqkv_simd::{Level, codec};

pub(crate) const MAX_WIDTH: u8 = 5;

/// Values per block.
const BLOCK: usize = 256;
const CRC: usize = 4;

/// Codecs of the widths from 1 on. They try one scale. In blocks of 256 values, another scale takes as long
/// again, and removes a hundredth of the error.
static CODECS: LazyLock<Vec<AnyCodec>> = LazyLock::new(|| {
    let ids = [CodecId::T1, CodecId::T2, CodecId::T3, CodecId::T4, CodecId::S5];
    ids.into_iter()
        .filter_map(|id| AnyCodec::new(id, BLOCK, Options::DEFAULT.effort(Effort::Fast)).ok())
        .collect()
});

fn codec_of(width: u8) -> &'static AnyCodec {
    &CODECS[usize::from(width) - 1]
}

/// Widths in the order of their streams.
pub(crate) fn order() -> impl Iterator<Item = u8> {
    (1..=MAX_WIDTH).rev()
}

/// Bytes of a stream of `values` values, its CRC included.
pub(crate) fn bytes(values: usize, width: u8) -> usize {
    if values == 0 { 0 } else { values.div_ceil(BLOCK) * codec_of(width).block_bytes() + CRC }
}

/// The runs of a width.
pub(crate) fn runs(widths: &[u8], width: u8) -> Vec<usize> {
    (0..).zip(widths).filter(|(_, own)| **own == width).map(|(run, _)| run).collect()
}

/// Writes a stream of runs, each of `run` coefficients, from the coefficients `[tokens, stride]`. [`bytes`]
/// gives the length of `out`.
///
/// # Errors
/// Coefficients too large for a block, as a message.
pub(crate) fn encode(
    level: Level,
    width: u8,
    (runs, run): (&[usize], usize),
    coefficients: &[f32],
    stride: usize,
    out: &mut [u8],
) -> Result<(), String> {
    let mut values = Vec::with_capacity(out.len() / codec_of(width).block_bytes() * BLOCK);
    for row in coefficients.chunks_exact(stride) {
        if run == 1 {
            values.extend(runs.iter().map(|i| row[*i]));
        } else {
            runs.iter().for_each(|i| values.extend_from_slice(&row[i * run..][..run]));
        }
    }
    values.resize(values.len().next_multiple_of(BLOCK), 0.0);
    let (blocks, crc) = out.split_at_mut(out.len() - CRC);
    codec::encode(level, codec_of(width), &values, blocks)
        .map_err(|error| format!("keys or values too large for the basis ({error})"))?;
    crc.copy_from_slice(&crc32fast::hash(blocks).to_le_bytes());
    Ok(())
}

/// Reads the coefficients of a stream, token after token, and the zeros after them.
///
/// # Errors
/// A damaged stream, as a message.
pub(crate) fn decode(level: Level, width: u8, stream: &[u8]) -> Result<Vec<f32>, String> {
    let (blocks, crc) = stream.split_at(stream.len() - CRC);
    if crc32fast::hash(blocks).to_le_bytes() != crc {
        return Err(format!("damaged stream of {width} bits (CRC-32 does not match)"));
    }
    let codec = codec_of(width);
    let mut values = vec![0.0; blocks.len() / codec.block_bytes() * BLOCK];
    codec::decode(level, codec, blocks, &mut values)
        .map_err(|error| format!("stream of {width} bits: {error}"))?;
    Ok(values)
}

//! Encodes, decodes and scores many vectors at once, on all threads.

use crate::arrays::{Narrow, Values};
use rayon::prelude::*;
use tqkv_core::{AnyCodec, DecodeError, EncodeError};
use tqkv_simd::Level;
use tqkv_simd::codec::{self, BatchError};

/// Vectors that a thread takes at a time. Up to this many run on one thread.
const ROWS: usize = 16;

/// Blocks that a thread scores at a time.
const SCORES: usize = 1024;

/// Encodes vectors, minus `mean`, into blocks. If several vectors are bad, the first one is reported.
pub(crate) fn encode(
    (level, codec): (Level, &AnyCodec),
    x: Values<'_>,
    mean: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let some = |scratch: &mut [Vec<f32>; 2], first: usize, blocks: &mut [u8]| {
        let [scratch, centred] = scratch;
        let mut x = x.wide(first * dim, blocks.len() / bytes * dim, scratch);
        if !mean.is_empty() {
            centred.clear();
            centred.extend(x.chunks(dim).flat_map(|x| x.iter().zip(mean).map(|(x, m)| x - m)));
            x = centred;
        }
        codec::encode(level, codec, x, blocks)
            .map_err(|failed| BatchError { index: first + failed.index, ..failed })
    };
    if blocks.len() <= ROWS * bytes {
        return some(&mut Default::default(), 0, blocks);
    }
    let parts = blocks.par_chunks_mut(ROWS * bytes).enumerate();
    let failed = parts
        .map_init(Default::default, |scratch, (i, blocks)| some(scratch, i * ROWS, blocks))
        .find_map_first(Result::err);
    failed.map_or(Ok(()), Err)
}

/// Decodes blocks into vectors, and adds `mean`. If several blocks are bad, the first one is reported.
pub(crate) fn decode<T: Narrow>(
    (level, codec): (Level, &AnyCodec),
    blocks: &[u8],
    mean: &[f32],
    out: &mut [T],
) -> Result<(), BatchError<DecodeError>> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let some = |scratch: &mut Vec<f32>, first: usize, out: &mut [T]| {
        let blocks = &blocks[first * bytes..][..out.len() / dim * bytes];
        T::narrow(out, scratch, |wide| {
            codec::decode(level, codec, blocks, wide)
                .map_err(|failed| BatchError { index: first + failed.index, ..failed })?;
            if !mean.is_empty() {
                wide.chunks_mut(dim).for_each(|x| x.iter_mut().zip(mean).for_each(|(x, m)| *x += m));
            }
            Ok(())
        })
    };
    if out.len() <= ROWS * dim {
        return some(&mut Vec::new(), 0, out);
    }
    let parts = out.par_chunks_mut(ROWS * dim).enumerate();
    let failed = parts
        .map_init(Vec::new, |scratch, (i, out)| some(scratch, i * ROWS, out))
        .find_map_first(Result::err);
    failed.map_or(Ok(()), Err)
}

/// Dot products of each query with every block, `[queries, blocks]`.
pub(crate) fn scores((level, codec): (Level, &AnyCodec), q: &[f32], blocks: &[u8], out: &mut [f32]) {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let rotated = rotate((level, codec), q);
    let count = blocks.len() / bytes;
    if count == 0 {
        return;
    }
    let queries = rotated.par_chunks(dim).zip(out.par_chunks_mut(count));
    queries.for_each(|(q, out)| {
        let parts = blocks.par_chunks(SCORES * bytes).zip(out.par_chunks_mut(SCORES));
        parts.for_each(|(blocks, out)| codec::scores(level, codec, q, blocks, out));
    });
}

/// Attention of each query over all tokens, with exact levels in f32. Values are summed in the rotated
/// domain. Returns false if a block has a scale that no encoder writes.
pub(crate) fn attend(
    level: Level,
    [keys, values]: [&AnyCodec; 2],
    scale: f32,
    q: &[f32],
    [k, v]: [&[u8]; 2],
    out: &mut [f32],
) -> bool {
    let rotated = rotate((level, keys), q);
    let work = |(q, out): (&[f32], &mut [f32])| {
        let mut weights = vec![0.0; k.len() / keys.block_bytes()];
        codec::scores(level, keys, q, k, &mut weights);
        let largest = weights.iter().fold(f32::NEG_INFINITY, |a, b| a.max(scale * b));
        weights.iter_mut().for_each(|w| *w = (scale * *w - largest).exp());
        let sum: f32 = weights.iter().sum();
        out.fill(0.0);
        codec::accumulate(level, values, &weights, v, out);
        codec::unrotate(level, values, out);
        out.iter_mut().for_each(|x| *x /= sum);
        out.iter().all(|x| x.is_finite())
    };
    let queries = rotated.par_chunks(keys.dim()).zip(out.par_chunks_mut(values.dim()));
    queries.map(work).reduce(|| true, |a, b| a && b)
}

fn rotate((level, codec): (Level, &AnyCodec), q: &[f32]) -> Vec<f32> {
    let mut rotated = vec![0.0; q.len()];
    codec::rotate_queries(level, codec, q, &mut rotated);
    rotated
}

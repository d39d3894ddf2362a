//! The codec over batches of vectors, at a level.
//!
//! The bits equal those of [`AnyCodec`]'s own methods on every level. A vector of 128 values costs tens of
//! nanoseconds, so a call should carry a page of vectors, not one.

use crate::Level;
use crate::level::at_level;
use crate::lines::Machine;
use tqkv_core::unstable::machine::Memory;
use tqkv_core::unstable::trellis::Search;
use tqkv_core::{AnyCodec, DecodeError, EncodeError};

/// [`at_level!`] with the token that runs operations on blocks.
macro_rules! with_blocks {
    ($level:expr, $isa:ident => $fast:expr, $portable:expr) => {
        at_level!($level, isa => {
            let $isa = isa.of_blocks();
            $fast
        }, $portable)
    };
}

/// The vector of a batch that failed, and why; the vectors before it are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchError<E> {
    /// Position in the batch.
    pub index: usize,
    /// The reason.
    pub error: E,
}

impl<E: core::fmt::Display> core::fmt::Display for BatchError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "vector {}: {}", self.index, self.error)
    }
}

impl<E: core::error::Error> core::error::Error for BatchError<E> {}

/// Encodes four vectors at a time, so that their searches run side by side.
fn encode_trellis<I: Memory + Search>(
    isa: I,
    codec: &AnyCodec,
    workspace: &mut [u8],
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), (usize, EncodeError)> {
    const TOGETHER: usize = 4;
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let batches = x.chunks(TOGETHER * dim).zip(blocks.chunks_mut(TOGETHER * bytes));
    for (i, (x, blocks)) in batches.enumerate() {
        if codec.encode_trellis_with(isa, isa, workspace, x, blocks).is_ok() {
            continue;
        }
        // The batch holds a bad vector; encoding one at a time finds it.
        for (k, (x, block)) in x.chunks(dim).zip(blocks.chunks_mut(bytes)).enumerate() {
            codec
                .encode_trellis_with(isa, isa, workspace, x, block)
                .map_err(|error| (TOGETHER * i + k, error))?;
        }
    }
    Ok(())
}

/// Bytes of workspace that [`encode_in`] needs; 0 except for trellis codecs.
pub const fn workspace_bytes(codec: &AnyCodec) -> usize {
    crate::trellis::PROBLEMS * codec.workspace_bytes()
}

/// Encodes vectors of `dim` values back to back into blocks back to back.
///
/// Trellis codecs take 16 KB of stack up to head dim 128, and 128 KB above. To use your own memory instead,
/// call [`encode_in`]. Trellis codecs are fastest with at least four vectors per call.
///
/// # Errors
/// The first vector that cannot be encoded ([`AnyCodec::encode`]). If the slices hold different numbers of
/// vectors and blocks, the error is [`EncodeError::WrongLength`] and nothing is written.
pub fn encode(
    level: Level,
    codec: &AnyCodec,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    const SMALL: usize = 1 << 14;
    match workspace_bytes(codec) {
        0 => encode_in(level, codec, &mut [], x, blocks),
        1..=SMALL => on_stack::<SMALL>(level, codec, x, blocks),
        _ => on_stack::<{ 8 * SMALL }>(level, codec, x, blocks),
    }
}

/// Out of line, so that other codecs do not use the stack.
#[inline(never)]
fn on_stack<const N: usize>(
    level: Level,
    codec: &AnyCodec,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    encode_in(level, codec, &mut [0; N], x, blocks)
}

/// [`encode`] in the caller's memory. `workspace` holds at least [`workspace_bytes`] bytes.
///
/// # Errors
/// The errors of [`encode`], and [`EncodeError::WorkspaceTooSmall`].
pub fn encode_in(
    level: Level,
    codec: &AnyCodec,
    workspace: &mut [u8],
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    if !codec.fit(x.len(), blocks.len()) {
        return Err(BatchError { index: 0, error: EncodeError::WrongLength });
    }
    let trellis = codec.id().trellis().is_some();
    let done = with_blocks!(level, isa => if trellis {
        encode_trellis(isa, codec, workspace, x, blocks)
    } else {
        codec.encode_with(isa, x, blocks)
    }, {
        let mut vectors = x.chunks(dim).zip(blocks.chunks_mut(bytes)).enumerate();
        vectors.try_for_each(|(i, (x, block))| codec.encode_in(workspace, x, block).map_err(|error| (i, error)))
    });
    done.map_err(|(index, error)| BatchError { index, error })
}

/// Decodes blocks back to back into vectors of `dim` values back to back.
///
/// Trellis codecs with whole bits per coordinate decode four blocks at a time at head dim 128.
///
/// # Errors
/// The first block that cannot be decoded ([`AnyCodec::decode`]). If the slices hold different numbers of
/// blocks and vectors, the error is [`DecodeError::WrongLength`] and nothing is written.
pub fn decode(
    level: Level,
    codec: &AnyCodec,
    blocks: &[u8],
    out: &mut [f32],
) -> Result<(), BatchError<DecodeError>> {
    if !codec.fit(out.len(), blocks.len()) {
        return Err(BatchError { index: 0, error: DecodeError::WrongLength });
    }
    let done = with_blocks!(level, isa => crate::decode::decode(isa, codec, blocks, out), {
        let mut vectors = out.chunks_mut(codec.dim()).zip(blocks.chunks(codec.block_bytes())).enumerate();
        vectors.try_for_each(|(i, (out, block))| codec.decode(block, out).map_err(|error| (i, error)))
    });
    done.map_err(|(index, error)| BatchError { index, error })
}

/// [`AnyCodec::rotate_query`] for queries back to back.
///
/// # Panics
/// The slices differ in length, or do not hold a whole number of vectors.
pub fn rotate_queries(level: Level, codec: &AnyCodec, queries: &[f32], out: &mut [f32]) {
    with_blocks!(level, isa => codec.rotate_query_with(isa, queries, out), codec.rotate_query(queries, out));
}

/// [`AnyCodec::unrotate`] for accumulators back to back, in place.
///
/// # Panics
/// `accs` does not hold a whole number of vectors.
pub fn unrotate(level: Level, codec: &AnyCodec, accs: &mut [f32]) {
    with_blocks!(level, isa => codec.unrotate_with(isa, accs), codec.unrotate(accs));
}

/// [`AnyCodec::scores`]: exact levels in `f32`, canonical sums, blocks as stored. The page kernels use an
/// int8 query and are several times faster.
///
/// # Panics
/// The query does not hold `dim` values, or `blocks` does not hold `out.len()` blocks.
pub fn scores(level: Level, codec: &AnyCodec, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
    with_blocks!(level, isa => codec.scores_with(isa, rotated_query, blocks, out),
        codec.scores(rotated_query, blocks, out));
}

/// [`AnyCodec::accumulate`]: exact levels in `f32`, blocks as stored.
///
/// # Panics
/// `acc` does not hold `dim` values, or `blocks` does not hold `weights.len()` blocks.
pub fn accumulate(level: Level, codec: &AnyCodec, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
    with_blocks!(level, isa => codec.accumulate_with(isa, weights, blocks, acc),
        codec.accumulate(weights, blocks, acc));
}

/// [`AnyCodec::decode_rotated`] for blocks back to back.
///
/// # Panics
/// `out` does not hold `dim` values per block.
pub fn decode_rotated(level: Level, codec: &AnyCodec, blocks: &[u8], out: &mut [f32]) {
    with_blocks!(level, isa => codec.decode_rotated_with(isa, blocks, out), codec.decode_rotated(blocks, out));
}

//! The codec over batches of vectors, at a level.
//!
//! Bits equal those of [`AnyCodec`]'s own methods, on every level. Cost per 128-vector is tens of
//! nanoseconds, so a call should carry a page of vectors, not one.

use crate::level::{Kernel, Level};
use crate::lines::Machine;
use tqkv_core::{AnyCodec, DecodeError, EncodeError};

/// Which vector of a batch failed, and how; those before it are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchError<E> {
    /// Position in the batch.
    pub index: usize,
    /// What was wrong.
    pub error: E,
}

impl<E: core::fmt::Display> core::fmt::Display for BatchError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "vector {}: {}", self.index, self.error)
    }
}

impl<E: core::error::Error> core::error::Error for BatchError<E> {}

/// Declares a kernel: a struct of arguments and its body.
macro_rules! kernel {
    ($name:ident { $($field:ident: $type:ty),* } -> $output:ty, |$isa:ident| $body:expr) => {
        struct $name<'a> { $($field: $type),* }
        impl Kernel for $name<'_> {
            type Output = $output;
            #[inline(always)]
            fn run<I: Machine>(self, $isa: I) -> $output {
                let Self { $($field),* } = self;
                $body
            }
        }
    };
}

kernel!(Encode { codec: &'a AnyCodec, workspace: &'a mut [u8], x: &'a [f32], blocks: &'a mut [u8] } -> Result<(), BatchError<EncodeError>>, |isa| {
    if codec.trellis().is_some() {
        return encode_trellis(isa, codec, workspace, x, blocks);
    }
    let vectors = x.chunks(codec.dim());
    for (index, (x, block)) in vectors.zip(blocks.chunks_mut(codec.block_bytes())).enumerate() {
        codec.encode_with(isa, x, block).map_err(|error| BatchError { index, error })?;
    }
    Ok(())
});

/// Four vectors at a time, so that their searches run side by side.
#[inline(always)]
fn encode_trellis<I: Machine>(
    isa: I,
    codec: &AnyCodec,
    workspace: &mut [u8],
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    const TOGETHER: usize = 4;
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    // The second round, one at a time, is for the batch that holds a bad vector.
    for (i, (x, blocks)) in x.chunks(TOGETHER * dim).zip(blocks.chunks_mut(TOGETHER * bytes)).enumerate() {
        let mut together = TOGETHER;
        while together > 0 {
            let mut result = Ok(());
            for (k, (x, blocks)) in
                x.chunks(together * dim).zip(blocks.chunks_mut(together * bytes)).enumerate()
            {
                if result.is_ok() {
                    let index = TOGETHER * i + k;
                    let encoded = codec.encode_trellis_with(isa, isa, workspace, x, blocks);
                    result = encoded.map_err(|error| BatchError { index, error });
                }
            }
            match result {
                Ok(()) => break,
                Err(error) if together == 1 => return Err(error),
                Err(_) => together = 1,
            }
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
/// Trellis codecs take 16 KB of stack up to head dim 128 and 128 KB above; [`encode_in`] takes the
/// caller's memory instead. They are fastest with four vectors a call or more.
///
/// # Errors
/// The first vector that cannot be encoded ([`AnyCodec::encode`]); slices of different numbers of
/// vectors and blocks are [`EncodeError::WrongLength`], and nothing is written then.
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

/// Out of line, so that other codecs do not pay for the stack.
#[inline(never)]
fn on_stack<const N: usize>(
    level: Level,
    codec: &AnyCodec,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    encode_in(level, codec, &mut [0; N], x, blocks)
}

/// [`encode`] in the caller's memory: `workspace` holds [`workspace_bytes`] or more.
///
/// # Errors
/// As [`encode`], and [`EncodeError::WorkspaceTooSmall`].
pub fn encode_in(
    level: Level,
    codec: &AnyCodec,
    workspace: &mut [u8],
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), BatchError<EncodeError>> {
    if !fit(codec, x.len(), blocks.len()) {
        return Err(BatchError { index: 0, error: EncodeError::WrongLength });
    }
    level.run(Encode { codec, workspace, x, blocks })
}

kernel!(Decode { codec: &'a AnyCodec, blocks: &'a [u8], out: &'a mut [f32] } -> Result<(), BatchError<DecodeError>>, |isa| {
    let vectors = out.chunks_mut(codec.dim());
    for (index, (out, block)) in vectors.zip(blocks.chunks(codec.block_bytes())).enumerate() {
        codec.decode_with(isa, block, out).map_err(|error| BatchError { index, error })?;
    }
    Ok(())
});

/// Decodes blocks back to back into vectors of `dim` values back to back.
///
/// # Errors
/// The first block that cannot be decoded ([`AnyCodec::decode`]); slices of different numbers of
/// blocks and vectors are [`DecodeError::WrongLength`], and nothing is written then.
pub fn decode(
    level: Level,
    codec: &AnyCodec,
    blocks: &[u8],
    out: &mut [f32],
) -> Result<(), BatchError<DecodeError>> {
    if !fit(codec, out.len(), blocks.len()) {
        return Err(BatchError { index: 0, error: DecodeError::WrongLength });
    }
    level.run(Decode { codec, blocks, out })
}

kernel!(RotateQueries { codec: &'a AnyCodec, queries: &'a [f32], out: &'a mut [f32] } -> (), |isa| {
    for (query, out) in queries.chunks_exact(codec.dim()).zip(out.chunks_exact_mut(codec.dim())) {
        codec.rotate_query_with(isa, query, out);
    }
});

/// [`AnyCodec::rotate_query`] for queries back to back.
pub fn rotate_queries(level: Level, codec: &AnyCodec, queries: &[f32], out: &mut [f32]) {
    level.run(RotateQueries { codec, queries, out });
}

kernel!(Unrotate { codec: &'a AnyCodec, accs: &'a mut [f32] } -> (), |isa| {
    for acc in accs.chunks_exact_mut(codec.dim()) {
        codec.unrotate_with(isa, acc);
    }
});

/// [`AnyCodec::unrotate`] for accumulators back to back, in place.
pub fn unrotate(level: Level, codec: &AnyCodec, accs: &mut [f32]) {
    level.run(Unrotate { codec, accs });
}

kernel!(Scores { codec: &'a AnyCodec, query: &'a [f32], blocks: &'a [u8], out: &'a mut [f32] } -> (), |isa| {
    codec.scores_with(isa, query, blocks, out);
});

/// [`AnyCodec::scores`]: exact levels in `f32`, canonical sums, blocks as stored. The page kernels
/// are several times faster, on an int8 query.
pub fn scores(level: Level, codec: &AnyCodec, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
    level.run(Scores { codec, query: rotated_query, blocks, out });
}

kernel!(Accumulate { codec: &'a AnyCodec, weights: &'a [f32], blocks: &'a [u8], acc: &'a mut [f32] } -> (), |isa| {
    codec.accumulate_with(isa, weights, blocks, acc);
});

/// [`AnyCodec::accumulate`]: exact levels in `f32`, blocks as stored.
pub fn accumulate(level: Level, codec: &AnyCodec, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
    level.run(Accumulate { codec, weights, blocks, acc });
}

kernel!(DecodeRotated { codec: &'a AnyCodec, blocks: &'a [u8], out: &'a mut [f32] } -> (), |isa| {
    let vectors = out.chunks_exact_mut(codec.dim());
    for (block, out) in blocks.chunks_exact(codec.block_bytes()).zip(vectors) {
        codec.decode_rotated_with(isa, block, out);
    }
});

/// [`AnyCodec::decode_rotated`] for blocks back to back.
pub fn decode_rotated(level: Level, codec: &AnyCodec, blocks: &[u8], out: &mut [f32]) {
    level.run(DecodeRotated { codec, blocks, out });
}

/// Whether `values` and `bytes` are the same whole number of vectors and blocks.
fn fit(codec: &AnyCodec, values: usize, bytes: usize) -> bool {
    values.is_multiple_of(codec.dim())
        && bytes.is_multiple_of(codec.block_bytes())
        && values / codec.dim() == bytes / codec.block_bytes()
}

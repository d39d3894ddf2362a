//! The cases of a measurement, and why a case cannot be measured.

use tqkv_core::{CodecId, Effort, ShapeError};
use tqkv_simd::Level;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Logits of a query against keys.
    Scores,
    /// Weighted sum of values.
    Accumulate,
    /// Scores, softmax and sum.
    Attend,
    /// Vectors to blocks.
    Encode,
    /// Blocks to vectors.
    Decode,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Scores, Self::Accumulate, Self::Attend, Self::Encode, Self::Decode];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scores => "scores",
            Self::Accumulate => "accumulate",
            Self::Attend => "attend",
            Self::Encode => "encode",
            Self::Decode => "decode",
        }
    }
}

/// Where the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the first-level cache: one page.
    L1,
    /// In the second-level cache: 256 KiB of compressed data or less.
    L2,
    /// In memory: pools that no cache holds.
    Dram,
    /// A complete cache of this number of tokens (a multiple of 128), read again and again. It is wherever it
    /// fits.
    Tokens(usize),
}

impl Data {
    /// The places that have a name, nearest first.
    pub const ALL: [Self; 3] = [Self::L1, Self::L2, Self::Dram];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::L2 => "l2",
            Self::Dram => "dram",
            Self::Tokens(_) => "tokens",
        }
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Operation.
    pub op: Op,
    /// The codec; for [`Op::Attend`], of keys and values.
    pub codec: CodecId,
    /// Head dim.
    pub dim: usize,
    /// Instruction set.
    pub level: Level,
    /// Where the data is.
    pub data: Data,
    /// Threads, each with its own data.
    pub threads: usize,
    /// Query heads of one KV head (1 to 8).
    pub query_heads: usize,
    /// How hard [`Op::Encode`] searches.
    pub effort: Effort,
}

/// The reason why a case cannot be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BenchError {
    /// The codec does not support the head dim.
    Shape(ShapeError),
    /// There are no page kernels for this codec or head dim.
    NoKernel(CodecId),
    /// Query heads are not 1 to 8, or threads are not 1 to 256.
    Count,
}

impl core::fmt::Display for BenchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Shape(error) => error.fmt(f),
            Self::NoKernel(id) => write!(
                f,
                "no page kernel for codec {} at this head dim: use encode or decode, or a multiple of 32 and another codec",
                id.name()
            ),
            Self::Count => f.write_str("query heads must be 1 to 8 and threads 1 to 256"),
        }
    }
}

impl core::error::Error for BenchError {}

/// Bytes of the pools that must be in memory: larger than any usual last-level cache.
pub(super) const DRAM_POOL: usize = 512 << 20;

/// Bytes of the pools that must be in the second-level cache.
pub(super) const L2_POOL: usize = 256 << 10;

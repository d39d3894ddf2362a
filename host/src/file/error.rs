//! Errors of `.tqk` files.

use std::io;

use tqkv_core::{CodecId, ScaleMode, ShapeError};

use super::layout::{MAX_CHUNK_PAYLOAD, VERSION};

/// Why a `.tqk` file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system failed to read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The first bytes are not the magic.
    #[error("not a .tqk file (the first 8 bytes must be 89 54 51 4b 0d 0a 1a 0a)")]
    BadMagic,
    /// A version other than [`VERSION`].
    #[error("version {0} of the .tqk format is {known}: expected {VERSION}", known = known(*.0))]
    UnsupportedVersion(u16),
    /// The CRC-32 of the header does not match its bytes.
    #[error("damaged header (CRC-32 does not match)")]
    HeaderCrc,
    /// Two fields of the header contradict each other.
    #[error("inconsistent header: {0}")]
    InconsistentHeader(&'static str),
    /// A codec code that no codec has.
    #[error("codec code {0} is not valid: expected {list}", list = codec_codes())]
    UnknownCodec(u8),
    /// A scale mode code that no mode has.
    #[error("scale mode code {0} is not valid: expected {list}", list = scale_mode_codes())]
    UnknownScaleMode(u8),
    /// A flag bit that version 2 does not define.
    #[error("flags {0:#06x} are not valid: expected bit 0 (mean present) or none")]
    UnknownFlags(u16),
    /// The codec has no blocks of this head dim.
    #[error("codec {codec} at head dim {dim}: {source}", codec = .codec.name())]
    UnsupportedHeadDim {
        /// The codec.
        codec: CodecId,
        /// Coordinates per vector.
        dim: usize,
        /// The head dims that it supports.
        source: ShapeError,
    },
    /// A chunk with no blocks, or with more payload than the format allows.
    #[error(
        "{blocks} blocks of {block_bytes} bytes in a chunk: expected 1 block to {MAX_CHUNK_PAYLOAD} bytes"
    )]
    ChunkSize {
        /// Blocks per chunk.
        blocks: u32,
        /// Bytes per block.
        block_bytes: usize,
    },
    /// The mean holds NaN or infinity.
    #[error("the mean holds NaN or infinity")]
    NonFiniteMean,
    /// The bytes end too early.
    #[error("truncated: {0} missing")]
    Truncated(String),
    /// Bytes follow the last chunk.
    #[error("bytes after the last of {0} blocks")]
    TrailingBytes(u64),
    /// A chunk with another first block or number of blocks than its place requires.
    #[error("chunk {0} is at the wrong place")]
    ChunkOrder(u64),
    /// The CRC-32 of a chunk does not match its bytes.
    #[error("damaged chunk {0} (CRC-32 does not match)")]
    ChunkCrc(u64),
    /// The file has no block of this index.
    #[error("block {index} is out of range: the file has {count} blocks")]
    OutOfBounds {
        /// The requested index.
        index: u64,
        /// Number of blocks in the file.
        count: u64,
    },
    /// A block for the writer, or a buffer for the reader, has the wrong length.
    #[error("{found} bytes are not a block: expected {expected} bytes")]
    BlockLength {
        /// Bytes per block of this file.
        expected: usize,
        /// Bytes that were passed.
        found: usize,
    },
}

fn codec_codes() -> String {
    let codes: Vec<_> =
        CodecId::ALL.iter().map(|codec| format!("{} {}", codec.code(), codec.name())).collect();
    codes.join(", ")
}

fn scale_mode_codes() -> String {
    ScaleMode::ALL.map(|mode| format!("{} {}", mode.code(), mode.name())).join(", ")
}

/// Describes a version that cannot be read.
const fn known(version: u16) -> &'static str {
    match version {
        1 => "no longer supported, because its levels differ (encode the vectors again)",
        _ => "unknown",
    }
}

//! Constants of the format, and how its integers are read.

/// The first eight bytes of every file. The high bit, the line ends and the end-of-file byte break if a
/// transfer treats the file as text, like those of PNG.
pub(super) const MAGIC: [u8; 8] = *b"\x89TQK\r\n\x1a\n";

/// The only version that this crate writes and reads.
pub const VERSION: u16 = 2;

/// Largest payload of a chunk in bytes. The format sets it, and it bounds the memory of a reader.
pub(super) const MAX_CHUNK_PAYLOAD: usize = 1 << 24;

/// Flag bit 0: a mean vector follows the fixed part of the header.
pub(super) const FLAG_MEAN: u16 = 1;
/// Bytes of the header before the optional mean.
pub(super) const FIXED_HEADER: usize = 44;
/// Bytes before a chunk's payload: index of its first block (u64), number of blocks (u32).
pub(super) const CHUNK_HEAD: usize = 12;
/// Bytes of a CRC-32.
pub(super) const CRC: usize = 4;

/// Reads the little-endian integer at `at`. The caller has checked the length.
macro_rules! le {
    ($int:ty, $bytes:expr, $at:expr) => {{
        let mut raw = [0u8; size_of::<$int>()];
        raw.copy_from_slice(&$bytes[$at..$at + size_of::<$int>()]);
        <$int>::from_le_bytes(raw)
    }};
}
pub(super) use le;

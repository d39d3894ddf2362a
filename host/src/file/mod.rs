//! The `.tqk` file: encoded vectors on disk, all of one codec and one head dim.
//!
//! `SPEC.md` is the normative description. Chunks of a fixed number of blocks follow a header, so the header
//! alone gives the place of any block. A CRC-32 covers every byte.
//!
//! * [`Writer`] streams, and writes the count when the file is finished.
//! * [`Reader`] reads any [`std::io::Read`] front to back.
//! * [`TqkView`] gives random access to a slice or a memory map.
//! * `TqkObject` (feature `object-store`) gives access to an object in S3 or another store.
//!
//! Not for a live cache, which appends and truncates: see [`crate::cache`], whose snapshots consist of the
//! same chunks. `tqkv_core` defines the blocks.

mod atomic;
mod bytes;
mod error;
mod flush;
mod folder;
mod header;
mod links;
#[cfg(feature = "object-store")]
mod object;
mod reader;
mod unfinished;
mod view;
mod writer;

pub use atomic::{AtomicFile, Existing};
pub use bytes::Bytes;
pub use error::FileError;
pub use flush::flush;
pub use folder::AtomicFolder;
pub use header::Header;
#[cfg(feature = "object-store")]
pub use object::{TqkObject, put_object};
pub use reader::Reader;
pub use unfinished::{Removed, remove_unfinished};
pub use view::TqkView;
pub use writer::Writer;

/// The first eight bytes of every file. The high bit, the line ends and the end-of-file byte break if a
/// transfer treats the file as text, like those of PNG.
pub const MAGIC: [u8; 8] = *b"\x89TQK\r\n\x1a\n";

/// The only version that this crate writes and reads.
pub const VERSION: u16 = 2;

/// Largest payload of a chunk in bytes. The format sets it, and it bounds the memory of a reader.
pub const MAX_CHUNK_PAYLOAD: usize = 1 << 24;

/// Flag bit 0: a mean vector follows the fixed part of the header.
const FLAG_MEAN: u16 = 1;
/// Bytes of the header before the optional mean.
const FIXED_HEADER: usize = 44;
/// Bytes before a chunk's payload: index of its first block (u64), number of blocks (u32).
const CHUNK_HEAD: usize = 12;
/// Bytes of a CRC-32.
const CRC: usize = 4;

/// Reads the little-endian integer at `at`. The caller has checked the length.
macro_rules! le {
    ($int:ty, $bytes:expr, $at:expr) => {{
        let mut raw = [0u8; size_of::<$int>()];
        raw.copy_from_slice(&$bytes[$at..$at + size_of::<$int>()]);
        <$int>::from_le_bytes(raw)
    }};
}
use le;

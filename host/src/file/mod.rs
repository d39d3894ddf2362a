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
pub(crate) mod flush;
mod folder;
mod header;
mod layout;
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
pub use layout::VERSION;
#[cfg(feature = "object-store")]
pub use object::{TqkObject, put_object};
pub use reader::Reader;
pub use unfinished::{Removed, remove_unfinished};
pub use view::TqkView;
pub use writer::Writer;

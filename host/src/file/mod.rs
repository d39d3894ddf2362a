//! The `.tqk` file: encoded vectors on disk, all of one codec and one head dim.
//!
//! `SPEC.md` is the normative description. A header is followed by chunks of a fixed number of
//! blocks, so the place of any block follows from the header alone, and every byte is covered by
//! a CRC-32. [`Writer`] streams (the count is written when the file is finished), [`Reader`] reads any
//! [`std::io::Read`] front to back, [`TqkView`] gives random access to a slice or a memory map, and `TqkObject` (with the feature
//! `object-store`) to an object in S3 or another store.
//!
//! Not for a live cache, which appends and truncates: that is [`crate`]'s cache, whose snapshot is
//! made of the same chunks. The blocks themselves are the business of `tqkv_core`.

mod atomic;
mod bytes;
mod error;
pub(crate) mod flush;
pub(crate) mod folder;
mod header;
pub(crate) mod layout;
mod links;
#[cfg(feature = "object-store")]
mod object;
mod reader;
pub(crate) mod unfinished;
mod view;
mod writer;

pub use atomic::{AtomicFile, Existing};
pub use bytes::Bytes;
pub use error::FileError;
pub use header::Header;
#[cfg(feature = "object-store")]
pub use object::{TqkObject, put_object};
pub use reader::Reader;
pub use view::TqkView;
pub use writer::Writer;

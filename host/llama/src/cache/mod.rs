//! The cache of one tensor: rows that came last exact, the others as codes in pages. No C is here.
//!
//! | file | holds |
//! | --- | --- |
//! | `format.rs` | how a head's vectors are encoded and lie in pages |
//! | `stream.rs` | slots of one stream: written, encoded when they leave, read |
//! | `means.rs` | the means that are taken off keys |
//! | `store.rs` | all streams of a tensor, as rows and as ranges of bytes |
//! | `rope.rs` | the rotation of keys by a shift of positions |
//! | `attend.rs` | attention of up to eight queries of one KV head |

pub mod attend;
mod format;
mod means;
pub mod rope;
mod store;
mod stream;

pub use format::SLOTS;
pub use format::{Format, Side};
pub use store::Store;
pub use stream::Stream;

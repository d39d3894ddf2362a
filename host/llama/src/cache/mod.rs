//! The cache of one tensor: rows that came last exact, the others as codes in pages. No C is here.
//!
//! | file | holds |
//! | --- | --- |
//! | `format.rs` | how a head's vectors are encoded and lie in pages |
//! | `stream.rs` | slots of one stream: written, encoded when they leave, read |
//! | `means.rs` | the means that are taken off keys |
//! | `store.rs` | all streams of a tensor, as rows and as ranges of bytes |
//! | `rope.rs` | the rotation of keys by a shift of positions |
//! | `attend.rs` | attention of queries of one KV head: parts, and how they are joined |
//! | `codes.rs` | a part that is pages of codes |
//! | `apart.rs` | sums of slots that keys and values hold in different ways |
//! | `exact.rs` | a part that is exact rows |

mod apart;
pub mod attend;
mod codes;
mod exact;
mod format;
mod means;
pub mod rope;
mod store;
mod stream;

pub use format::{Format, Side};
pub use store::Store;
pub use stream::{SLOTS, Stream};

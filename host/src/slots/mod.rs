//! Keys and values in numbered slots, which are written in any order.
//!
//! The newest rows are exact f16, the others are codes in pages.
//!
//! | file | holds |
//! | --- | --- |
//! | `format.rs` | how the vectors of a head are encoded and arranged in pages |
//! | `stream.rs` | slots of one stream: write, encode, read |
//! | `means.rs` | the means that are subtracted from keys |
//! | `maps.rs` | the factors that keys are multiplied by |
//! | `store.rs` | all streams of a tensor, as rows and as ranges of bytes |
//! | `policy.rs` | the settings of a spec that slots have |
//! | `rope.rs` | the rotation of keys by a shift of positions |
//! | `rule.rs` | the settings of queries, and what they do to logits |
//! | `task.rs` | the operands and the result of attention over one part of the slots |
//! | `attend.rs` | attention of the queries of one KV head, in parts that are merged |
//! | `codes.rs` | attention over pages of codes |
//! | `apart.rs` | sums of slots that are exact on one side and codes on the other |
//! | `rows.rs` | exact rows of one side, and weighted sums of them |
//! | `exact.rs` | attention over exact rows |

mod apart;
mod attend;
mod codes;
mod exact;
mod format;
mod maps;
mod means;
mod policy;
mod rope;
mod rows;
mod rule;
mod store;
mod stream;
mod task;

pub use attend::attend;
pub use format::{Format, SLOTS, Side};
pub use maps::Turn;
pub use policy::check;
pub use rope::{Shift, ramp, rotate};
pub use rule::{Asked, Rule};
pub use store::Store;
pub use stream::Stream;
pub use task::Track;

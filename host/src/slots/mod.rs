//! Keys and values in numbered slots, for engines that place tokens themselves.
//!
//! An engine with continuous batching keeps the tokens of many sequences in one array of slots. It decides
//! which slot a token gets, which slots a query sees, and when a slot is free again. [`SlotCache`] holds the
//! keys and values of these slots: the newest rows in f16, the others as codes, which attention reads without
//! decoding them. [`crate::cache::KvCache`] is for one sequence whose tokens come in order.
//!
//! ```
//! use tqkv::slots::{Mask, SlotCache};
//!
//! let spec = "layers=1 heads=4 kv-heads=2 head-dim=64 t4,t2 hot=16".parse()?;
//! let mut cache = SlotCache::new(spec, 1024)?;
//! let (keys, values) = (vec![0.5; 3 * 2 * 64], vec![0.25; 3 * 2 * 64]);
//! // Two tokens of one sequence and one of another, wherever slots are free, with their positions.
//! cache.write(0, &[7, 8, 500], &[0, 1, 0], &keys, &values)?;
//! let mut mask = Mask::new(cache.slots());
//! mask.see([7, 8])?;
//! mask.see([500])?;
//! let (queries, mut out) = (vec![0.1; 2 * 4 * 64], vec![0.0; 2 * 4 * 64]);
//! cache.attend(0, &queries, &mask, &mut out)?;
//! assert!(out.iter().all(|x| (x - 0.25).abs() < 1e-6));
//! // The second sequence ends, and its slot is free.
//! cache.forget(&[500])?;
//! # Ok::<(), tqkv::error::CacheError>(())
//! ```
//!
//! **A row's life** follows the rules of [`crate::cache`]. The newest `hot` writes of a stream stay f16, and
//! so do the tokens of each sequence at positions below `sinks`, in whatever slots it begins. Older rows leave in
//! groups of four when [`SlotCache::attend`] ends. The first rows wait until 64 can leave, because these give the
//! first mean of the keys. With `map=pairs` they wait for 128, and for queries. A slot may be written again at any time,
//! and is then as new.
//!
//! **Means** follow the keys as those of a sequence do, by the rule of `mean_rule.rs`. The position of a token says which
//! mean it should have, because keys drift with the position in their sequence: the first 128 tokens after the sinks have
//! the first mean, the next 128 the second, then 256 the third, and so on. A mean is made once, when the first row that
//! should have it leaves, of all keys that became codes in the stream until then. If these are fewer than it would be of
//! in a sequence, the row gets the newest mean that there is. Each slot knows its mean, so any order of tokens is right.
//! **Tokens in order have the codes of [`crate::cache::KvCache`] to the bit**, but for keys with `map=pairs`, whose map
//! is learnt from other queries, and for values in a window of less than 60, which have another mean. Means and maps of a
//! stream stay until all of its slots are empty.
//!
//! **Tiers.** With `tier=N:K,V`, the codes in a run of 128 slots are encoded again when N later tokens have come to
//! the stream since the newest of them was written. Age is counted in tokens of the stream, so four sequences in one
//! stream age four times as fast. A slot that is written again in an old run is warm by itself. Tokens in order change
//! tiers as in a sequence. With sinks the runs begin elsewhere, so that up to 127 tokens change tiers earlier or later.
//! Rows that are restored begin in the first tier, and codes in theirs.
//!
//! **Shifts of positions** ([`SlotCache::shift`]) touch no code. RoPE turns a key by an angle that is linear in its
//! position, so a key that moves by n positions is `R(n) k`. Its code stays, the slot notes n, and a query meets it as the
//! query that is turned back meets the code: `<q, R(n) k> = <R(-n) q, k>`. The product with the mean is of the query turned
//! back too, because the mean is a part of the key that was encoded. A page has one n, or one per slot, and
//! is then scored once for each n in it. Codes that are made later have n = 0. Rows that are read, saved or copied into a
//! place that cannot note n are turned after they are decoded, and exact rows where they lie. A stream keeps eight
//! different n besides 0. Codes with the rarest others are encoded again, as are all codes if a host's shift changes
//! the length of keys.
//!
//! **Shared prefixes.** Several queries may see the same slots, which costs nothing, or slots are copied
//! ([`SlotCache::copy`]) with their codes.
//!
//! **Failure.** A call that is refused changes nothing. A row that a codec cannot store, because its norm is
//! too large, stays f16. Rows and codes lie in address space that is reserved for all slots and takes memory
//! page by page. If the system lacks that memory, the process ends, as with `Vec`.
//!
//! | file | holds |
//! | --- | --- |
//! | `cache.rs`, `mask.rs`, `policy.rs` | [`SlotCache`], [`Mask`], and which settings of a spec there are |
//! | `operation.rs` | the queries of a layer, divided into tasks for threads |
//! | `store.rs`, `stream.rs` | one side of a layer by rows and bytes; the slots of a stream |
//! | `exact_rows.rs`, `pages.rs` | the exact rows of a stream, and its codes by tier and page |
//! | `page_numbers.rs` | which mean each code is less, and its turn |
//! | `format.rs`, `means.rs`, `maps.rs` | how vectors are encoded, and the means and factors of keys |
//! | `attend.rs`, `task.rs`, `rule.rs` | attention of the queries of one KV head, in spans that are joined |
//! | `coded.rs`, `exact.rs`, `rows.rs`, `apart.rs` | parts of codes, of exact rows, and sums over slots that are both |
//! | `state.rs`, `packed.rs` | rows as bytes of a saved state, with their codes |
//! | `bits.rs` | sets of slots |
//! | `rope.rs`, `turns.rs` | shifts of positions, and how far they have turned each code |

mod apart;
pub(crate) mod attend;
mod bits;
mod cache;
mod coded;
mod exact;
mod exact_rows;
pub(crate) mod format;
pub(crate) mod maps;
mod mask;
mod means;
pub(crate) mod operation;
mod packed;
mod page_numbers;
mod pages;
pub(crate) mod policy;
pub(crate) mod rope;
mod rows;
pub(crate) mod rule;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod stream;
pub(crate) mod task;
mod turns;

#[cfg(test)]
mod tests;

pub use cache::SlotCache;
pub use mask::Mask;

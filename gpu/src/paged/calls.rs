//! What the launches of pages take, from memory of any owner.

use super::attention::{Table, Vectors};
use crate::launch::Memory;

/// A call that encodes keys and values.
pub(crate) struct StoreCall<'a> {
    /// `[tokens, num_kv_heads, head_dim]` of keys and of values.
    pub(crate) rows: [Vectors<'a>; 2],
    /// Where the codes go.
    pub(crate) codes: Target<'a>,
    /// Where f16 rows go, if the encoders were made for them.
    pub(crate) exact: Option<Target<'a>>,
    pub(crate) refused: Memory<'a>,
    pub(crate) tokens: usize,
    /// Most tokens of a launch.
    pub(crate) together: usize,
}

/// Pages that a call writes.
pub(crate) struct Target<'a> {
    /// `[tokens]` in i64.
    pub(crate) places: Memory<'a>,
    pub(crate) pools: [Memory<'a>; 2],
    pub(crate) strides: [u32; 2],
    /// Pages of the pools.
    pub(crate) pages: usize,
    /// For trellis codes the workspace of the vectors of `together` tokens, or of all if there are fewer. f16 rows
    /// need none.
    pub(crate) workspaces: [Option<Memory<'a>>; 2],
    /// `[tokens, num_kv_heads]` of keys and of values.
    pub(crate) outcomes: [Memory<'a>; 2],
}

/// A call that decodes one side.
pub(crate) struct Gather<'a> {
    pub(crate) pool: Memory<'a>,
    pub(crate) stride: u32,
    pub(crate) table: Table<'a>,
    pub(crate) offsets: Memory<'a>,
    pub(crate) lengths: Memory<'a>,
    pub(crate) sequences: usize,
    /// Rows of `out`.
    pub(crate) tokens: usize,
    pub(crate) out: Vectors<'a>,
    /// True if the pages hold f16 rows.
    pub(crate) is_exact: bool,
}
